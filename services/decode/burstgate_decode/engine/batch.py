"""The rows that hold a place: which slot each has, their caches, and the plain step that is in flight.

Decoding rows take the first slots, so that one forward can run them all; rows whose prompt is still being read
follow. Between steps this always holds: a decoding row's slot covers every token but the newest one or, while
the next plain step is in flight, every token. Only a plain step that raised may leave a slot with fewer, where a
cache cannot drop its newest entries; `cut` runs the missing tokens again. Decides nothing about what a step runs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import mlx.core as mx

from burstgate_decode.drafters.base import Drafter, DraftsAhead, Kept
from burstgate_decode.engine.choosing import RowsChoice
from burstgate_decode.engine.row import Row
from burstgate_decode.models.target import Target


@dataclass(frozen=True)
class Flight:
    """A plain step that was issued and not read: of its rows, the choices and the hidden states `[B, 1, D]`.

    Or the end of a prompt, which chooses a token as a plain step does.
    """

    rows: tuple[Row, ...]
    choice: RowsChoice
    hidden: mx.array | None
    issue_ms: float
    """Host time that issuing it took."""
    landed: bool = False
    """Whether it has been computed, so that nothing issued now would overlap with it."""

    def without(self, rows: Sequence[Row]) -> "Flight | None":
        """The step for its other rows; None when there are none."""
        gone = {id(row) for row in rows}
        kept = [at for at, row in enumerate(self.rows) if id(row) not in gone]
        if not kept:
            return None
        hidden = None if self.hidden is None else self.hidden[mx.array(kept)]
        rows = tuple(self.rows[at] for at in kept)
        return replace(self, rows=rows, choice=self.choice.of_rows(kept), hidden=hidden)


class Batch:
    """Rows that join, decode and leave."""

    def __init__(self, target: Target, drafter: Drafter | None) -> None:
        """Holds nobody."""
        self.target = target
        self.cache = target.make_batch_cache()
        self.drafts = drafter.open_batch() if drafter is not None else None
        self.flight: Flight | None = None
        self._rows: list[Row] = []
        self._decoding = 0

    @property
    def rows(self) -> Sequence[Row]:
        """All rows, by slot."""
        return self._rows

    @property
    def decoding(self) -> list[Row]:
        """The rows that take steps, by slot."""
        return self._rows[: self._decoding]

    @property
    def stepping(self) -> list[Row]:
        """The rows that the next step gives tokens to: those of the step in flight, or all decoding ones."""
        if self.flight is None:
            return self.decoding
        return [row for row in self.flight.rows if row.slot is not None]

    def join(self, row: Row) -> None:
        """Gives an admitted row a slot."""
        row.slot = self.cache.open()
        if self.drafts is not None:
            self.drafts.open()
        self._rows.append(row)
        if row.prefill_left == 0:
            self.start_decoding(row)

    def start_decoding(self, row: Row) -> None:
        """Takes a row whose prompt is read into the steps."""
        self._swap(slot_of(row), self._decoding)
        self._decoding += 1

    def leave(self, row: Row) -> None:
        """Frees a row's slot; the last rows move up."""
        if slot_of(row) < self._decoding:
            self._decoding -= 1
            self._swap(slot_of(row), self._decoding)
        self._swap(slot_of(row), len(self._rows) - 1)
        self._rows.pop()
        row.slot = None
        self.cache.close_last()
        if self.drafts is not None:
            self.drafts.close_last()
        if self.flight is not None and all(other.slot is None for other in self.flight.rows):
            self.flight = None

    def cut(self, row: Row, kept: Sequence[int] = ()) -> None:
        """Leaves a row's slot with all but the newest of its committed tokens and the `kept` ones behind them.

        Entries behind those are dropped. Where the cache dropped more than that, the tokens are run again: those
        since its mark in one forward, as they were verified, and a whole sequence as it was read and decoded.
        """
        length = len(row.tokens) - 1 + len(kept)
        held = self.cache.cut(slot_of(row), length)
        if held < length:
            self._run_again(row, [*row.tokens, *kept][:length], held)

    def observe(self, rows: Sequence[Row], hidden: mx.array | None, tokens: mx.array, counts: Sequence[int]) -> None:
        """Tells the drafter that the first `counts[i]` positions of `hidden [B, L, D]` were followed by `tokens`."""
        if self.drafts is None or hidden is None:
            return
        kept = [
            Kept(row.slot, place, count)
            for place, (row, count) in enumerate(zip(rows, counts, strict=True))
            if row.slot is not None and row.drafts and count
        ]
        if kept:
            self.drafts.observe(hidden, tokens, kept)

    def draft_ahead(self, hidden: mx.array | None, tokens: mx.array, newest: mx.array) -> None:
        """Lets the drafter begin behind a forward of all decoding rows before its tokens are read.

        `newest [B]`: the place of each row's last position in `hidden [B, L, D]` that will be kept, as far as can be
        told. Waits for nothing.
        """
        if isinstance(self.drafts, DraftsAhead) and hidden is not None:
            mx.async_eval(newest)
            self.drafts.draft_ahead(hidden, tokens, newest)

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Whatever is raised inside, every decoding row's slot ends equal to its committed tokens.

        Only a slot that was not marked, and cannot drop its newest entries, ends empty: its tokens are run again by
        the row's next `cut`, and not here, where what one row raises would end all.
        """
        try:
            yield
        except BaseException:
            self.flight = None
            for row in self.decoding:
                self.cache.cut(slot_of(row), len(row.tokens) - 1)
            raise
        finally:
            self.cache.mark(0)

    def _run_again(self, row: Row, tokens: Sequence[int], held: int) -> None:
        """Runs a row's first `tokens` but for the `held` ones."""
        ends = [len(tokens)] if held else _ends_of_reading(row, len(tokens))
        for end in ends:
            self.cache.run(self.target.advance, mx.array([tokens[held:end]]), slot_of(row))
            mx.async_eval(self.cache.arrays())
            held = end

    def _swap(self, one: int, other: int) -> None:
        if one == other:
            return
        self.cache.swap(one, other)
        if self.drafts is not None:
            self.drafts.swap(one, other)
        rows = self._rows
        rows[one], rows[other] = rows[other], rows[one]
        rows[one].slot, rows[other].slot = one, other


def _ends_of_reading(row: Row, length: int) -> list[int]:
    """Where the forwards ended that took in a row's first `length` tokens: chunks of the prompt, then single steps."""
    prompt = min(len(row.request.prompt) - 1, length)
    return [*range(row.chunk_tokens, prompt, row.chunk_tokens), *range(max(1, prompt), length + 1)]


def slot_of(row: Row) -> int:
    """The slot of a row that holds one."""
    if row.slot is None:
        raise RuntimeError("the row holds no slot")
    return row.slot

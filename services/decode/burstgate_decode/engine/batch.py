"""The rows that hold a place: which slot each has, their caches, and the plain step that is in flight.

Decoding rows take the first slots, so that one forward can run them all; rows whose prompt is still being read
follow. Between steps this always holds: a decoding row's slot covers every token but the newest one or, while
the next plain step is in flight, every token. Decides nothing about what a step runs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import mlx.core as mx

from burstgate_decode.drafters.base import Drafter, Kept
from burstgate_decode.engine.choosing import RowsChoice
from burstgate_decode.engine.row import Row
from burstgate_decode.models.target import Target


@dataclass(frozen=True)
class Flight:
    """A plain step that was issued and not read: of its rows, the choices and the hidden states `[B, 1, D]`."""

    rows: tuple[Row, ...]
    choice: RowsChoice
    hidden: mx.array | None


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

    def cut(self, row: Row, kept: int = 0) -> None:
        """Drops what a forward wrote for a row behind its committed tokens, but for `kept` new entries."""
        self.cache.cut(slot_of(row), len(row.tokens) - 1 + kept)

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

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Whatever is raised inside, every decoding row's slot ends equal to its committed tokens."""
        try:
            yield
        except BaseException:
            self.flight = None
            for row in self.decoding:
                self.cut(row)
            raise

    def _swap(self, one: int, other: int) -> None:
        if one == other:
            return
        self.cache.swap(one, other)
        if self.drafts is not None:
            self.drafts.swap(one, other)
        rows = self._rows
        rows[one], rows[other] = rows[other], rows[one]
        rows[one].slot, rows[other].slot = one, other


def slot_of(row: Row) -> int:
    """The slot of a row that holds one."""
    if row.slot is None:
        raise RuntimeError("the row holds no slot")
    return row.slot

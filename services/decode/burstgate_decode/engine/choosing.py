"""Chooses tokens for the rows of a batch: all plain greedy rows at once, every other row by its own chooser.

What a row is given depends on that row alone: its logits, its options, its tokens and its positions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from burstgate_decode.engine.row import Row
from burstgate_decode.engine.sampling import margins_of
from burstgate_decode.models.target import Step


@dataclass(frozen=True)
class RowsChoice:
    """Chosen tokens and margins `[B, L]`; of each row only the first `widths[i]` mean anything. All lazy."""

    tokens: mx.array
    margins: mx.array | None
    logits: tuple[mx.array | None, ...]
    """For each row that reports log-probabilities, the processed logits `[L, V]`."""

    def of_rows(self, places: Sequence[int]) -> "RowsChoice":
        """What was chosen for some of the rows."""
        wanted = mx.array(list(places))
        margins = None if self.margins is None else self.margins[wanted]
        return RowsChoice(self.tokens[wanted], margins, tuple(self.logits[at] for at in places))


@dataclass(frozen=True)
class Place:
    """Where a row stands in a forward."""

    row: Row
    position: int
    """Absolute position that the forward's first logits answer for."""
    width: int
    """How many of the row's logits count."""
    history: Callable[[], mx.array]
    """The tokens before `position + width - 1`, for penalties."""


def choose_rows(places: Sequence[Place], step: Step, margins: bool) -> RowsChoice:
    """Chooses from a forward's logits. `margins`: also how far each choice lies above the next best."""
    tokens = mx.argmax(step.logits, axis=-1)
    wanted = margins_of(step.logits, tokens) if margins else None
    if step.packing is not None:
        tokens, wanted = step.packing.spread(tokens), None if wanted is None else step.packing.spread(wanted)
    kept: list[mx.array | None] = [None] * len(places)
    for at, one in enumerate(places):
        if one.row.request.logprobs is not None:
            kept[at] = step.logits_of(at)
    if all(one.row.chooser.likeliest for one in places):
        return RowsChoice(tokens, wanted, tuple(kept))
    longest = tokens.shape[1]
    row_tokens: list[mx.array] = []
    row_margins: list[mx.array] = []
    for at, one in enumerate(places):
        if one.row.chooser.likeliest:
            row_tokens.append(tokens[at])
            if wanted is not None:
                row_margins.append(wanted[at])
            continue
        history = one.history() if one.row.chooser.reads_history else None
        choice = one.row.chooser.choose(step.logits_of(at)[: one.width], one.position, history, margins)
        row_tokens.append(_padded(choice.tokens, longest))
        if choice.margins is not None:
            row_margins.append(_padded(choice.margins, longest))
        if kept[at] is not None:
            kept[at] = choice.logits
    return RowsChoice(mx.stack(row_tokens), mx.stack(row_margins) if margins else None, tuple(kept))


def pick_rows(rows: Sequence[Row], logits: mx.array, ids: mx.array | None, depth: int) -> mx.array:
    """Picks a draft for each row from `logits [B, V']` over the token ids `ids [V']`; returns `[B]`, lazily.

    `depth`: how many drafts stand between the row's newest token and this one.
    """
    if all(row.chooser.greedy for row in rows):
        columns = mx.argmax(logits, axis=-1)
        return columns if ids is None else ids[columns]
    return mx.concatenate(
        [row.chooser.pick(logits[at : at + 1], ids, len(row.tokens) + depth) for at, row in enumerate(rows)]
    )


def _padded(values: mx.array, length: int) -> mx.array:
    return mx.pad(values, [(0, length - values.shape[0])])

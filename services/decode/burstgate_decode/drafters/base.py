"""What every drafter kind offers the round loop.

A drafter belongs to one target. Its state for the rows of a batch has the batch's slots and follows the rows'
committed tokens through `observe` alone, so that drafting never has to be undone: whatever `draft` appends to
the drafter's own cache is dropped before it returns.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import mlx.core as mx

# Picks one token a row from logits `[B, V']`, whose column i stands for target token `ids[i]` (None:
# column i is token i), for the draft of a depth: 0 is the first. Returns token ids `[B]`, lazily.
Pick: TypeAlias = Callable[[mx.array, mx.array | None, int], mx.array]
# Asked after each draft of all rows, once `pick` has chosen it: whether to make another one.
GoesOn: TypeAlias = Callable[[], bool]


class Kept(NamedTuple):
    """How many of a row's positions in a forward were committed."""

    slot: int
    row: int
    """Of the forward's arrays."""
    positions: int
    """From the first on."""


class DraftBatch(Protocol):
    """A drafter's state for the rows of a batch, by slot. Slots behave as those of a `BatchCache`."""

    def open(self) -> int:
        """Adds an empty slot at the end and returns its place."""
        ...

    def swap(self, one: int, other: int) -> None:
        """Lets two slots change places."""
        ...

    def close_last(self) -> None:
        """Drops the last slot."""
        ...

    def observe(self, hidden: mx.array, next_tokens: mx.array, kept: Sequence[Kept]) -> None:
        """Takes committed positions: what is `kept` of the target's `hidden [B, L, D]` and of the tokens that
        followed them, `next_tokens [B, L]`.
        """
        ...

    def draft(self, rows: int, count: int, pick: Pick, goes_on: GoesOn | None = None) -> mx.array:
        """Drafts `count` tokens after the newest one for the first `rows` slots. Returns `[rows, count]`, lazily.

        With `goes_on` it may return fewer of each, but at least 1; a drafter whose drafts cost nothing may ignore it.
        What is drafted for a row of which nothing was observed has no meaning.
        """
        ...


@runtime_checkable
class DraftsAhead(Protocol):
    """What a `DraftBatch` may offer besides: it starts on a round's first draft while the verify before is not read."""

    def draft_ahead(self, hidden: mx.array, next_tokens: mx.array, newest: mx.array) -> None:
        """Starts on the drafts behind a forward of the first slots' rows, none of whose positions was observed yet.

        `hidden [B, L, D]` and `next_tokens [B, L]` are what `observe` is to be told of, and `newest [B]`, ready before
        them, the place of the last position in each row that is likely to be kept. If something else is observed, or
        rows change their slots, the next `draft` is as if this had not been called.
        """
        ...


class Drafter(Protocol):
    """A loaded drafter, bound to its target."""

    @property
    def kind(self) -> str:
        """Such as "mtp_head"."""
        ...

    @property
    def name(self) -> str:
        """Display name."""
        ...

    @property
    def fingerprint(self) -> str:
        """Digest of configuration and weights."""
        ...

    @property
    def max_draft_width(self) -> int:
        """Widest verify the drafter may be run with, in rows."""
        ...

    @property
    def cache_token_bytes(self) -> int:
        """Bytes of the drafter's own cache for each token of a row; 0 without one."""
        ...

    def open_batch(self) -> DraftBatch:
        """State for rows that come and go."""
        ...

"""What every drafter kind offers the round loop.

A drafter belongs to one target. Its state for one row follows the row's committed tokens through
`observe` alone, so that drafting never has to be undone: whatever `draft` appends to the drafter's own
cache is dropped before it returns.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

import mlx.core as mx

# Picks one token a row from logits `[1, V']`, whose column i stands for target token `ids[i]` (None:
# column i is token i), at an absolute position of the sequence. Returns token ids `[1]`, lazily.
Pick: TypeAlias = Callable[[mx.array, mx.array | None, int], mx.array]
# Asked after each draft, once `pick` has chosen it: whether to make another one.
GoesOn: TypeAlias = Callable[[], bool]


class DraftState(Protocol):
    """A drafter's state for one row."""

    def observe(self, hidden: mx.array, next_tokens: mx.array) -> None:
        """Takes committed positions: the target's `hidden [1, L, D]` and the tokens that followed them `[1, L]`."""
        ...

    def draft(self, count: int, position: int, pick: Pick, goes_on: GoesOn | None = None) -> mx.array:
        """Drafts `count` tokens after the newest one, the first at absolute `position`. Returns `[count]`, lazily.

        With `goes_on` it may return fewer, but at least 1. A drafter whose drafts cost nothing may ignore it.
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
    def product_shapes(self) -> list[tuple[int, int]]:
        """`[N, K]` of every weight that drafting multiplies rows by."""
        ...

    def open(self) -> DraftState:
        """State for a new row."""
        ...

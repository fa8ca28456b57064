"""The shape of a batch's cache, how many rows and tokens there is memory for, and its cost. Free of mlx."""

from typing import NamedTuple

# Entries that a cache grows by; as in mlx-lm, which rounds likewise.
_BLOCK_TOKENS = 256


class CacheShape(NamedTuple):
    """Memory of a cache that all rows share: so many slots, each of so many tokens."""

    slots: int
    tokens: int


class CacheCost(NamedTuple):
    """Bytes of the target's and the drafter's caches together."""

    token_bytes: int
    """Of each token that a row has room for."""
    row_bytes: int
    """Of each row, whatever its length."""
    shared: bool
    """Whether rows share arrays, so that all have room for as many tokens as the longest."""


NOTHING_HELD = CacheShape(0, 0)


def blocks(tokens: int) -> int:
    """Tokens that there is room for in a slot that must hold so many."""
    return -(-tokens // _BLOCK_TOKENS) * _BLOCK_TOKENS


def slots_for(rows: int) -> int:
    """Rows that there is room for where so many, one or more, are held: joining ones seldom make it grow."""
    return 1 << (rows - 1).bit_length()

"""Rows of different widths, one behind the other: how a forward computes only the positions that count.

A verify gives each row of a batch so many positions as it has drafts and one more. As a rectangle `[B, L]` it is as
wide as its widest row; packed, `[1, T]`, it has the positions that count and no others. All layers but attention treat
a position by itself, so that packed positions run through the model as those of one long row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx


@dataclass(frozen=True)
class Packing:
    """The first `widths[i]` positions of each row i, at least one."""

    widths: tuple[int, ...]

    @property
    def longest(self) -> int:
        """Width L of the rectangle."""
        return max(self.widths)

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """Row and position within the row of each packed position."""
        return [(row, position) for row, width in enumerate(self.widths) for position in range(width)]

    def positions(self, starts: Sequence[int]) -> mx.array:
        """Absolute positions `[T]` of rows that start at so many tokens."""
        return mx.array([starts[row] + position for row, position in self.places])

    def pack(self, x: mx.array) -> mx.array:
        """`[B, L, ...]` to `[1, T, ...]`."""
        return x.reshape(-1, *x.shape[2:])[self._packed][None]

    def spread(self, x: mx.array) -> mx.array:
        """`[1, T, ...]` to `[B, L, ...]`; what stands behind a row's own positions is finite and has no meaning."""
        return x[0][self._spread]

    def of_row(self, x: mx.array, row: int) -> mx.array:
        """A row's own positions `[width, ...]` of `[1, T, ...]`."""
        start = sum(self.widths[:row])
        return x[0, start : start + self.widths[row]]

    def spread_heads(self, x: mx.array) -> mx.array:
        """`[1, H, T, D]` to `[B, H, L, D]`, as `spread`."""
        return x.reshape(-1, x.shape[-1])[self._of_heads(x.shape[1])[0]]

    def pack_heads(self, x: mx.array) -> mx.array:
        """`[B, H, L, D]` to `[1, H, T, D]`."""
        return x.reshape(-1, x.shape[-1])[self._of_heads(x.shape[1])[1]][None]

    def _of_heads(self, heads: int) -> tuple[mx.array, mx.array]:
        """Places `[B, H, L]` among the packed heads, and `[H, T]` among those side by side; all layers share them."""
        if heads not in self._heads:
            each = mx.arange(heads)[:, None]
            row, position = self._packed // self.longest, self._packed % self.longest
            self._heads[heads] = (
                self._spread[:, None] + len(self.places) * each,
                (row * heads + each) * self.longest + position,
            )
        return self._heads[heads]

    @cached_property
    def _heads(self) -> dict[int, tuple[mx.array, mx.array]]:
        return {}

    @cached_property
    def _packed(self) -> mx.array:
        """`[T]` places in the rectangle."""
        return mx.array([row * self.longest + position for row, position in self.places])

    @cached_property
    def _spread(self) -> mx.array:
        """`[B, L]` places among the packed; behind a row's end its last one."""
        places, start = [], 0
        for width in self.widths:
            places.append([start + min(position, width - 1) for position in range(self.longest)])
            start += width
        return mx.array(places)

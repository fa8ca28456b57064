"""Copies of a stretch of one slot's keys and values, to be written into another slot later.

A copy shares no memory with the cache that it was taken from, so that keeping it keeps nothing else alive and
what the slot does afterwards does not reach it. Layers of one shape are held as one array: backends limit how many
arrays there may be, not only how large.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import mlx.core as mx


@dataclass(frozen=True)
class KvSpan:
    """Keys and values of neighbouring tokens: one array `[layers, heads, tokens, size]` of each where all layers have
    one shape, otherwise one a layer.
    """

    keys: tuple[mx.array, ...]
    values: tuple[mx.array, ...]

    @staticmethod
    def copied(keys: Sequence[mx.array], values: Sequence[mx.array]) -> "KvSpan":
        """Copies each layer's `[heads, tokens, size]`, lazily. At least one layer."""
        return KvSpan(_copied(keys), _copied(values))

    @staticmethod
    def joined(spans: "Sequence[KvSpan]") -> "KvSpan":
        """Spans of one cache, one behind the other."""
        return KvSpan(_joined([span.keys for span in spans]), _joined([span.values for span in spans]))

    def part(self, start: int, stop: int) -> "KvSpan":
        """Copies some of its tokens, lazily."""
        return KvSpan(_gathered(self.keys, start, stop), _gathered(self.values, start, stop))

    @property
    def tokens(self) -> int:
        """How many tokens it covers."""
        return self.keys[0].shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays kept alive, for evaluation."""
        return [*self.keys, *self.values]

    def layers(self) -> Iterator[tuple[mx.array, mx.array]]:
        """Each layer's keys and values, `[heads, tokens, size]`."""
        keys = (layer for array in self.keys for layer in array)
        values = (layer for array in self.values for layer in array)
        return zip(keys, values, strict=True)


@runtime_checkable
class CopiesSlots(Protocol):
    """What a cache by slot may offer besides: its slots' entries can be copied out at any token and written back."""

    def take(self, slot: int, start: int, stop: int) -> KvSpan | None:
        """Copies a slot's tokens `start` to `stop`, lazily; None when it does not hold them.

        A drafter whose newest position is among them must observe another one before it drafts for the slot.
        """
        ...

    def put(self, slot: int, span: KvSpan) -> None:
        """Makes a slot hold exactly what was copied, from its first token on."""
        ...


def _copied(layers: Sequence[mx.array]) -> tuple[mx.array, ...]:
    if len(layers) > 1 and len({(layer.shape, layer.dtype) for layer in layers}) == 1:
        return (mx.stack(list(layers)),)
    return _gathered([layer[None] for layer in layers], 0, layers[0].shape[1])


def _gathered(arrays: Sequence[mx.array], start: int, stop: int) -> tuple[mx.array, ...]:
    # A slice that is contiguous as it stands would be no copy; gathering always makes one.
    return tuple(array[:, :, mx.arange(start, stop)] for array in arrays)


def _joined(spans: Sequence[tuple[mx.array, ...]]) -> tuple[mx.array, ...]:
    return tuple(mx.concatenate(list(parts), axis=2) for parts in zip(*spans, strict=True))

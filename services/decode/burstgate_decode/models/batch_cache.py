"""The caches of a batch of rows: one protocol, and the way for models that cannot share a forward.

A batch cache has slots, one a row, each with a length of its own. Rows open a slot at the end, change places and
leave from the end, so that the rows of one forward are always neighbours. A forward runs on a stretch of slots
and appends to each of them; rejected entries are cut off again, each row by its own number. A step that may have to
be undone marks its slots first, because some caches can only be cut back to a mark.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import mlx.core as mx

from burstgate_decode.models.cache_shape import NOTHING_HELD, CacheShape
from burstgate_decode.models.sequence_cache import Cache, Mark, SequenceCache

_Result = TypeVar("_Result")


class BatchCache(Protocol):
    """Caches of rows, by slot."""

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens that each slot holds."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        ...

    @property
    def shape(self) -> CacheShape:
        """Slots and tokens that there is memory for, where rows share it; `NOTHING_HELD` where each has its own."""
        ...

    def open(self) -> int:
        """Adds an empty slot at the end and returns its place."""
        ...

    def swap(self, one: int, other: int) -> None:
        """Lets two slots change places."""
        ...

    def close_last(self) -> None:
        """Drops the last slot."""
        ...

    def mark(self, rows: int) -> None:
        """Lets `cut` take the first `rows` slots back to what they hold now, in place of earlier marks."""
        ...

    def cut(self, slot: int, length: int) -> int:
        """Drops a slot's newest entries until it holds `length` tokens at most, and returns how many it holds.

        Fewer than `length` where its layers cannot drop just those: then what it held at its mark, or nothing, and
        the rest must be run again.
        """
        ...

    def run(self, forward: Callable[[mx.array, Cache], _Result], tokens: mx.array, first: int) -> list[_Result]:
        """Runs `tokens [B, L]` after what the B slots from `first` on hold, and appends to them.

        Returns one result for all rows, or one for each row in order. What `forward` raises leaves every length
        as it was, once `cut` has been called on the slots.
        """
        ...

    def arrays(self) -> list[mx.array]:
        """The arrays kept alive, for evaluation."""
        ...


class SeparateCaches:
    """Implements `BatchCache` with a cache and a forward of its own for each row."""

    def __init__(self, make_cache: Callable[[], Cache]) -> None:
        """`make_cache` makes an empty cache of one sequence."""
        self._make_cache = make_cache
        self._sequences: list[SequenceCache] = []
        self._marks: dict[SequenceCache, Mark] = {}

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens that each slot holds."""
        return [sequence.length for sequence in self._sequences]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(array.nbytes for array in self.arrays())

    @property
    def shape(self) -> CacheShape:
        """Nothing is shared."""
        return NOTHING_HELD

    def open(self) -> int:
        """Adds an empty slot at the end and returns its place."""
        self._sequences.append(SequenceCache(self._make_cache))
        return len(self._sequences) - 1

    def swap(self, one: int, other: int) -> None:
        """Lets two slots change places."""
        sequences = self._sequences
        sequences[one], sequences[other] = sequences[other], sequences[one]

    def close_last(self) -> None:
        """Drops the last slot."""
        self._marks.pop(self._sequences.pop(), None)

    def mark(self, rows: int) -> None:
        """Lets `cut` take the first `rows` slots back to what they hold now, in place of earlier marks."""
        self._marks = {sequence: sequence.mark() for sequence in self._sequences[:rows]}

    def cut(self, slot: int, length: int) -> int:
        """Drops a slot's newest entries; see `BatchCache.cut`."""
        sequence = self._sequences[slot]
        return sequence.cut(length, self._marks.get(sequence))

    def run(self, forward: Callable[[mx.array, Cache], _Result], tokens: mx.array, first: int) -> list[_Result]:
        """Runs each row by itself; see `BatchCache.run`."""
        return [self._sequences[first + row].run(forward, tokens[row : row + 1]) for row in range(tokens.shape[0])]

    def arrays(self) -> list[mx.array]:
        """The arrays kept alive, for evaluation."""
        return [array for sequence in self._sequences for array in sequence.arrays()]

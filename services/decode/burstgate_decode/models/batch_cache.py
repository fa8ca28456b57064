"""The caches of a batch of rows: one protocol, and the way for models that cannot share a forward.

A batch cache has slots, one a row, each with a length of its own. Rows open a slot at the end, change places and
leave from the end, so that the rows of one forward are always neighbours. A forward runs on a stretch of slots
and appends to each of them; rejected entries are cut off again, each row by its own number.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import mlx.core as mx
from mlx_lm.models.cache import trim_prompt_cache

from burstgate_decode.models.cache_shape import NOTHING_HELD, CacheShape

# What mlx-lm's models take: one cache object a layer.
Cache: TypeAlias = list[Any]
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

    def cut(self, slot: int, length: int) -> None:
        """Drops a slot's newest entries until it holds `length` tokens at most."""
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
        self._caches: list[Cache] = []
        self._lengths: list[int] = []

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens that each slot holds."""
        return self._lengths

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
        self._caches.append(self._make_cache())
        self._lengths.append(0)
        return len(self._caches) - 1

    def swap(self, one: int, other: int) -> None:
        """Lets two slots change places."""
        caches, lengths = self._caches, self._lengths
        caches[one], caches[other] = caches[other], caches[one]
        lengths[one], lengths[other] = lengths[other], lengths[one]

    def close_last(self) -> None:
        """Drops the last slot."""
        self._caches.pop()
        self._lengths.pop()

    def cut(self, slot: int, length: int) -> None:
        """Drops a slot's newest entries until it holds `length` tokens at most."""
        rewind(self._caches[slot], length)
        self._lengths[slot] = min(self._lengths[slot], length)

    def run(self, forward: Callable[[mx.array, Cache], _Result], tokens: mx.array, first: int) -> list[_Result]:
        """Runs each row by itself; see `BatchCache.run`."""
        results = []
        for row in range(tokens.shape[0]):
            results.append(forward(tokens[row : row + 1], self._caches[first + row]))
            self._lengths[first + row] += tokens.shape[1]
        return results

    def arrays(self) -> list[mx.array]:
        """The arrays kept alive, for evaluation."""
        return [array for cache in self._caches for array in cache_arrays(cache)]


def cache_arrays(cache: Cache) -> list[mx.array]:
    """The arrays that one sequence's cache keeps alive, for evaluation."""
    arrays: list[mx.array] = []
    for layer in cache:
        arrays.extend(part for part in _leaves(layer.state) if isinstance(part, mx.array))
    return arrays


def cache_length(cache: Cache) -> int:
    """Tokens that one sequence's cache holds."""
    return int(cache[0].offset)


def rewind(cache: Cache, length: int) -> None:
    """Drops the newest entries of one sequence's cache until it holds `length` tokens."""
    surplus = cache_length(cache) - length
    if surplus > 0 and trim_prompt_cache(cache, surplus) != surplus:
        raise RuntimeError(f"the cache dropped fewer than {surplus} tokens")


def _leaves(state: object) -> Sequence[object]:
    if isinstance(state, list | tuple):
        return [leaf for part in state for leaf in _leaves(part)]
    return [state]

"""One sequence's cache, in mlx-lm's own classes, that can be taken back to fewer tokens.

Most layers drop their newest entries: full attention always, a sliding or chunked window while it still holds what
the tokens before the cut need. Layers that cannot (recurrent states, a window that was written over) go back to a
`Mark`, a copy made before the forward that may have to be undone, and with them all others; what was dropped too
much is run again by the caller. A cut that neither reaches leaves the sequence empty.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, QuantizedKVCache, RotatingKVCache

# What mlx-lm's models take: one cache object a layer.
Cache: TypeAlias = list[Any]
_Result = TypeVar("_Result")


class Mark:
    """What a sequence's layers held at one length."""

    def __init__(self, length: int, layers: Sequence[Any]) -> None:
        """Copies share the arrays' memory, since mlx writes to no array that another one shares memory with.

        So a layer that writes in place pays for one copy of what it holds, in its first write after the mark. Layers
        that always can drop their newest entries, and grow with the whole context, are not copied.
        """
        self.length = length
        self._states = [None if drops_always(layer) else copy.deepcopy(vars(layer)) for layer in layers]

    def restore(self, layers: Sequence[Any]) -> None:
        """Takes the layers it was made of back; any number of times."""
        for layer, state in zip(layers, self._states, strict=True):
            if state is None:
                _drop(layer, self.length)
            else:
                vars(layer).clear()
                vars(layer).update(copy.deepcopy(state))


class SequenceCache:
    """The caches of a model's layers for one sequence, and how many tokens they hold."""

    def __init__(self, make_cache: Callable[[], Cache]) -> None:
        """`make_cache` makes an empty cache."""
        self._make_cache = make_cache
        self._cache = make_cache()
        self._torn = False
        self.length = 0

    def run(self, forward: Callable[[mx.array, Cache], _Result], tokens: mx.array) -> _Result:
        """Runs `tokens [1, L]` after what is held, and appends them. After it raised, nothing but `cut` may follow."""
        # A forward that raises has changed some of the layers.
        self._torn = True
        result = forward(tokens, self._cache)
        self._torn = False
        self.length += tokens.shape[1]
        return result

    def mark(self) -> Mark:
        """Remembers what is held now, so that `cut` can go back to it."""
        return Mark(self.length, layers_of(self._cache))

    def cut(self, length: int, mark: Mark | None) -> int:
        """Drops the newest tokens until `length` are held at most, and returns how many are.

        Fewer than `length` are held where layers cannot drop just those: then as many as at the `mark`, which must
        have been made after the last cut that returned 0, or none.
        """
        if length >= self.length and not self._torn:
            return self.length
        length = min(length, self.length)
        layers = layers_of(self._cache)
        if all(_drops_to(layer, length) for layer in layers):
            for layer in layers:
                _drop(layer, length)
        elif mark is not None and mark.length <= length:
            mark.restore(layers)
            length = mark.length
        else:
            self._cache = self._make_cache()
            length = 0
        self._torn = False
        self.length = length
        return length

    def arrays(self) -> list[mx.array]:
        """The arrays kept alive, for evaluation."""
        return cache_arrays(self._cache)


def cache_arrays(cache: Cache) -> list[mx.array]:
    """The arrays that one sequence's cache keeps alive, for evaluation."""
    return [part for layer in cache for part in _parts(layer.state) if isinstance(part, mx.array)]


def layers_of(cache: Cache) -> list[Any]:
    """The caches of a model, those that share a layer one by one."""
    return [one for layer in cache for one in (layers_of(list(layer.caches)) if type(layer) is CacheList else [layer])]


def drops_always(layer: Any) -> bool:
    """Whether a layer's cache can drop its newest entries whatever it took in before."""
    return type(layer) in (KVCache, QuantizedKVCache)


def is_known(layer: Any) -> bool:
    """Whether a layer's cache is of a class that marks and cuts were written for. Others are copied, and tried."""
    return drops_always(layer) or type(layer) in (RotatingKVCache, ChunkedKVCache, ArraysCache)


def replays(layer: Any) -> bool:
    """Whether what is kept of a verify must be run again when the rest of it is dropped from a layer's cache."""
    return not drops_always(layer) and type(layer) not in (RotatingKVCache, ChunkedKVCache)


def window_of(layer: Any) -> int | None:
    """Tokens after which a layer's cache forgets the oldest; None if it never does, or is no window."""
    if type(layer) is RotatingKVCache:
        return int(layer.max_size)
    return int(layer.chunk_size) if type(layer) is ChunkedKVCache else None


def _drops_to(layer: Any, length: int) -> bool:
    """Whether dropping a layer's newest entries leaves all that tokens from position `length` on may see."""
    if drops_always(layer):
        return True
    if type(layer) is ChunkedKVCache:
        return bool(layer.start_position <= length // layer.chunk_size * layer.chunk_size)
    if type(layer) is not RotatingKVCache:
        return False
    if layer.offset <= length or layer.is_trimmable():
        return True
    keys, _, offset, _, window, end = layer.state
    # A forward of several tokens leaves the entries in order, with as many more as it brought. After a forward of one
    # token that is so only until the window is full.
    left = end - (offset - length)
    return bool(end == keys.shape[2] and (left >= window or left == length))


def _drop(layer: Any, length: int) -> None:
    """Drops a layer's newest entries. It must be able to; one that holds no more than `length` stays as it is."""
    surplus = layer.offset - length
    if surplus <= 0:
        return
    if type(layer) is RotatingKVCache and not layer.is_trimmable():
        # mlx-lm's own trim moves the place of the next entry and leaves the dropped ones in sight.
        keys, values, _, keep, window, end = layer.state
        left = end - surplus
        layer.state = keys[..., :left, :], values[..., :left, :], length, keep, window, left
    else:
        layer.trim(surplus)


def _parts(state: object) -> Sequence[object]:
    if isinstance(state, list | tuple):
        return [leaf for part in state for leaf in _parts(part)]
    return [state]

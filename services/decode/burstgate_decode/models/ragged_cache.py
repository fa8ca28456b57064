"""One KV cache for all rows of a batch, in which every row has a length of its own.

Each layer keeps keys and values `[slots, heads, capacity, size]`. A forward over neighbouring slots writes
each row's new entries behind that row's own, so positions have no holes, and masks every row by its own length.
Dropping entries sets a number back and moves nothing; rows that join or leave copy no row but the one that takes
a place. Capacity grows and shrinks in blocks, so that steady decoding allocates nothing.

mlx-lm's attention takes the layers of a `window` for its own caches. A window of one row behaves bit for bit as
mlx-lm's `KVCache`: no mask for one token, and the keys of just that row.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import mlx.core as mx

from burstgate_decode.models.cache_shape import NOTHING_HELD, CacheShape, blocks, slots_for
from burstgate_decode.models.kv_span import KvSpan
from burstgate_decode.models.packing import Packing
from burstgate_decode.models.sequence_cache import Cache

_Result = TypeVar("_Result")


class RaggedCache:
    """Implements `BatchCache`, and `CopiesSlots`, for layers of full attention."""

    def __init__(self, layers: int) -> None:
        """An empty batch of a model with so many layers."""
        self._layers = [_Layer() for _ in range(layers)]
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
        """Slots and tokens that there is memory for."""
        keys = self._layers[0].keys
        return NOTHING_HELD if keys is None else CacheShape(slots=keys.shape[0], tokens=keys.shape[2])

    def open(self) -> int:
        """Adds an empty slot at the end and returns its place."""
        self._lengths.append(0)
        return len(self._lengths) - 1

    def swap(self, one: int, other: int) -> None:
        """Lets two slots change places."""
        if one != other:
            copies = [copy for layer in self._layers for copy in layer.swap(one, other)]
            # At once: when they are made nothing else holds a layer's array, which is then written and not copied.
            mx.async_eval(copies)
            lengths = self._lengths
            lengths[one], lengths[other] = lengths[other], lengths[one]

    def close_last(self) -> None:
        """Drops the last slot, and memory that the remaining ones are far from needing."""
        self._lengths.pop()
        slots, capacity = len(self._lengths), blocks(max(self._lengths, default=0))
        for layer in self._layers:
            layer.shrink(slots, capacity)

    def mark(self, rows: int) -> None:
        """Does nothing: every slot can be cut to any length."""

    def cut(self, slot: int, length: int) -> int:
        """Drops a slot's newest entries until it holds `length` tokens at most, and returns how many it holds."""
        self._lengths[slot] = min(self._lengths[slot], length)
        return self._lengths[slot]

    def run(self, forward: Callable[[mx.array, Cache], _Result], tokens: mx.array, first: int) -> list[_Result]:
        """Runs all rows in one forward; see `BatchCache.run`."""
        rows, count = tokens.shape
        result = forward(tokens, self.window(first, rows))
        self.extend(first, [count] * rows)
        return [result]

    def run_packed(
        self, forward: Callable[[mx.array, Cache], _Result], tokens: mx.array, packing: Packing, first: int
    ) -> _Result:
        """Like `run`, for the positions of `tokens [B, L]` that count: `forward` is given `[1, T]`."""
        result = forward(packing.pack(tokens), self._window(first, tokens.shape[0], packing))
        self.extend(first, packing.widths)
        return result

    def window(self, first: int, rows: int) -> Cache:
        """The slots from `first` on as a cache for one forward of `rows` rows; it leaves every length as it is."""
        return self._window(first, rows, None)

    def extend(self, first: int, counts: Sequence[int]) -> None:
        """Keeps the first `counts[i]` of the entries that a forward wrote behind slot `first + i`."""
        for row, count in enumerate(counts, first):
            self._lengths[row] += count

    def take(self, slot: int, start: int, stop: int) -> KvSpan | None:
        """Copies a slot's tokens `start` to `stop`, lazily; None when it does not hold them."""
        if not 0 <= start < stop <= self._lengths[slot]:
            return None
        held = [layer.read(slot, start, stop) for layer in self._layers]
        return KvSpan.copied([keys for keys, _ in held], [values for _, values in held])

    def put(self, slot: int, span: KvSpan) -> None:
        """Makes a slot hold exactly what was copied, from its first token on."""
        for layer, (keys, values) in zip(self._layers, span.layers(), strict=True):
            layer.fill(slot, len(self._lengths), keys, values)
        self._lengths[slot] = span.tokens

    def arrays(self) -> list[mx.array]:
        """The arrays kept alive, for evaluation."""
        return [array for layer in self._layers for array in (layer.keys, layer.values) if array is not None]

    def _window(self, first: int, rows: int, packing: Packing | None) -> Cache:
        lengths = tuple(self._lengths[first : first + rows])
        window = _Window(first, lengths, len(self._lengths), packing)
        return [_WindowLayer(layer, window) for layer in self._layers]


class _Layer:
    """Keys and values of one layer, `[slots, heads, capacity, size]`; None until the first forward."""

    def __init__(self) -> None:
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    def write(self, keys: mx.array, values: mx.array, window: "_Window") -> tuple[mx.array, mx.array]:
        """Writes `[B, heads, L, size]`, or packed, and returns everything that the window's rows hold."""
        longest = window.longest_with(keys.shape[2])
        self.keys = window.write(_grown(self.keys, keys, window.slots, longest), keys)
        self.values = window.write(_grown(self.values, values, window.slots, longest), values)
        rows = slice(window.first, window.first + len(window.lengths))
        return self.keys[rows, :, :longest], self.values[rows, :, :longest]

    def read(self, slot: int, start: int, stop: int) -> tuple[mx.array, mx.array]:
        """A slot's keys and values of some of its tokens, `[heads, L, size]`."""
        if self.keys is None or self.values is None:
            raise RuntimeError("nothing was written to the layer yet")
        return self.keys[slot, :, start:stop], self.values[slot, :, start:stop]

    def fill(self, slot: int, slots: int, keys: mx.array, values: mx.array) -> None:
        """Writes `[heads, L, size]` as the first tokens of one of so many slots."""
        self.keys = _filled(self.keys, slot, slots, keys)
        self.values = _filled(self.values, slot, slots, values)

    def swap(self, one: int, other: int) -> list[mx.array]:
        """Returns the copies of the two rows, which the layer is written from later."""
        if self.keys is None or self.values is None:
            return []
        self.keys, keys = _swapped(self.keys, one, other)
        self.values, values = _swapped(self.values, one, other)
        return [keys, values]

    def shrink(self, slots: int, capacity: int) -> None:
        self.keys = _shrunk(self.keys, slots, capacity)
        self.values = _shrunk(self.values, slots, capacity)


class _Window:
    """What all layers of one forward share: its slots, their lengths and where new entries go."""

    def __init__(self, first: int, lengths: tuple[int, ...], slots: int, packing: Packing | None) -> None:
        self.first = first
        self.lengths = lengths
        self.slots = slots
        self.packing = packing
        self._places: dict[tuple[int, ...], mx.array] = {}
        if packing is not None:
            self.offset: int | mx.array = packing.positions(lengths)
        else:
            # One row takes the same path through rotary embeddings as in mlx-lm's own cache.
            self.offset = lengths[0] if len(lengths) == 1 else mx.array(lengths)

    def longest_with(self, count: int) -> int:
        """Tokens of the longest row behind a forward of `count` positions."""
        if self.packing is None:
            return max(self.lengths) + count
        return max(length + width for length, width in zip(self.lengths, self.packing.widths, strict=True))

    def write(self, held: mx.array, new: mx.array) -> mx.array:
        count = new.shape[2]
        if len(self.lengths) == 1:
            start = self.lengths[0]
            held[self.first : self.first + 1, :, start : start + count] = new
            return held
        # As rows of one matrix: an assignment by slots and positions would be three times as many operations.
        places, size = self._places_in(held.shape, new.shape), new.shape[3]
        rows = mx.put_along_axis(held.reshape(-1, size), places, new.reshape(-1, size), axis=0)
        return rows.reshape(held.shape)

    def mask(self, count: int, window_size: int | None) -> mx.array:
        """`[B, 1, L, keys]`: which keys each new token of each row may see."""
        width = count if self.packing is None else self.packing.longest
        keys = mx.arange(self.longest_with(count))
        tokens = (mx.array(self.lengths)[:, None] + mx.arange(width))[:, None, :, None]
        seen = keys <= tokens
        return seen if window_size is None else seen & (keys > tokens - window_size)

    def _places_in(self, held: tuple[int, ...], new: tuple[int, ...]) -> mx.array:
        """Which rows of `[slots * heads * capacity, size]` the new entries are, `[entries, size]`; layers share it."""
        if held not in self._places:
            _, heads, capacity, size = held
            slots, positions = self._new_places(new[2])
            rows = (slots * heads + mx.arange(heads)[:, None]) * capacity + positions
            self._places[held] = mx.broadcast_to(rows.reshape(-1, 1), (rows.size, size))
        return self._places[held]

    def _new_places(self, count: int) -> tuple[mx.array, mx.array]:
        """Slots and positions of `count` new entries of each row `[B, 1, count]`, or of the packed ones `[1, 1, T]`."""
        if self.packing is not None:
            slots = mx.array([self.first + row for row, _ in self.packing.places])
            return slots[None, None], self.packing.positions(self.lengths)[None, None]
        slots = mx.arange(self.first, self.first + len(self.lengths))[:, None, None]
        return slots, (mx.array(self.lengths)[:, None] + mx.arange(count))[:, None]


class _WindowLayer:
    """One layer of a window, with the part of mlx-lm's cache interface that attention uses."""

    def __init__(self, layer: _Layer, window: _Window) -> None:
        self._layer = layer
        self._window = window
        self._eager = mx.default_device() == mx.Device(mx.cpu)
        self.offset = window.offset

    @property
    def packing(self) -> Packing | None:
        """How the forward's positions lie, if not as a rectangle; attention must know."""
        return self._window.packing

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Appends `[B, heads, L, size]`, or packed `[1, heads, T, size]`.

        Returns what the rows hold, side by side, the shorter ones with entries to mask.
        """
        self.offset = self.offset + keys.shape[2]
        held = self._layer.write(keys, values, self._window)
        if self._eager:
            # What is built of the forward computes while the rest is being built.
            mx.async_eval(*held)
        return held

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """The mask for `count` new tokens a row, in whichever form mlx-lm's own cache gives it."""
        one_row = len(self._window.lengths) == 1
        if one_row and not return_array and (window_size is None or self._window.longest_with(count) <= window_size):
            return None if count == 1 else "causal"
        return self._window.mask(count, window_size)


def _grown(held: mx.array | None, new: mx.array, slots: int, tokens: int) -> mx.array:
    _, heads, _, size = new.shape
    if held is None:
        return mx.zeros((slots_for(slots), heads, blocks(tokens), size), new.dtype)
    more_slots, more_tokens = slots - held.shape[0], tokens - held.shape[2]
    if more_slots <= 0 and more_tokens <= 0:
        return held
    added_slots = max(0, slots_for(slots) - held.shape[0])
    added_tokens = max(0, blocks(tokens) - held.shape[2])
    return mx.pad(held, [(0, added_slots), (0, 0), (0, added_tokens), (0, 0)])


def _filled(held: mx.array | None, slot: int, slots: int, new: mx.array) -> mx.array:
    held = _grown(held, new[None], slots, new.shape[1])
    held[slot : slot + 1, :, : new.shape[1]] = new[None]
    return held


def _shrunk(held: mx.array | None, slots: int, capacity: int) -> mx.array | None:
    """Gives back what is not needed, once that is half or more of what is held."""
    if held is None or slots == 0 or capacity == 0:
        return None
    keep_slots = slots_for(slots) if 2 * slots_for(slots) < held.shape[0] else held.shape[0]
    keep_tokens = capacity if 2 * capacity <= held.shape[2] else held.shape[2]
    if (keep_slots, keep_tokens) == (held.shape[0], held.shape[2]):
        return held
    return mx.contiguous(held[:keep_slots, :, :keep_tokens])


def _swapped(held: mx.array, one: int, other: int) -> tuple[mx.array, mx.array]:
    """What is held with two rows in each other's place, and copies of the two `[2, heads, capacity, size]`."""
    missing = max(one, other) + 1 - held.shape[0]
    if missing > 0:
        # A slot that nothing was written to yet.
        held = mx.pad(held, [(0, slots_for(held.shape[0] + missing) - held.shape[0]), (0, 0), (0, 0), (0, 0)])
    # Whole rows are copied at the speed of memory; an assignment by places would go element by element.
    rows = mx.concatenate([held[other : other + 1], held[one : one + 1]])
    held[one : one + 1] = rows[:1]
    held[other : other + 1] = rows[1:]
    return held, rows

"""Runs the cells of a cost table for real: forwards of a pairing's target, and drafting.

A run is what an engine's step does on the device, a verify of K rows for each sequence of a batch and the
drafts before it, less what the host does around it. It must not decide which cells are run, or how often.
"""

from collections.abc import Callable

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from burstgate_decode.drafters.base import Drafter, DraftState
from burstgate_decode.models.calibration_plan import Cell, Timing
from burstgate_decode.models.target import Cache, Target, cache_arrays, cache_length, rewind


class CalibrationBench:
    """One pairing with a filled cache for each batch width and depth that was asked for."""

    def __init__(self, target: Target, drafter: Drafter | None, clock: Callable[[], float]) -> None:
        """`clock` gives milliseconds."""
        self._target = target
        self._drafter = drafter
        self._clock = clock
        self._caches: dict[tuple[int, int], Cache] = {}
        self._drafting: dict[int, _Drafting] = {}

    @property
    def fillable(self) -> bool:
        """Whether caches can be filled without running the target: each layer keeps all keys and values."""
        return all(type(layer) is KVCache for layer in self._target.make_cache())

    def run(self, cell: Cell) -> Timing:
        """Drafts, verifies and takes both back. Drafting is run and timed for one sequence alone."""
        cache = self._cache(cell.width, cell.depth_tokens)
        draft_ms = self._draft_ms(cell)
        start_ms = self._clock()
        logits = self._target.forward(self._tokens(cell.width, cell.draft_width), cache).logits
        mx.eval(mx.argmax(logits, axis=-1))
        verify_ms = self._clock() - start_ms
        rewind(cache, cell.depth_tokens)
        return Timing(verify_ms, draft_ms)

    def _draft_ms(self, cell: Cell) -> float:
        drafting = self._drafting.get(cell.depth_tokens)
        if drafting is None or cell.width > 1 or cell.draft_width == 1:
            return 0.0
        start_ms = self._clock()
        drafting.run(cell.draft_width - 1)
        return self._clock() - start_ms

    def _cache(self, width: int, depth_tokens: int) -> Cache:
        """A cache of `width` sequences that holds `depth_tokens` tokens."""
        place = width, depth_tokens
        if place not in self._caches:
            cache = self._target.make_cache()
            # One token is run for real; what it left is repeated, since a product costs the same whatever its values.
            run_tokens = 1 if self.fillable else depth_tokens
            hidden = self._target.advance(self._tokens(width, run_tokens), cache)
            _fill(cache, depth_tokens - cache_length(cache))
            mx.eval(cache_arrays(cache))
            self._caches[place] = cache
            if width == 1 and hidden is not None and self._drafter is not None:
                tokens = self._tokens(1, depth_tokens)
                self._drafting[depth_tokens] = _Drafting(self._drafter.open(), hidden[:, -1:], tokens)
        return self._caches[place]

    def _tokens(self, width: int, count: int) -> mx.array:
        """Ids `[width, count]` from all over the vocabulary, so that no row repeats another."""
        return (7919 * (1 + mx.arange(width * count)) % self._target.vocab_size).reshape(width, count)


class _Drafting:
    """A drafter's state for one row of a depth."""

    def __init__(self, state: DraftState, hidden: mx.array, tokens: mx.array) -> None:
        """`hidden [1, 1, D]` stands for every position of `tokens [1, L]`."""
        self._state = state
        self._hidden = hidden
        self._newest = tokens[:, -1:]
        self._position = tokens.shape[1]
        if self._position > 1:
            state.observe(mx.repeat(hidden, self._position - 1, axis=1), tokens[:, 1:])

    def run(self, count: int) -> None:
        """Takes the position that a step commits, then drafts."""
        self._state.observe(self._hidden, self._newest)
        mx.eval(self._state.draft(count, self._position, _likeliest))


def _fill(cache: Cache, tokens: int) -> None:
    """Makes each layer `tokens` longer by repeats of its newest keys and values."""
    if tokens < 1:
        return
    for layer in cache:
        newest = (part[..., -1:, :] for part in layer.keys_and_values())
        layer.update_and_fetch(*(mx.repeat(part, tokens, axis=2) for part in newest))


def _likeliest(logits: mx.array, ids: mx.array | None, _position: int) -> mx.array:
    column = mx.argmax(logits, axis=-1)
    return column if ids is None else ids[column]

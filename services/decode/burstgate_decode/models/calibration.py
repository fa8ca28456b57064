"""Runs the cells of a cost table for real: forwards of a pairing's target over a batch, and drafting for it.

A run is what an engine's step does on the device, the drafts and behind them a verify of K tokens for each row of
a batch, less what the host does around it; an engine begins the first draft earlier where the drafter can. It
must not decide which cells are run, or how often.
"""

from collections.abc import Callable

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from burstgate_decode.drafters.base import DraftBatch, Drafter, Kept
from burstgate_decode.models.batch_cache import BatchCache
from burstgate_decode.models.calibration_plan import Cell, Timing
from burstgate_decode.models.sequence_cache import Cache
from burstgate_decode.models.target import Target


class CalibrationBench:
    """One pairing, with rows of every batch width and depth that was asked for."""

    def __init__(self, target: Target, drafter: Drafter | None, clock: Callable[[], float]) -> None:
        """`clock` gives milliseconds."""
        self._target = target
        self._drafter = drafter
        self._clock = clock
        self._rows: dict[tuple[int, int], _Rows] = {}

    @property
    def fillable(self) -> bool:
        """Whether caches can be filled without running the target; see `_Rows`."""
        return _is_fillable(self._target)

    def run(self, cell: Cell) -> Timing:
        """Drafts K - 1 tokens and verifies K for each row, and takes both back."""
        place = cell.width, cell.depth_tokens
        if place not in self._rows:
            self._rows[place] = _Rows(self._target, self._drafter, *place)
        rows = self._rows[place]
        start_ms = self._clock()
        drafts = cell.draft_width > 1 and rows.draft(cell.draft_width - 1)
        drafted_ms = self._clock()
        rows.verify(cell.draft_width)
        return Timing(self._clock() - drafted_ms, drafted_ms - start_ms if drafts else 0.0)


class _Rows:
    """Rows of one depth: what the target and the drafter hold of them.

    Where each layer keeps all keys and values, one token is run for real and its entries are repeated: a
    step over them costs the same whatever they are, and prefilling would take most of the time there is.
    """

    def __init__(self, target: Target, drafter: Drafter | None, width: int, depth_tokens: int) -> None:
        self._target = target
        self._width = width
        self._depth_tokens = depth_tokens
        self._cache = target.make_batch_cache()
        for _ in range(width):
            self._cache.open()
        run_tokens = 1 if _is_fillable(target) else depth_tokens
        ran = self._cache.run(target.advance, self._tokens(run_tokens), 0)
        _repeat_entries(self._cache, depth_tokens - run_tokens)
        mx.eval(self._cache.arrays())
        hidden = [one[:, -1:] for one in ran if one is not None]
        self._hidden = mx.concatenate(hidden) if hidden else None
        self._drafting = self._follow(drafter) if drafter is not None else None

    def draft(self, count: int) -> bool:
        """Takes the position that a step commits, then drafts for each row. False without a drafter."""
        if self._drafting is None or self._hidden is None:
            return False
        self._observe(self._drafting, 1)
        mx.eval(self._drafting.draft(self._width, count, _likeliest))
        return True

    def verify(self, draft_width: int) -> None:
        """Runs so many tokens of each row, reads the target's choices and takes the rows back."""
        self._cache.mark(self._width)
        logits = self._target.forward_rows(self._tokens(draft_width), self._cache, 0).logits
        mx.eval(mx.argmax(logits, axis=-1))
        self._take_back()
        if self._target.replays and draft_width > 1:
            # Most rounds do not keep all drafts, and then run those that they keep again.
            self._cache.run(self._target.advance, self._tokens(draft_width - 1), 0)
            mx.eval(self._cache.arrays())
            self._take_back()
        self._cache.mark(0)

    def _take_back(self) -> None:
        for slot in range(self._width):
            self._cache.cut(slot, self._depth_tokens)

    def _follow(self, drafter: Drafter) -> DraftBatch:
        drafting = drafter.open_batch()
        for _ in range(self._width):
            drafting.open()
        if self._depth_tokens > 1:
            self._observe(drafting, self._depth_tokens - 1)
        return drafting

    def _observe(self, drafting: DraftBatch, count: int) -> None:
        """Tells of so many positions of each row; one hidden state `[B, 1, D]` stands for all."""
        if self._hidden is not None:
            kept = [Kept(row, row, count) for row in range(self._width)]
            drafting.observe(mx.repeat(self._hidden, count, axis=1), self._tokens(count), kept)

    def _tokens(self, count: int) -> mx.array:
        """Ids `[B, count]` from all over the vocabulary, so that no row repeats another."""
        ids = 7919 * (1 + mx.arange(self._width * count)) % self._target.vocab_size
        return ids.reshape(self._width, count)


def _is_fillable(target: Target) -> bool:
    return all(type(layer) is KVCache for layer in target.make_cache())


def _repeat_entries(cache: BatchCache, tokens: int) -> None:
    """Makes every slot `tokens` longer by repeats of the first row's first keys and values."""
    if tokens < 1:
        return
    first = [array[:1, :, :1] for array in cache.arrays()]

    def write(inputs: mx.array, layers: Cache) -> None:
        for layer, keys, values in zip(layers, first[::2], first[1::2], strict=False):
            layer.update_and_fetch(*(_repeated(entry, *inputs.shape) for entry in (keys, values)))

    cache.run(write, mx.zeros((len(cache.lengths), tokens), mx.int32), 0)


def _repeated(entry: mx.array, rows: int, tokens: int) -> mx.array:
    _, heads, _, size = entry.shape
    return mx.broadcast_to(entry, (rows, heads, tokens, size))


def _likeliest(logits: mx.array, ids: mx.array | None, _depth: int) -> mx.array:
    column = mx.argmax(logits, axis=-1)
    return column if ids is None else ids[column]

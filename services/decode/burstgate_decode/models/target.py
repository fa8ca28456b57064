"""The target model as the engine and the drafters see it.

Owns the split of an mlx-lm model into trunk (tokens to hidden states) and head (hidden states to
logits), which drafters need and mlx-lm does not offer. The split is used only when it reproduces the
model's own logits bit for bit; otherwise the target still decodes, but no drafter that reads hidden
states fits it. Knows nothing of requests, sampling or speculation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, make_prompt_cache

from burstgate_decode.models.batch_cache import BatchCache, SeparateCaches
from burstgate_decode.models.packing import Packing
from burstgate_decode.models.ragged_cache import RaggedCache
from burstgate_decode.models.sequence_cache import Cache, SequenceCache, is_known, layers_of, replays, window_of

_TENSOR_CORE_ROUNDING = 2.0**-10


@dataclass(frozen=True)
class Step:
    """One forward. `logits` is `[B, L, V]`; `hidden` is `[B, L, D]`, or None when it is not exposed."""

    logits: mx.array
    hidden: mx.array | None
    packing: Packing | None = None
    """With one, `logits` is `[1, T, V]`."""

    def logits_of(self, row: int) -> mx.array:
        """A row's logits: `[L, V]`, or of a packed one so many as it has positions."""
        return self.logits[row] if self.packing is None else self.packing.of_row(self.logits, row)


@dataclass(frozen=True)
class Split:
    """A model's trunk, head and input embedding."""

    trunk: Callable[..., mx.array]
    head: Callable[[mx.array], mx.array]
    embed: Callable[[mx.array], mx.array]
    embedding_table: Callable[[], mx.array]


@dataclass(frozen=True)
class Target:
    """A loaded target: its model, tokenizer and the facts that requests are checked against."""

    model: nn.Module = field(repr=False)
    tokenizer: Any = field(repr=False)
    name: str
    path: Path
    fingerprint: str
    model_type: str
    dtype: str
    vocab_size: int
    context_length: int
    eos_token_ids: frozenset[int]
    has_chat_template: bool
    split: Split | None = field(repr=False)
    shares_forwards: bool = True
    """Whether rows of different lengths may share a forward; otherwise each runs its own."""
    irreversible_caches: tuple[str, ...] = ()
    """Classes of caches that cannot be taken back to fewer tokens; with one of them nothing speculates."""
    packs_rows: bool = False
    """Whether rows of different widths run without what lies behind the shorter ones."""

    def make_cache(self) -> Cache:
        """An empty cache for one sequence."""
        cache: Cache = make_prompt_cache(self.model)
        return cache

    def make_batch_cache(self) -> BatchCache:
        """An empty cache for rows that come and go."""
        return RaggedCache(len(self.make_cache())) if self.shares_forwards else SeparateCaches(self.make_cache)

    def forward_rows(
        self, tokens: mx.array, cache: BatchCache, first: int, widths: Sequence[int] | None = None
    ) -> Step:
        """Runs `tokens [B, L]` after what the B slots from `first` on hold, and appends them. Lazy.

        Of row i the first `widths[i]` count, of one row at least all. What lies behind them may be left out; if not, it
        is appended too.
        """
        if widths is not None and self.packs_rows and min(widths) < tokens.shape[1] and isinstance(cache, RaggedCache):
            packing = Packing(tuple(widths))
            packed = cache.run_packed(self.forward, tokens, packing, first)
            hidden = None if packed.hidden is None else packing.spread(packed.hidden)
            return Step(packed.logits, hidden, packing)
        steps = cache.run(self.forward, tokens, first)
        if len(steps) == 1:
            return steps[0]
        separate = [step.hidden for step in steps if step.hidden is not None]
        logits = mx.concatenate([step.logits for step in steps], axis=0)
        return Step(logits, mx.concatenate(separate, axis=0) if separate else None)

    def forward(self, tokens: mx.array, cache: Cache) -> Step:
        """Runs `tokens [B, L]` after what `cache` holds, and appends them to it. Lazy."""
        if self.split is None:
            return Step(self.model(tokens, cache=cache), None)
        hidden = self.split.trunk(tokens, cache)
        return Step(self.split.head(hidden), hidden)

    def forward_last(self, tokens: mx.array, cache: Cache) -> Step:
        """Like `forward`, with the logits of the last token alone, `[B, 1, V]`."""
        if self.split is None:
            return Step(self.model(tokens, cache=cache)[:, -1:], None)
        hidden = self.split.trunk(tokens, cache)
        return Step(self.split.head(hidden[:, -1:]), hidden)

    def advance(self, tokens: mx.array, cache: Cache) -> mx.array | None:
        """Like `forward` without the head, for prompt chunks whose logits nobody reads."""
        if self.split is None:
            self.model(tokens, cache=cache)
            return None
        hidden: mx.array = self.split.trunk(tokens, cache)
        return hidden

    @property
    def replays(self) -> bool:
        """Whether a verify that was not kept whole costs another forward, of the tokens that were."""
        return any(replays(layer) for layer in layers_of(self.make_cache()))

    @property
    def windows(self) -> list[int]:
        """After how many tokens layers forget the oldest: each number once, ascending."""
        found = {window_of(layer) for layer in layers_of(self.make_cache())}
        return sorted(window for window in found if window is not None)


def split_model(model: nn.Module, vocab_size: int) -> Split | None:
    """Finds trunk and head of an mlx-lm model; None when they do not reproduce its logits exactly."""
    for owner in (getattr(model, "language_model", None), model):
        trunk = getattr(owner, "model", None)
        embedding = getattr(trunk, "embed_tokens", None)
        if not callable(trunk) or not isinstance(embedding, nn.Embedding | nn.QuantizedEmbedding):
            continue
        lm_head = getattr(owner, "lm_head", None)
        split = Split(trunk, lm_head or embedding.as_linear, embedding, partial(_table, embedding))
        if _reproduces(model, split, vocab_size):
            return split
    return None


def takes_ragged_cache(model: nn.Module, vocab_size: int) -> bool:
    """Whether rows of different lengths can share a forward of this mlx-lm model.

    They can where every layer keeps all keys and values, and where the model runs a row of such a batch as it
    runs the row alone: up to rounding here, since bits are the exactness probe's business.
    """
    if any(type(layer) is not KVCache for layer in make_prompt_cache(model)):
        return False
    rows = [[(7 * place + 11 * row + 1) % vocab_size for place in range(length)] for row, length in enumerate((3, 9))]
    last = mx.array([[1], [2]])
    try:
        batch = RaggedCache(len(make_prompt_cache(model)))
        alone = []
        for row, tokens in enumerate(rows):
            batch.run(lambda inputs, cache: model(inputs, cache=cache), mx.array([tokens]), batch.open())
            cache = make_prompt_cache(model)
            model(mx.array([tokens]), cache=cache)
            alone.append(model(last[row : row + 1], cache=cache))
        (together,) = batch.run(lambda inputs, cache: model(inputs, cache=cache), last, 0)
    except (TypeError, ValueError, AttributeError, IndexError):
        return False
    return _agree(together, mx.concatenate(alone, axis=0))


def packs_rows(model: nn.Module, vocab_size: int) -> bool:
    """Whether packed rows of different widths have, in an mlx-lm model, the very bits that they have side by side.

    Only for models that take a ragged cache.
    """
    widths, lengths, longest = (2, 5, 1), (4, 1, 3), 5
    rows = mx.array([[(7 * place + 11 * row + 1) % vocab_size for place in range(longest)] for row in range(3)])

    def forward(tokens: mx.array, cache: Cache) -> mx.array:
        logits: mx.array = model(tokens, cache=cache)
        return logits

    def opened() -> RaggedCache:
        cache = RaggedCache(len(make_prompt_cache(model)))
        for row, length in enumerate(lengths):
            cache.run(forward, rows[row : row + 1, :length], cache.open())
        return cache

    packing, side_by_side, packed = Packing(widths), opened(), opened()
    try:
        (expected,) = side_by_side.run(forward, rows, 0)
        found = packing.spread(packed.run_packed(forward, rows, packing, 0))
        for row, (length, width) in enumerate(zip(lengths, widths, strict=True)):
            side_by_side.cut(row, length + width)
            if not mx.array_equal(found[row, :width], expected[row, :width]).item():
                return False
        (expected,), (found,) = (cache.run(forward, rows[:, :1], 0) for cache in (side_by_side, packed))
        return bool(mx.array_equal(found, expected).item())
    except (TypeError, ValueError, AttributeError, IndexError):
        return False


def irreversible_caches(model: nn.Module, vocab_size: int) -> tuple[str, ...]:
    """The classes of an mlx-lm model's caches that cannot be taken back; none if all can.

    Only classes that `SequenceCache` does not know are tried, all at once: a few tokens are read, then wrong ones, and
    the cache is cut to some of the former. What it computes next must be, up to rounding, what it computes had it
    never seen the latter. Known classes are spared that, since rounding may send a token to other experts.
    """
    unknown = tuple(
        sorted({type(layer).__name__ for layer in layers_of(make_prompt_cache(model)) if not is_known(layer)})
    )
    if not unknown:
        return ()
    tokens, cuts, ahead = mx.array([[(7 * place + 1) % vocab_size for place in range(10)]]), (5, 7), 9

    def forward(inputs: mx.array, cache: Cache) -> mx.array:
        logits: mx.array = model(inputs, cache=cache)
        return logits

    try:
        for length in cuts:
            straight, back = (SequenceCache(partial(make_prompt_cache, model)) for _ in range(2))
            straight.run(forward, tokens[:, :length])
            back.run(forward, tokens[:, : cuts[0]])
            mark = back.mark()
            back.run(forward, mx.concatenate([tokens[:, cuts[0] : length], tokens[:, : ahead - length]], axis=1))
            held = back.cut(length, mark)
            if held < length:
                back.run(forward, tokens[:, held:length])
            following = tokens[:, length : length + 1]
            if not _agree(back.run(forward, following), straight.run(forward, following)):
                return unknown
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError):
        return unknown
    return ()


def _agree(found: mx.array, expected: mx.array) -> bool:
    # Far above the rounding of sums in another order, far below what a wrong position, mask or state does. Products of
    # float32 may run on GPUs with the ten bits that tensor cores keep.
    rounding = 0.0 if mx.default_device() == mx.Device(mx.cpu) else _TENSOR_CORE_ROUNDING
    tolerance = max(float(mx.finfo(expected.dtype).eps), rounding) ** 0.5
    difference = mx.max(mx.abs(found.astype(mx.float32) - expected.astype(mx.float32)))
    return bool((difference <= tolerance * mx.max(mx.abs(expected)).astype(mx.float32)).item())


def _reproduces(model: nn.Module, split: Split, vocab_size: int) -> bool:
    tokens = mx.array([[(7 * i + 1) % vocab_size for i in range(6)]])
    try:
        whole = model(tokens, cache=make_prompt_cache(model))
        parts = split.head(split.trunk(tokens, make_prompt_cache(model)))
    except (TypeError, ValueError, AttributeError):
        return False
    return bool(whole.shape == parts.shape and mx.array_equal(whole, parts).item())


def _table(embedding: nn.Embedding | nn.QuantizedEmbedding) -> mx.array:
    if isinstance(embedding, nn.QuantizedEmbedding):
        return mx.dequantize(embedding.weight, embedding.scales, embedding.biases, embedding.group_size, embedding.bits)
    weight: mx.array = embedding.weight
    return weight

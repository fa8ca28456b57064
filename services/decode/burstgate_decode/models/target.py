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
from typing import Any, TypeAlias

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache

Cache: TypeAlias = list[Any]


@dataclass(frozen=True)
class Step:
    """One forward. `logits` is `[B, L, V]`; `hidden` is `[B, L, D]`, or None when it is not exposed."""

    logits: mx.array
    hidden: mx.array | None


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

    def make_cache(self) -> Cache:
        """An empty cache for one sequence."""
        cache: Cache = make_prompt_cache(self.model)
        return cache

    def forward(self, tokens: mx.array, cache: Cache) -> Step:
        """Runs `tokens [B, L]` after what `cache` holds, and appends them to it. Lazy."""
        if self.split is None:
            return Step(self.model(tokens, cache=cache), None)
        hidden = self.split.trunk(tokens, cache)
        return Step(self.split.head(hidden), hidden)

    def advance(self, tokens: mx.array, cache: Cache) -> mx.array | None:
        """Like `forward` without the head, for prompt chunks whose logits nobody reads."""
        if self.split is None:
            self.model(tokens, cache=cache)
            return None
        hidden: mx.array = self.split.trunk(tokens, cache)
        return hidden

    @property
    def rewindable(self) -> bool:
        """Whether every layer's cache can drop its newest entries."""
        return bool(can_trim_prompt_cache(self.make_cache()))


def cache_length(cache: Cache) -> int:
    """Tokens a cache holds."""
    return int(cache[0].offset)


def rewind(cache: Cache, length: int) -> None:
    """Drops the newest entries until the cache holds `length` tokens."""
    surplus = cache_length(cache) - length
    if surplus > 0 and trim_prompt_cache(cache, surplus) != surplus:
        raise RuntimeError(f"the cache dropped fewer than {surplus} tokens")


def cache_arrays(cache: Cache) -> list[mx.array]:
    """The arrays a cache keeps alive, for evaluation."""
    arrays: list[mx.array] = []
    for layer in cache:
        arrays.extend(part for part in _leaves(layer.state) if isinstance(part, mx.array))
    return arrays


def linear_shapes(model: nn.Module) -> list[tuple[int, int]]:
    """`[N, K]` of every float32 weight that rows are multiplied by, each once."""
    shapes = {
        (weight.shape[0], weight.shape[1]): None
        for module in model.modules()
        if isinstance(module, nn.Linear | nn.Embedding)
        and isinstance(weight := module.weight, mx.array)
        and weight.dtype == mx.float32
    }
    return list(shapes)


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


def _leaves(state: object) -> Sequence[object]:
    if isinstance(state, list | tuple):
        return [leaf for part in state for leaf in _leaves(part)]
    return [state]

"""Attention on CPUs of operations that are fast there.

MLX has no CPU kernel for attention. It composes one, whose softmax calls a function for every single exponential, and
which multiplies by the same keys once for each head that shares them. Here exponentials are a fused kernel, and heads
that share keys are rows of one product. The results have the same bits, which is checked on the model itself before it
stays so.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import scaled_dot_product_attention

from burstgate_decode.models.packing import Packing
from burstgate_decode.models.same_bits import change_if_same
from burstgate_decode.models.softmax import softmax

# Rows of one product. The BLAS computes larger ones otherwise, and heads one by one may be smaller.
_MOST_FOLDED_ROWS = 128
# What mlx-lm's models call it, each in its own module.
_NAME = scaled_dot_product_attention.__name__


def use_cpu_attention(model: nn.Module, vocab_size: int) -> bool:
    """Gives an mlx-lm model this attention if it then computes the same bits; whether it does.

    All models of the same classes have it then, such as a drafter's block.
    """
    return change_if_same(model, vocab_size, partial(_put_in_place, model), partial(_put_back, model))


@contextmanager
def original_attention(model: nn.Module) -> Iterator[None]:
    """The model as mlx-lm made it, for the length of the block."""
    changed = _put_back(model)
    try:
        yield
    finally:
        for module in changed:
            setattr(module, _NAME, attention)


def attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: mx.array | str | None,
    sinks: mx.array | None = None,
) -> mx.array:
    """Takes the place of mlx-lm's function: `queries [B, H, L, D]` over `keys` and `values [B, heads, N, D]`.

    What is not float32, or masked by numbers, is left to that. A cache whose rows are packed has `[1, H, T, D]`.
    """
    packing: Packing | None = getattr(cache, "packing", None)
    if packing is not None:
        queries = packing.spread_heads(queries)
    masked_by_numbers = isinstance(mask, mx.array) and mask.dtype != mx.bool_
    if queries.dtype != mx.float32 or masked_by_numbers or sinks is not None or hasattr(cache, "bits"):
        attended = scaled_dot_product_attention(queries, keys, values, cache, scale, mask, sinks)
    else:
        attended = _attend(queries, keys, values, scale, mask)
    result: mx.array = attended if packing is None else packing.pack_heads(attended)
    return result


def _attend(queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array | str | None) -> mx.array:
    rows, heads, count, _ = queries.shape
    shared, length = keys.shape[1:3]
    folded = heads // shared * count if heads // shared * count <= _MOST_FOLDED_ROWS else count
    products = (rows, shared, heads // shared * count // folded, folded)
    scores = (scale * queries).reshape(*products, -1) @ keys[:, :, None].swapaxes(-1, -2)
    if mask is not None:
        seen = _causal(count, length) if isinstance(mask, str) else mask
        scores = _masked(seen, scores.reshape(rows, heads, count, length)).reshape(scores.shape)
    return (softmax(scores) @ values[:, :, None]).reshape(rows, heads, count, -1)


@partial(mx.compile, shapeless=True)
def _masked(seen: mx.array, scores: mx.array) -> mx.array:
    return mx.where(seen, scores, mx.finfo(mx.float32).min)


def _causal(count: int, length: int) -> mx.array:
    return mx.arange(length - count, length)[:, None] >= mx.arange(length)


def _put_in_place(model: nn.Module) -> None:
    for module in _modules(model, scaled_dot_product_attention):
        setattr(module, _NAME, attention)


def _put_back(model: nn.Module) -> list[ModuleType]:
    changed = _modules(model, attention)
    for module in changed:
        setattr(module, _NAME, scaled_dot_product_attention)
    return changed


def _modules(model: nn.Module, function: object) -> list[ModuleType]:
    """The Python modules of the model's layers in which that is the function's name."""
    found = {type(layer).__module__ for layer in model.modules()}
    return [sys.modules[name] for name in sorted(found) if getattr(sys.modules[name], _NAME, None) is function]

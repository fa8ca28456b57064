"""Rotary embeddings on CPUs from one table of sines a forward.

MLX has no CPU kernel for rotary embeddings: each call composes some fifteen operations and works the sines out
anew, for queries and keys of every layer. Here all calls of a forward share them, and a call is three operations.
The results have the same bits, which is checked on the model itself before it stays so.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from burstgate_decode.models.same_bits import change_if_same

# More positions, as in prompts, gain nothing: arithmetic outweighs the operations.
_MOST_POSITIONS = 16


def use_table_ropes(model: nn.Module, vocab_size: int) -> bool:
    """Swaps in rotary embeddings with shared tables if the model then computes the same bits; whether it does."""
    return change_if_same(model, vocab_size, partial(share_rope_tables, model), partial(_swap_out, model))


def share_rope_tables(model: nn.Module) -> None:
    """Swaps in rotary embeddings with shared tables, unchecked: for drafters, whose bits change no text."""
    # Modules that rotate alike share one table.
    tables: dict[tuple[int, bool, float, float], TableRope] = {}
    for owner, rope in _ropes(model):
        if type(rope) is nn.RoPE:
            owner.rope = tables.setdefault((rope.dims, rope.traditional, rope.base, rope.scale), TableRope(rope))


@contextmanager
def original_ropes(model: nn.Module) -> Iterator[None]:
    """The model as mlx-lm made it, for the length of the block."""
    swapped = _swap_out(model)
    try:
        yield
    finally:
        for owner, rope in swapped:
            owner.rope = rope


def _swap_out(model: nn.Module) -> "list[tuple[nn.Module, TableRope]]":
    swapped = [(owner, rope) for owner, rope in _ropes(model) if isinstance(rope, TableRope)]
    for owner, rope in swapped:
        owner.rope = rope.original
    return swapped


def _ropes(model: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    return [(module, module.rope) for module in model.modules() if isinstance(module.get("rope"), nn.Module)]


class TableRope(nn.Module):  # type: ignore[misc]
    """Takes the place of `nn.RoPE`."""

    def __init__(self, original: nn.RoPE) -> None:
        """Rotates as `original` does."""
        super().__init__()
        self._original = original
        half = original.dims // 2
        self._frequencies = mx.exp(mx.arange(half, dtype=mx.float32) * -(mx.log(mx.array(original.base)) / half))
        # Lazy arrays belong to the thread that made them, and a model may be loaded on another than it runs on.
        mx.eval(self._frequencies)
        self._offset: int | mx.array | None = None
        self._count = 0

    @property
    def original(self) -> nn.RoPE:
        """What it took the place of."""
        return self._original

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """Rotates `x [B, heads, L, dims]`, whose first positions are `offset`: one for all rows, or `[B]`.

        Of packed rows, `[1, heads, T, dims]`, it is the position of each, `[T]`.
        """
        count, dims = x.shape[-2:]
        packed = isinstance(offset, mx.array) and offset.size == count > x.shape[0]
        if (count > _MOST_POSITIONS and not packed) or dims != self._original.dims or x.dtype != mx.float32:
            rotated: mx.array = self._original(x, offset=offset)
            return rotated
        # The same object for every layer of a forward, or the same number.
        if count != self._count or (offset is not self._offset and not _same_number(offset, self._offset)):
            self._make_tables(offset, count, packed)
        return _turned(x, _partners(x, self._original.traditional), self._cosines, self._sines)

    def _make_tables(self, offset: int | mx.array, count: int, packed: bool) -> None:
        first = offset if isinstance(offset, mx.array) else mx.array(offset)
        steps = first[None] if packed else first.reshape(-1, 1) + mx.arange(count)
        positions = steps.astype(mx.float32) * self._original.scale
        angles = (positions[..., None] * self._frequencies)[:, None]
        cosines, sines = mx.cos(angles), mx.sin(angles)
        if self._original.traditional:
            self._cosines = mx.repeat(cosines, 2, axis=-1)
            self._sines = mx.stack([-sines, sines], axis=-1).reshape(self._cosines.shape)
        else:
            self._cosines = mx.concatenate([cosines, cosines], axis=-1)
            self._sines = mx.concatenate([-sines, sines], axis=-1)
        self._offset, self._count = offset, count


def _same_number(one: int | mx.array, other: int | mx.array | None) -> bool:
    return isinstance(one, int) and isinstance(other, int) and one == other


def _partners(x: mx.array, traditional: bool) -> mx.array:
    """Each element's partner in its rotation."""
    half = x.shape[-1] // 2
    if traditional:
        return x.reshape(*x.shape[:-1], half, 2)[..., ::-1].reshape(x.shape)
    return mx.concatenate([x[..., half:], x[..., :half]], axis=-1)


@partial(mx.compile, shapeless=True)
def _turned(x: mx.array, partners: mx.array, cosines: mx.array, sines: mx.array) -> mx.array:
    return x * cosines + partners * sines

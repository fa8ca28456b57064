"""Layers on CPUs of fewer operations.

MLX has no CPU kernel for root-mean-square norms: each composes thirteen operations. Building one and handing it
to the thread that computes takes time on the cores that compute, however little it does, and a step of a small model
has thousands. Here a norm of a step is a square, a sum and a fused kernel, and a linear layer keeps the transposed view
of its weight. The results have the same bits, which is checked on the model itself before it stays so.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from burstgate_decode.models.same_bits import change_if_same

# More positions, as in prompts, gain nothing: a kernel that broadcasts outweighs the operations.
_MOST_POSITIONS = 64


def use_lean_layers(model: nn.Module, vocab_size: int) -> bool:
    """Swaps in layers of fewer operations if the model then computes the same bits; whether it does."""
    return change_if_same(model, vocab_size, partial(make_layers_lean, model), partial(_put_back, model))


def make_layers_lean(model: nn.Module) -> None:
    """Swaps in layers of fewer operations, unchecked: for drafters, whose bits change no text."""
    for layer in model.modules():
        if type(layer) is nn.RMSNorm:
            layer.__class__ = _LeanNorm
        elif type(layer) is nn.Linear:
            layer.__class__ = _LeanLinear
            layer.keep_view()


@contextmanager
def original_layers(model: nn.Module) -> Iterator[None]:
    """The model as mlx-lm made it, for the length of the block."""
    changed = _put_back(model)
    try:
        yield
    finally:
        for layer, lean in changed:
            layer.__class__ = lean


def _put_back(model: nn.Module) -> list[tuple[nn.Module, type[nn.Module]]]:
    """Returns the layers that were lean, and the classes they had."""
    changed = [(layer, type(layer)) for layer in model.modules() if isinstance(layer, _LeanNorm | _LeanLinear)]
    for layer, lean in changed:
        layer.__class__ = nn.RMSNorm if lean is _LeanNorm else nn.Linear
    return changed


class _LeanNorm(nn.RMSNorm):  # type: ignore[misc]
    """Takes the place of `nn.RMSNorm`."""

    def __call__(self, x: mx.array) -> mx.array:
        size = x.shape[-1]
        if x.size > _MOST_POSITIONS * size or x.dtype != mx.float32:
            whole: mx.array = super().__call__(x)
            return whole
        return _norm(x, self.weight, self.eps, 1 / size)


class _LeanLinear(nn.Linear):  # type: ignore[misc]
    """Takes the place of `nn.Linear`."""

    def keep_view(self) -> None:
        """Evaluates the transposed view; to be called again whenever the weight changes."""
        # Not parameters, since their names begin so.
        self._transposed = self.weight.T
        self._of_one = self._transposed[None]
        mx.eval(self._transposed, self._of_one)

    def __call__(self, x: mx.array) -> mx.array:
        if "bias" in self:
            return mx.addmm(self.bias, x, self._transposed)
        # Otherwise MLX makes a matrix of the batch and a batch of the product.
        product: mx.array = x @ (self._of_one if x.ndim == 3 and x.shape[0] == 1 else self._transposed)
        return product


@partial(mx.compile, shapeless=True)
def _norm(x: mx.array, weight: mx.array, eps: float, share: float) -> mx.array:
    # Without `mx.mean`, which counts the elements in an operation of its own.
    mean = mx.sum(mx.square(x), axis=-1, keepdims=True) * share
    return x * mx.rsqrt(mean + eps) * weight

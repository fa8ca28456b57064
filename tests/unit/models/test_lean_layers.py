"""Layers of fewer operations have the bits of MLX's own, and are given up where they have not."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from tests.unit.models.tiny import VOCAB, tiny_llama

from burstgate_decode.models import lean_layers
from burstgate_decode.models.lean_layers import make_layers_lean, original_layers, use_lean_layers


def kinds_of(model: Any) -> set[str]:
    return {type(layer).__name__ for layer in model.modules() if isinstance(layer, nn.RMSNorm | nn.Linear)}


@pytest.mark.parametrize("count", [1, 8, 64, 65])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_norm(count: int, dtype: mx.Dtype) -> None:
    norm, lean = nn.RMSNorm(96, eps=1e-6), nn.RMSNorm(96, eps=1e-6)
    norm.weight = lean.weight = mx.random.normal((96,)).astype(dtype)
    make_layers_lean(lean)
    # As large and as small as hidden states get, and a position of zeros.
    x = mx.random.normal((1, count, 96)) * mx.exp(4 * mx.random.normal((1, count, 1)))
    x[0, 0] = 0.0
    x = x.astype(dtype)
    assert lean(x).dtype == dtype
    assert mx.array_equal(lean(x), norm(x)).item()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5,), (1, 5), (2, 5), (1, 2, 5)])
def test_a_linear_layer(bias: bool, shape: tuple[int, ...]) -> None:
    linear = nn.Linear(96, 32, bias=bias)
    x = mx.random.normal((*shape, 96))
    expected = linear(x)
    mx.eval(expected)
    names = [name for name, _ in tree_flatten(linear.parameters())]
    make_layers_lean(linear)
    assert linear(x).shape == expected.shape
    assert mx.array_equal(linear(x), expected).item()
    # No view is a parameter of the model.
    assert [name for name, _ in tree_flatten(linear.parameters())] == names


def test_a_model_keeps_the_layers_and_gives_them_back_for_a_block() -> None:
    model = tiny_llama()
    assert use_lean_layers(model, VOCAB)
    assert kinds_of(model) == {"_LeanNorm", "_LeanLinear"}
    with original_layers(model):
        assert kinds_of(model) == {"RMSNorm", "Linear"}
        expected = model(mx.array([[1, 2, 3]]), cache=make_prompt_cache(model))
    assert kinds_of(model) == {"_LeanNorm", "_LeanLinear"}
    assert mx.array_equal(model(mx.array([[1, 2, 3]]), cache=make_prompt_cache(model)), expected).item()


def test_a_model_that_kept_its_own_layers_still_has_them_after_the_block() -> None:
    model = tiny_llama()
    with original_layers(model):
        pass
    assert kinds_of(model) == {"RMSNorm", "Linear"}


def test_a_model_whose_bits_change_gets_its_own_layers_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama()
    monkeypatch.setattr(lean_layers, "_norm", lambda x, weight, eps, _: mx.fast.rms_norm(x, weight, eps) + 1e-6)
    assert not use_lean_layers(model, VOCAB)
    assert kinds_of(model) == {"RMSNorm", "Linear"}


def test_layers_of_other_classes_are_left_alone() -> None:
    class Scaled(nn.Linear):  # type: ignore[misc]
        def __call__(self, x: mx.array) -> mx.array:
            scaled: mx.array = 2 * super().__call__(x)
            return scaled

    layer = Scaled(8, 8)
    make_layers_lean(layer)
    assert type(layer) is Scaled

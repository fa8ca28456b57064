"""The softmax with a fused kernel is MLX's own, bit for bit, whole and at single places."""

import mlx.core as mx
import pytest

from burstgate_decode.models.softmax import softmax, softmax_at


@pytest.mark.parametrize("shape", [(3,), (2, 700), (8, 8192), (2, 3, 4, 211)])
@pytest.mark.parametrize("scale", [0.01, 4.0, 300.0])
def test_the_bits_are_those_of_mlx(shape: tuple[int, ...], scale: float) -> None:
    scores = scale * mx.random.normal(shape)
    assert mx.array_equal(softmax(scores), mx.softmax(scores, axis=-1, precise=True)).item()


def test_single_places_are_those_of_the_whole() -> None:
    scores = 5.0 * mx.random.normal((6, 900))
    columns = mx.concatenate([mx.argmax(scores, axis=-1, keepdims=True), mx.random.randint(0, 900, (6, 2))], axis=1)
    whole = mx.take_along_axis(mx.softmax(scores, axis=-1), columns, axis=-1)
    assert mx.allclose(softmax_at(scores, columns), whole, rtol=1e-6).item()


def test_what_is_masked_weighs_nothing() -> None:
    scores = mx.where(mx.arange(2000) < 700, mx.random.normal((2, 2000)), mx.finfo(mx.float32).min)
    weights = softmax(scores)
    assert mx.array_equal(weights[:, 700:], mx.zeros((2, 1300))).item()
    assert mx.array_equal(weights[:, :700], softmax(scores[:, :700])).item()

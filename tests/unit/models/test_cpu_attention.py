"""Attention composed for CPUs has the bits of MLX's own, and is given up where it has not."""

import mlx.core as mx
import pytest
from mlx_lm.models import llama
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import QuantizedKVCache, make_prompt_cache
from tests.unit.models.tiny import VOCAB, tiny_llama

from burstgate_decode.models import softmax
from burstgate_decode.models.cpu_attention import attention, original_attention, use_cpu_attention

pytestmark = pytest.mark.usefixtures("exact_rows")


def operands(
    rows: int, heads: tuple[int, int], count: int, length: int, size: int = 64
) -> tuple[mx.array, mx.array, mx.array]:
    """Queries, keys and values, laid out as a model and a cache with room to grow do."""
    queries = mx.random.normal((rows, count, heads[0], size)).transpose(0, 2, 1, 3)
    held = [mx.random.normal((rows, heads[1], length + 9, size))[:, :, :length] for _ in range(2)]
    return queries, held[0], held[1]


@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (40, 2), (2, 1)])
@pytest.mark.parametrize("count", [1, 3, 8, 40])
@pytest.mark.parametrize("length", [40, 211])
def test_the_bits_are_those_of_mlx(heads: tuple[int, int], count: int, length: int) -> None:
    mx.random.seed(heads[0] + count + length)
    for rows in (1, 5):
        queries, keys, values = operands(rows, heads, count, length)
        ends = mx.array([length - 3 * row for row in range(rows)])[:, None, None, None]
        ragged = mx.arange(length) < ends - mx.arange(count)[::-1][:, None]
        for mask in (None, "causal", ragged, ragged[:1, 0]):
            found = attention(queries, keys, values, None, 0.125, mask)
            expected = scaled_dot_product_attention(queries, keys, values, None, 0.125, mask)
            assert mx.array_equal(found, expected).item(), (rows, mask)


def test_few_and_many_scores_have_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, keys, values = operands(2, (9, 3), 2, 300)
    few = attention(queries, keys, values, None, 0.3, None)
    monkeypatch.setattr(softmax, "_LEAST_SCORES", 10**9)
    assert mx.array_equal(attention(queries, keys, values, None, 0.3, None), few).item()


def test_values_may_be_smaller_than_keys() -> None:
    queries, keys, values = operands(2, (6, 2), 4, 70)
    expected = scaled_dot_product_attention(queries, keys, values[..., :32], None, 1.0, None)
    assert mx.array_equal(attention(queries, keys, values[..., :32], None, 1.0, None), expected).item()


def test_what_it_does_not_know_is_left_to_mlx() -> None:
    queries, keys, values = operands(1, (4, 2), 3, 30)
    added = mx.where(mx.arange(30) < 20, 0.0, -1e9)
    halves = [one.astype(mx.bfloat16) for one in (queries, keys, values)]
    for given, mask, sinks in (
        ((queries, keys, values), added, None),
        ((queries, keys, values), None, mx.random.normal((4,))),
        (halves, None, None),
    ):
        expected = scaled_dot_product_attention(*given, None, 1.0, mask, sinks)
        assert mx.array_equal(attention(*given, None, 1.0, mask, sinks), expected).item()


def test_quantised_keys_are_left_to_mlx_lm() -> None:
    cache = QuantizedKVCache(group_size=32, bits=8)
    queries, keys, values = operands(1, (4, 2), 3, 3)
    held = cache.update_and_fetch(keys, values)
    expected = scaled_dot_product_attention(queries, *held, cache, 1.0, "causal")
    assert mx.array_equal(attention(queries, *held, cache, 1.0, "causal"), expected).item()


def test_a_model_keeps_it_and_gives_it_back_for_a_block() -> None:
    model = tiny_llama()
    assert use_cpu_attention(model, VOCAB)
    assert llama.scaled_dot_product_attention is attention
    with original_attention(model):
        assert llama.scaled_dot_product_attention is scaled_dot_product_attention
        expected = model(mx.array([[1, 2, 3]]), cache=make_prompt_cache(model))
    assert llama.scaled_dot_product_attention is attention
    assert mx.array_equal(model(mx.array([[1, 2, 3]]), cache=make_prompt_cache(model)), expected).item()


def test_a_model_whose_bits_change_gets_its_own_attention_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "_exponentials", lambda scores, largest: mx.exp(scores - largest) + 1e-6)
    assert not use_cpu_attention(tiny_llama(), VOCAB)
    assert llama.scaled_dot_product_attention is scaled_dot_product_attention

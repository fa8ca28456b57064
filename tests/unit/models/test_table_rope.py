"""Rotary embeddings from a shared table have the bits of MLX's own, and are given up where they have not."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models import llama
from mlx_lm.models.cache import make_prompt_cache
from tests.unit.models.tiny import VOCAB, tiny_llama

from burstgate_decode.models import table_rope
from burstgate_decode.models.table_rope import TableRope, original_ropes, use_table_ropes


def ropes_of(model: llama.Model) -> list[Any]:
    return [layer.self_attn.rope for layer in model.layers]


@pytest.mark.parametrize("traditional", [True, False])
@pytest.mark.parametrize("count", [1, 5, 16, 40])
@pytest.mark.parametrize("offset", [0, 7, 1000])
def test_one_offset_for_all_rows(traditional: bool, count: int, offset: int) -> None:
    rope = nn.RoPE(16, traditional=traditional, base=10_000.0, scale=0.5)
    x = mx.random.normal((3, 2, count, 16))
    assert mx.array_equal(TableRope(rope)(x, offset=offset), rope(x, offset=offset)).item()


@pytest.mark.parametrize("traditional", [True, False])
def test_an_offset_for_each_row_and_tables_that_follow_it(traditional: bool) -> None:
    rope = nn.RoPE(16, traditional=traditional)
    table = TableRope(rope)
    for offsets in ([3, 0, 900], [4, 1, 901], [5]):
        for count in (1, 4):
            # As a forward of queries and keys with different numbers of heads, laid out as a model does.
            offset = mx.array(offsets)
            for heads in (4, 2):
                x = mx.random.normal((len(offsets), count, heads, 16)).transpose(0, 2, 1, 3)
                assert mx.array_equal(table(x, offset=offset), rope(x, offset=offset)).item()


def test_other_sizes_and_types_are_left_to_mlx() -> None:
    rope = nn.RoPE(8)
    for x in (mx.random.normal((1, 2, 3, 16)), mx.random.normal((1, 2, 3, 8)).astype(mx.bfloat16)):
        assert mx.array_equal(TableRope(rope)(x, offset=5), rope(x, offset=5)).item()


def test_a_model_keeps_the_tables_and_gives_them_back_for_a_block() -> None:
    model = tiny_llama(traditional=True)
    assert use_table_ropes(model, VOCAB)
    assert [type(rope) for rope in ropes_of(model)] == [TableRope] * 2
    assert ropes_of(model)[0] is ropes_of(model)[1]
    with original_ropes(model):
        assert [type(rope) for rope in ropes_of(model)] == [nn.RoPE] * 2
        expected = model(mx.array([[1, 2, 3]]), cache=make_prompt_cache(model))
    assert mx.array_equal(model(mx.array([[1, 2, 3]]), cache=make_prompt_cache(model)), expected).item()


def test_a_model_whose_bits_change_gets_its_own_embeddings_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama(traditional=True)
    monkeypatch.setattr(
        table_rope, "_turned", lambda x, partners, cosines, sines: x * cosines + partners * sines + 1e-6
    )
    assert not use_table_ropes(model, VOCAB)
    assert [type(rope) for rope in ropes_of(model)] == [nn.RoPE] * 2

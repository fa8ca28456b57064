"""Rows of different widths run one behind the other, and no bit of what counts is another."""

import mlx.core as mx
import pytest
from tests.unit.models.tiny import VOCAB, tiny_llama

from burstgate_decode.models.cpu_attention import use_cpu_attention
from burstgate_decode.models.packing import Packing
from burstgate_decode.models.ragged_cache import RaggedCache
from burstgate_decode.models.sequence_cache import Cache
from burstgate_decode.models.table_rope import use_table_ropes
from burstgate_decode.models.target import packs_rows

WIDTHS = (3, 1, 4, 2)


pytestmark = pytest.mark.usefixtures("exact_rows")


def test_what_counts_is_packed_in_order_and_spread_to_where_it_was() -> None:
    packing = Packing(WIDTHS)
    x = mx.random.normal((4, packing.longest, 5))
    packed = packing.pack(x)
    assert packed.shape == (1, sum(WIDTHS), 5)
    assert mx.array_equal(packed[0], mx.concatenate([x[row, :width] for row, width in enumerate(WIDTHS)])).item()
    spread = packing.spread(packed)
    for row, width in enumerate(WIDTHS):
        assert mx.array_equal(packing.of_row(packed, row), x[row, :width]).item()
        assert mx.array_equal(spread[row, :width], x[row, :width]).item()
        # Behind it stands something of the row's own, so that what is computed of it stays finite.
        assert mx.array_equal(spread[row, width:], mx.broadcast_to(x[row, width - 1], spread[row, width:].shape)).item()


def test_heads_are_packed_and_spread_alike() -> None:
    packing = Packing(WIDTHS)
    x = mx.random.normal((4, packing.longest, 3, 5))
    heads = x.transpose(0, 2, 1, 3)
    packed = packing.pack_heads(heads)
    assert mx.array_equal(packed, packing.pack(x).transpose(0, 2, 1, 3)).item()
    assert mx.array_equal(packing.spread_heads(packed), packing.spread(packing.pack(x)).transpose(0, 2, 1, 3)).item()


def test_positions_follow_each_row() -> None:
    assert Packing(WIDTHS).positions([10, 0, 7, 3]).tolist() == [10, 11, 12, 0, 7, 8, 9, 10, 3, 4]


def test_a_packed_forward_leaves_the_entries_and_bits_of_one_side_by_side() -> None:
    model = tiny_llama()
    assert use_table_ropes(model, VOCAB)
    assert use_cpu_attention(model, VOCAB)
    assert packs_rows(model, VOCAB)
    packing, caches = Packing(WIDTHS), [RaggedCache(2), RaggedCache(2)]
    prompt, tokens = mx.random.randint(0, VOCAB, (1, 30)), mx.random.randint(0, VOCAB, (4, packing.longest))

    def forward(inputs: mx.array, cache: Cache) -> mx.array:
        logits: mx.array = model(inputs, cache=cache)
        return logits

    for cache in caches:
        # A row before them that has no part in it.
        for length in (5, 12, 30, 1, 8):
            cache.run(forward, prompt[:, :length], cache.open())
    for _ in range(3):
        (expected,) = caches[0].run(forward, tokens, 1)
        found = caches[1].run_packed(forward, tokens, packing, 1)
        for row, width in enumerate(WIDTHS):
            assert mx.array_equal(packing.of_row(found, row), expected[row, :width]).item(), row
            caches[0].cut(1 + row, caches[1].lengths[1 + row])
        assert caches[0].lengths == caches[1].lengths
    for slot, length in enumerate(caches[0].lengths):
        spans = [cache.take(slot, 0, length) for cache in caches]
        assert spans[0] is not None
        assert spans[1] is not None
        for one, other in zip(spans[0].arrays, spans[1].arrays, strict=True):
            assert mx.array_equal(one, other).item(), slot


@pytest.mark.parametrize("missing", ["ropes", "attention"])
def test_a_model_that_does_not_know_where_packed_rows_stand_is_not_given_any(missing: str) -> None:
    model = tiny_llama()
    if missing != "ropes":
        assert use_table_ropes(model, VOCAB)
    if missing != "attention":
        assert use_cpu_attention(model, VOCAB)
    assert not packs_rows(model, VOCAB)

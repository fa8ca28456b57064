"""A batch of rows that join, leave, grow and are cut computes what mlx-lm's own cache computes for each row."""

import io
from typing import Any

import hypothesis.strategies as st
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mlx_lm.models import llama
from mlx_lm.models.cache import KVCache, make_prompt_cache, trim_prompt_cache

from burstgate_decode.models.batch_cache import SeparateCaches
from burstgate_decode.models.ragged_cache import RaggedCache
from burstgate_decode.models.target import takes_ragged_cache

VOCAB = 61
LAYERS = 2
MOST_ROWS = 5
# Rounding of float32 sums in another order; a wrong position or mask moves logits by tenths.
SAME = 1e-4


def tiny_llama(**changes: Any) -> llama.Model:
    mx.random.seed(3)
    args = {
        "model_type": "llama",
        "hidden_size": 32,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCAB,
        **changes,
    }
    model = llama.Model(llama.ModelArgs(**args))
    # Larger than at random initialisation, so that attention looks somewhere.
    model.update({"model": {"embed_tokens": {"weight": mx.random.normal((VOCAB, 32))}}})
    mx.eval(model.parameters())
    return model


MODEL = tiny_llama()


def run(cache: RaggedCache | SeparateCaches, tokens: list[list[int]], first: int) -> mx.array:
    results = cache.run(lambda inputs, layers: MODEL(inputs, cache=layers), mx.array(tokens), first)
    return mx.concatenate(results, axis=0)


def assert_same(found: mx.array, expected: mx.array) -> None:
    difference = mx.max(mx.abs(found - expected)).item()
    assert difference < SAME, f"logits differ by {difference}"


token = st.integers(0, VOCAB - 1)
# Past one block of capacity, so that some rows make it grow.
prompt = st.one_of(st.lists(token, min_size=1, max_size=12), st.lists(token, min_size=250, max_size=270))


class Rows(RuleBasedStateMachine):
    """A batch beside one `KVCache` a row."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = self.make()
        self.alone: list[list[KVCache]] = []

    def make(self) -> RaggedCache | SeparateCaches:
        return RaggedCache(LAYERS)

    @precondition(lambda self: len(self.alone) < MOST_ROWS)
    @rule(tokens=prompt)
    def join(self, tokens: list[int]) -> None:
        cache = make_prompt_cache(MODEL)
        self.alone.append(cache)
        assert_same(run(self.batch, [tokens], self.batch.open()), MODEL(mx.array([tokens]), cache=cache))

    @precondition(lambda self: len(self.alone) < MOST_ROWS)
    @rule()
    def join_empty(self) -> None:
        self.batch.open()
        self.alone.append(make_prompt_cache(MODEL))

    @precondition(lambda self: self.alone)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        row, last = data.draw(st.integers(0, len(self.alone) - 1)), len(self.alone) - 1
        self.batch.swap(row, last)
        self.batch.close_last()
        self.alone[row], self.alone[last] = self.alone[last], self.alone[row]
        self.alone.pop()

    @precondition(lambda self: self.alone)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Some neighbouring rows run the same number of tokens, and each is cut by a number of its own."""
        first = data.draw(st.integers(0, len(self.alone) - 1))
        rows = data.draw(st.integers(1, len(self.alone) - first))
        width = data.draw(st.integers(1, 5))
        tokens = data.draw(st.lists(st.lists(token, min_size=width, max_size=width), min_size=rows, max_size=rows))
        together = run(self.batch, tokens, first)
        for row in range(rows):
            cache = self.alone[first + row]
            assert_same(together[row : row + 1], MODEL(mx.array([tokens[row]]), cache=cache))
            kept = cache[0].offset - data.draw(st.integers(0, width - 1))
            trim_prompt_cache(cache, cache[0].offset - kept)
            assert self.batch.cut(first + row, kept) == kept

    @invariant()
    def lengths_are_the_rows_own(self) -> None:
        assert list(self.batch.lengths) == [cache[0].offset for cache in self.alone]

    @invariant()
    def nobody_holds_nothing(self) -> None:
        assert self.alone or self.batch.nbytes == 0


class SeparateRows(Rows):
    def make(self) -> RaggedCache | SeparateCaches:
        return SeparateCaches(lambda: make_prompt_cache(MODEL))


Rows.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
SeparateRows.TestCase.settings = settings(
    max_examples=10, stateful_step_count=12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestRaggedRows = Rows.TestCase
TestSeparateRows = SeparateRows.TestCase


def test_steady_decoding_allocates_nothing() -> None:
    cache = RaggedCache(LAYERS)
    for row in range(3):
        run(cache, [[row + 1, 2]], cache.open())
    before = cache.nbytes
    for step in range(200):
        run(cache, [[step % VOCAB]] * 3, 0)
    assert cache.nbytes == before


@pytest.mark.parametrize("count", [1, 3])
def test_rows_write_into_the_memory_there_is(count: int) -> None:
    cache = RaggedCache(LAYERS)
    for row in range(3):
        run(cache, [[1, 2, 3][: row + 1]], cache.open())
    mx.eval(cache.arrays())
    before = addresses(cache)
    for _ in range(3):
        mx.eval(run(cache, [[4] * count] * 3, 0), cache.arrays())
        assert addresses(cache) == before


def addresses(cache: RaggedCache) -> list[int]:
    return [np.asarray(memoryview(array)).ctypes.data for array in cache.arrays()]


def test_a_long_row_that_leaves_takes_its_memory_along() -> None:
    cache = RaggedCache(LAYERS)
    run(cache, [[1, 2, 3]], cache.open())
    short = cache.nbytes
    run(cache, [[5] * 3000], cache.open())
    assert cache.nbytes > 10 * short
    cache.close_last()
    assert cache.nbytes <= 2 * short
    cache.close_last()
    assert cache.nbytes == 0


def test_a_row_of_a_window_of_the_sequence_sees_only_that_window() -> None:
    cache = RaggedCache(LAYERS)
    for length in (2, 7):
        run(cache, [[1] * length], cache.open())
    (layer, _) = cache.window(0, 2)
    mask = layer.make_mask(1, window_size=3)
    assert mask[0, 0, 0].tolist() == [True, True, True] + [False] * 5
    assert mask[1, 0, 0].tolist() == [False] * 5 + [True] * 3


def test_only_models_that_keep_every_key_share_forwards() -> None:
    sliding = tiny_llama(sliding_window=4, layer_types=["full_attention", "sliding_attention"])
    assert takes_ragged_cache(MODEL, VOCAB)
    assert not takes_ragged_cache(sliding, VOCAB)


def test_a_model_that_cannot_take_a_position_for_each_row_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rope = llama.Attention.__call__

    def first_row_only(self: Any, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if isinstance(cache.offset, mx.array):
            cache.offset = cache.offset[0]
        result: mx.array = rope(self, x, mask, cache)
        return result

    monkeypatch.setattr(llama.Attention, "__call__", first_row_only)
    assert not takes_ragged_cache(MODEL, VOCAB)


def test_slots_change_places_by_copies_of_whole_rows() -> None:
    """Element by element it took as long as a step, for all rows, whenever one of them ended."""
    batch = RaggedCache(LAYERS)
    for tokens in ([1, 2, 3], [4, 5], [6]):
        run(batch, [tokens], batch.open())
    mx.eval(batch.arrays())
    batch.swap(0, 2)
    graph = io.StringIO()
    mx.export_to_dot(graph, *batch.arrays())
    assert "SliceUpdate" in graph.getvalue()
    assert "Scatter" not in graph.getvalue()

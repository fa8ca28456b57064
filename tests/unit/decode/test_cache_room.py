"""What admission reserves against what the caches really take, as rows come, grow, shrink and go."""

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models import gemma3_text, mamba
from tests.unit.decode.conftest import TINY_VOCAB, WIDEST, BatchDriver, Driven, Pair, clock_ms

from burstgate_decode.engine.admission import Admission
from burstgate_decode.engine.cache_room import CacheRoom
from burstgate_decode.engine.limits import EngineLimits
from burstgate_decode.engine.request import AnswerRequest
from burstgate_decode.engine.row import Row, Ticket
from burstgate_decode.models import cache_cost as models_cache_cost
from burstgate_decode.models.cache_cost import cache_cost, default_cache_bytes, free_memory_bytes


def bytes_held(driver: BatchDriver) -> int:
    """Of the target's and the drafter's caches, as they are allocated."""
    batch: Any = driver.batch
    if driver.target.shares_forwards:
        return batch.cache.nbytes + (batch.drafts._cache.nbytes if batch.drafts is not None else 0)
    layers = [layer for one in batch.cache._sequences for layer in one._cache if layer.keys is not None]
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)


def variant(pair: Pair, kind: str) -> Pair:
    """The pair, its target alone, or its target with a cache of its own for each row."""
    if kind == "pair":
        return pair
    return Pair(replace(pair.target, shares_forwards=kind == "target"), None)


@pytest.mark.parametrize("kind", ["pair", "target", "separate"])
def test_no_cache_ever_takes_more_than_was_reserved(tiny_pair: Pair, kind: str) -> None:
    driver = BatchDriver(variant(tiny_pair, kind))
    cost = cache_cost(driver.target, driver.drafter)
    admission: Admission[Row] = Admission(EngineLimits(max_active_rows=9))
    admission.room = CacheRoom(cost, 1_500_000, WIDEST)
    rng = random.Random(3)
    running: list[Driven] = []
    peak = most_rows = 0
    for _ in range(400):
        if rng.random() < 0.4 and admission.waiting < 6:
            prompt = tuple(rng.randrange(TINY_VOCAB) for _ in range(rng.choice((1, 5, 250, 400))))
            request = AnswerRequest("test", 0, prompt, rng.choice((3, 20, 100)), ignore_eos=True)
            admission.submit([Row(request, Ticket(), lambda _events: None, clock_ms)], clock_ms())
        for row in admission.admit():
            running.append(driver.open(row.request))
            # The driver makes a row of its own; the admitted one holds its place.
            running[-1].row.ticket = row.ticket
            running[-1].admitted = row  # type: ignore[attr-defined]
        if running:
            driver.step(rng.choice((1, 2, WIDEST)) if driver.drafter is not None else 1)
        if running and rng.random() < 0.1 and (cancelled := rng.choice(running)).row.slot is not None:
            driver.leave(cancelled)
        assert bytes_held(driver) <= admission.reserved_bytes <= admission.room.limit_bytes
        peak, most_rows = max(peak, bytes_held(driver)), max(most_rows, len(running))
        ended = [driven for driven in running if driven.row.slot is None]
        running = [driven for driven in running if driven.row.slot is not None]
        for driven in ended:
            admission.held = driver.batch.cache.shape
            admission.release(driven.admitted)  # type: ignore[attr-defined]
    assert most_rows >= 4
    assert peak > 0.4 * admission.room.limit_bytes, "the limit was never near"


def test_a_token_costs_what_the_models_arrays_say(tiny_pair: Pair) -> None:
    cost = cache_cost(tiny_pair.target, tiny_pair.drafter)
    # Keys and values of two heads of eight float32 numbers: two layers of the target, one of the drafter.
    assert cost == (3 * 2 * 2 * 8 * 4, 0, True)
    assert cache_cost(tiny_pair.target, None).token_bytes == 2 * 2 * 2 * 8 * 4


def test_caches_of_other_kinds_are_counted_by_what_they_keep(tiny_pair: Pair) -> None:
    """A recurrent layer costs a row the same whatever its length; a window counts as if it kept everything."""
    recurrent = mamba.Model(mamba.ModelArgs("mamba", TINY_VOCAB, 32, 64, 8, 2, 4, False, True, 2))
    cost = cache_cost(replace(tiny_pair.target, model=recurrent, split=None, shares_forwards=False), None)
    # Two layers: three inputs of the convolution and eight states, of 64 channels each.
    assert cost == (0, 2 * (3 + 8) * 64 * 4, False)
    # As tiny_pair's target, with one layer in two seeing a window.
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "num_attention_heads": 4}
    heads = {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": TINY_VOCAB, "sliding_window_pattern": 2}
    windowed = gemma3_text.Model(gemma3_text.ModelArgs("gemma3_text", **sizes, **heads, sliding_window=16))
    cost = cache_cost(replace(tiny_pair.target, model=windowed, split=None, shares_forwards=False), None)
    assert cost == (2 * 2 * 2 * 8 * 4, 0, False)


def test_free_memory_is_some_of_this_machines() -> None:
    total_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < free_memory_bytes() < total_bytes
    assert 0.3 * free_memory_bytes() < default_cache_bytes() < 0.7 * free_memory_bytes()


def test_a_containers_limit_counts_where_it_is_the_smaller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(models_cache_cost, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory_bytes() > 10**6
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert free_memory_bytes() == 600_000
    (tmp_path / "memory.current").write_text("2000000\n")
    assert free_memory_bytes() == 0

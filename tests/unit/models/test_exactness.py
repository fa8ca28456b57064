"""The probe finds what depends on neighbours, and bounds it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import llama
from tests.unit.models.shapes import make_model, make_target

from burstgate_decode.models import exactness
from burstgate_decode.models.exactness import probe_exactness
from burstgate_decode.models.sequence_cache import Mark
from burstgate_decode.models.target import Target, split_model

VOCAB = 211


@pytest.fixture
def target() -> Target:
    mx.random.seed(4)
    model = llama.Model(llama.ModelArgs("llama", 32, 2, 48, 4, 1e-5, VOCAB, num_key_value_heads=2))
    mx.eval(model.parameters())
    return Target(
        model, None, "tiny", Path(), "", "llama", "float32", VOCAB, 512, frozenset(), False, split_model(model, VOCAB)
    )


def shifted(forward: Any, when: Callable[[mx.array], bool], by: float) -> Any:
    """A forward whose logits are off by a constant for some inputs."""

    def run(self: Target, tokens: mx.array, *rest: Any) -> Any:
        step = forward(self, tokens, *rest)
        return replace(step, logits=step.logits + by) if when(tokens) else step

    return run


def test_batches_that_differ_are_bounded_and_verifies_with_them(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = probe_exactness(target, 4, 8, 64)
    monkeypatch.setattr(Target, "forward", shifted(Target.forward, lambda tokens: tokens.shape[0] > 1, 0.25))
    found = probe_exactness(target, 4, 8, 64)
    assert found.batch_margin == pytest.approx(1.0, abs=1e-3)
    assert found.guard_margin == pytest.approx(1.0 + expected.guard_margin, abs=1e-3)
    assert not found.bit_equal
    assert "rows of batches differ from the same rows alone by up to 0.25" in found.explanation


def test_verifies_that_differ_leave_plain_batches_trusted(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = probe_exactness(target, 4, 8, 64)
    monkeypatch.setattr(Target, "forward", shifted(Target.forward, lambda tokens: tokens.shape == (1, 3), 0.5))
    found = probe_exactness(target, 4, 8, 64)
    assert found.batch_margin == expected.batch_margin
    assert found.guard_margin == pytest.approx(2.0, abs=1e-3)


def test_a_prompt_in_chunks_is_compared_with_the_prompt_at_once(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Target.advance

    def advance(self: Target, tokens: mx.array, cache: Any) -> mx.array | None:
        return original(self, tokens if tokens.shape[1] != 41 else (tokens + 1) % VOCAB, cache)

    monkeypatch.setattr(Target, "advance", advance)
    assert "prompts in chunks differ from prompts at once by up to" in probe_exactness(target, 1, 1, 64).explanation


def test_one_row_and_no_drafter_leave_nothing_in_doubt(target: Target) -> None:
    found = probe_exactness(target, 1, 1, 64)
    assert (found.bit_equal, found.guard_margin, found.batch_margin) == (True, 0.0, 0.0)


def sliding_target(window: int, context_length: int) -> Target:
    mx.random.seed(4)
    layers = {"sliding_window": window, "layer_types": ["sliding_attention", "full_attention"]}
    model = llama.Model(llama.ModelArgs("llama", 32, 2, 48, 4, 1e-5, VOCAB, num_key_value_heads=2, **layers))
    mx.eval(model.parameters())
    return replace(make_target(model), vocab_size=VOCAB, context_length=context_length)


@pytest.mark.parametrize("at", [63, 64, 65])
def test_verifies_before_at_and_behind_the_end_of_a_window_are_compared(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    forward = Target.forward

    def run(self: Target, tokens: mx.array, cache: Any) -> Any:
        crosses = tokens.shape[1] > 1 and cache[0].offset < at <= cache[0].offset + tokens.shape[1]
        step = forward(self, tokens, cache)
        return replace(step, logits=step.logits + 0.5) if crosses else step

    monkeypatch.setattr(Target, "forward", run)
    assert probe_exactness(sliding_target(64, 512), 4, 1, 64).guard_margin == pytest.approx(2.0, abs=1e-3)
    assert probe_exactness(sliding_target(64, 64), 4, 1, 64).guard_margin < 0.1, "no answer gets past such a window"


def test_nothing_is_proved_where_a_window_is_too_long_to_walk_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactness, "_difference", lambda *_: 0.0)
    walked, unseen = (probe_exactness(sliding_target(window, 9000), 3, 1, 64) for window in (64, 8000))
    assert walked.bit_equal
    assert "windows" not in walked.explanation
    assert not unseen.bit_equal
    assert "nothing is known beyond windows of 8000 tokens" in unseen.explanation


@pytest.mark.parametrize("shape", ["recurrent", "convolutions", "lists"])
def test_verifies_after_others_that_were_undone_are_compared(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = make_target(make_model(shape))
    assert probe_exactness(target, 3, 1, 64).guard_margin < 1e-3
    monkeypatch.setattr(Mark, "restore", lambda _mark, _layers: None)
    assert probe_exactness(target, 3, 1, 64).guard_margin > 0.1


@pytest.mark.parametrize("shape", ["recurrent", "lists"])
def test_recurrent_targets_without_a_drafter_are_probed_for_their_prompts_alone(shape: str) -> None:
    found = probe_exactness(make_target(make_model(shape)), 1, 4, 64)
    assert (found.positions, found.guard_margin, found.batch_margin) == (1, 0.0, 0.0)

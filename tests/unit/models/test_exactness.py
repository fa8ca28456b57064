"""The probe finds what depends on neighbours, and bounds it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import llama

from burstgate_decode.models.exactness import probe_exactness
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

"""What the default gate does better than the plain rules."""

import itertools
from collections.abc import Callable

import pytest

from burstgate_policy.core.gate import GateMode, GatePhase, GateStep, MtpGate
from burstgate_policy.core.gate_config import GateConfig


def run(gate: MtpGate, steps: int, round_ms: float, plain_ms: float, emitted: int, width: int = 1) -> int:
    """Follows the gate and counts its rounds."""
    rounds = 0
    for _ in range(steps):
        if gate.next_step() is GateStep.VERIFY:
            gate.record_verify(round_ms, emitted, width)
            rounds += 1
        else:
            gate.record_plain(plain_ms, width)
    return rounds


@pytest.fixture
def gate() -> MtpGate:
    return MtpGate(GateConfig())


def switched_after(gate: MtpGate, emitted: int, round_ms: float, plain_ms: float, width: int) -> int:
    for steps in itertools.count():
        assert steps < 5000
        if gate.snapshot().mode is GateMode.PLAIN:
            return steps
        run(gate, 1, round_ms, plain_ms, emitted, width)
    raise AssertionError


@pytest.mark.parametrize("width", [1, 4, 16, 32])
def test_hopeless_speculation_is_left_within_200_steps_at_every_width(width: int) -> None:
    default, seed = MtpGate(GateConfig()), MtpGate(GateConfig.seed())
    assert switched_after(default, width, 150.0, 100.0, width) <= 200
    assert switched_after(seed, width, 150.0, 100.0, width) > 1000


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
def test_a_parked_mode_is_probed_in_under_three_percent_of_the_steps_at_every_width(width: int) -> None:
    gate = MtpGate(GateConfig())
    switched_after(gate, width, 150.0, 100.0, width)
    assert run(gate, 4000, 150.0, 100.0, width, width) / 4000 < 0.03


def test_plain_probes_back_off_while_they_confirm_and_return_after_a_regime_change(gate: MtpGate) -> None:
    switched_after(gate, 1, 150.0, 100.0, 1)
    gaps = []
    for _ in range(4):
        plain_steps = 0
        while gate.next_step() is GateStep.PLAIN:
            gate.record_plain(100.0, 1)
            plain_steps += 1
        gaps.append(plain_steps)
        for _ in range(16):
            gate.record_verify(150.0, 1, 1)
    assert gaps == [256, 512, 1024, 1024]
    gate.maybe_remeasure(4096)
    assert run(gate, 33, 150.0, 100.0, 1) == 16


def test_a_probe_ends_when_the_width_changes(gate: MtpGate) -> None:
    while gate.next_step() is GateStep.VERIFY:
        gate.record_verify(50.0, 2, 1)
    gate.record_plain(40.0, 1)
    gate.record_plain(40.0, 8)
    assert gate.snapshot().phase is GatePhase.RUNNING
    assert gate.next_step() is GateStep.VERIFY


def test_a_depth_change_drops_the_open_window_and_the_counted_losses(gate: MtpGate) -> None:
    while gate.next_step() is GateStep.VERIFY:
        gate.record_verify(100.0, 2, 1)
    for _ in range(16):
        gate.record_plain(10.0, 1)
    assert gate.snapshot().losses == 1
    gate.maybe_remeasure(5000)
    assert gate.snapshot().losses == 0
    assert gate.snapshot().window_steps == 0


def test_healthy_speculation_spends_under_two_percent_of_its_steps_on_plain(gate: MtpGate) -> None:
    assert run(gate, 5000, 90.0, 68.0, 2) / 5000 > 0.98


def test_wide_drafts_that_win_spend_under_four_percent_of_their_steps_on_plain(gate: MtpGate) -> None:
    assert run(gate, 5000, 119.0, 68.0, 7) / 5000 > 0.96


def test_equal_modes_do_not_flap(gate: MtpGate) -> None:
    run(gate, 5000, 200.0, 100.0, 2)
    assert gate.snapshot().mode is GateMode.SPECULATIVE


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: GateConfig(window_steps=0),
        lambda: GateConfig(ewma_weight=0.0),
        lambda: GateConfig(ewma_weight=float("nan")),
        lambda: GateConfig(margin=-0.1),
        lambda: GateConfig(depth_factor=1),
    ],
)
def test_a_constant_out_of_range_is_refused_by_name(wrong: Callable[[], GateConfig]) -> None:
    with pytest.raises(ValueError, match="must"):
        wrong()


def test_a_probe_of_a_new_depth_is_not_compared_with_an_estimate_of_the_old_one(gate: MtpGate) -> None:
    while gate.next_step() is GateStep.VERIFY:
        gate.record_verify(100.0, 2, 1)
    assert gate.maybe_remeasure(4096)
    for _ in range(16):
        gate.record_plain(10.0, 1)
    assert gate.snapshot().plain_tokens_per_second == pytest.approx(100.0)
    assert gate.snapshot().speculative_stale
    assert gate.snapshot().losses == 0

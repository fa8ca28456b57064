"""Stories of the gate under its plain rules, with exact numbers."""

import math

import pytest

from burstgate_policy.core.gate import GateDecision, GateMode, GatePhase, GateSnapshot, GateStep, MtpGate
from burstgate_policy.core.gate_config import GateConfig

BOUND = 10_000


class ByGrants(MtpGate):
    """The same gate driven in grants: asked once for as many steps as it promises, and told of them together."""

    __slots__ = ("_granted", "_left", "_told")

    def __init__(self) -> None:
        super().__init__(GateConfig.seed())
        self._told: list[tuple[float, int | None, int]] = []
        self._granted = GateStep.VERIFY
        self._left = 0

    def next_step(self) -> GateStep:
        if self._left == 0:
            self._catch_up()
            self._granted, self._left = (
                super().next_step(),
                min(self.steps_until_change(self._width_bucket or 1, 64), 8),
            )
        return self._granted

    def record_plain(self, wall_ms: float, width: int) -> None:
        self._told.append((wall_ms, None, width))
        self._end_of_step(width)

    def record_verify(self, wall_ms: float, emitted: int, width: int) -> None:
        self._told.append((wall_ms, emitted, width))
        self._end_of_step(width)

    def maybe_remeasure(self, depth_tokens: int) -> bool:
        self._catch_up()
        changed = super().maybe_remeasure(depth_tokens)
        self._left = 0 if changed else self._left
        return changed

    def take_decision(self) -> GateDecision | None:
        self._catch_up()
        return super().take_decision()

    def snapshot(self) -> GateSnapshot:
        self._catch_up()
        return super().snapshot()

    def tokens_per_second(self, mode: GateMode) -> float | None:
        self._catch_up()
        return super().tokens_per_second(mode)

    def _end_of_step(self, width: int) -> None:
        # A burst ends early where the batch leaves its width bucket.
        same_bucket = self._width_bucket in {0, 1 << (width - 1).bit_length()}
        self._left = self._left - 1 if same_bucket and self._left > 0 else 0

    def _catch_up(self) -> None:
        told, self._told = self._told, []
        for wall_ms, emitted, width in told:
            if emitted is None:
                super().record_plain(wall_ms, width)
            else:
                super().record_verify(wall_ms, emitted, width)


@pytest.fixture(params=["step by step", "by grants"])
def gate(request: pytest.FixtureRequest) -> MtpGate:
    return ByGrants() if request.param == "by grants" else MtpGate(GateConfig.seed())


def verify(gate: MtpGate, steps: int, emitted: int, wall_ms: float, width: int = 1) -> None:
    for _ in range(steps):
        assert gate.next_step() is GateStep.VERIFY
        gate.record_verify(wall_ms, emitted, width)


def plain(gate: MtpGate, steps: int, wall_ms: float, width: int = 1) -> None:
    for _ in range(steps):
        assert gate.next_step() is GateStep.PLAIN
        gate.record_plain(wall_ms, width)


def verify_until_plain(gate: MtpGate, emitted: int, wall_ms: float, width: int = 1) -> int:
    for steps in range(BOUND):
        if gate.next_step() is GateStep.PLAIN:
            return steps
        gate.record_verify(wall_ms, emitted, width)
    raise AssertionError("plain was never wanted")


def plain_until_verify(gate: MtpGate, wall_ms: float, width: int = 1) -> int:
    for steps in range(BOUND):
        if gate.next_step() is GateStep.VERIFY:
            return steps
        gate.record_plain(wall_ms, width)
    raise AssertionError("a verify was never wanted")


def switch_to_plain(gate: MtpGate) -> None:
    """Speculation at 20 tok/s, plain at 100: probe, confirm, switch."""
    verify_until_plain(gate, 2, 100.0)
    plain(gate, 16, 10.0)
    verify(gate, 1, 2, 100.0)
    plain(gate, 16, 10.0)
    assert gate.snapshot().mode is GateMode.PLAIN


def test_a_new_gate_speculates(gate: MtpGate) -> None:
    assert gate.next_step() is GateStep.VERIFY
    assert gate.snapshot().mode is GateMode.SPECULATIVE
    assert gate.snapshot().phase is GatePhase.RUNNING


def test_without_a_plain_measurement_nothing_switches(gate: MtpGate) -> None:
    verify(gate, 64, 1, 100.0)
    assert gate.snapshot().mode is GateMode.SPECULATIVE
    assert gate.take_decision() is None


def test_the_refresh_probe_opens_after_512_steps_of_two_tokens_and_returns(gate: MtpGate) -> None:
    assert verify_until_plain(gate, 2, 50.0) == 512
    plain(gate, 16, 40.0)
    assert gate.next_step() is GateStep.VERIFY
    assert gate.snapshot().plain_tokens_per_second == pytest.approx(25.0)
    assert gate.snapshot().mode is GateMode.SPECULATIVE


def test_a_clearly_faster_plain_wins_after_a_confirming_probe(gate: MtpGate) -> None:
    verify_until_plain(gate, 2, 100.0)
    plain(gate, 16, 10.0)
    assert gate.snapshot().mode is GateMode.SPECULATIVE
    assert gate.snapshot().losses == 1
    verify(gate, 1, 2, 100.0)
    assert gate.snapshot().mode is GateMode.SPECULATIVE
    plain(gate, 16, 10.0)
    assert gate.snapshot().mode is GateMode.PLAIN
    assert gate.take_decision() is GateDecision.DECODE_PLAIN
    assert gate.take_decision() is None
    assert gate.next_step() is GateStep.PLAIN


def test_one_fast_plain_window_that_is_not_confirmed_does_not_switch(gate: MtpGate) -> None:
    verify_until_plain(gate, 2, 50.0)
    plain(gate, 16, 10.0)
    verify(gate, 1, 2, 50.0)
    plain(gate, 16, 40.0)
    assert gate.snapshot().mode is GateMode.SPECULATIVE
    assert gate.snapshot().losses == 0
    assert gate.take_decision() is None


def test_a_lead_inside_the_margin_does_not_switch(gate: MtpGate) -> None:
    verify_until_plain(gate, 2, 50.0)
    plain(gate, 16, 24.39)
    verify(gate, 64, 2, 50.0)
    assert gate.snapshot().mode is GateMode.SPECULATIVE
    assert gate.take_decision() is None


def test_plain_mode_measures_speculation_again_and_recovers(gate: MtpGate) -> None:
    switch_to_plain(gate)
    gate.take_decision()
    assert plain_until_verify(gate, 10.0) == 256
    verify(gate, 16, 3, 10.0)
    assert gate.snapshot().mode is GateMode.PLAIN
    assert plain_until_verify(gate, 10.0) == 1
    verify(gate, 16, 3, 10.0)
    assert gate.snapshot().mode is GateMode.SPECULATIVE
    assert gate.take_decision() is GateDecision.SPECULATE
    assert gate.next_step() is GateStep.VERIFY


def test_a_doubled_context_probes_early_and_keeps_the_estimates(gate: MtpGate) -> None:
    gate.maybe_remeasure(600)
    gate.note_depth(600)
    verify(gate, 32, 2, 50.0)
    before = gate.snapshot().speculative_tokens_per_second
    assert before == pytest.approx(40.0)
    changes = gate.snapshot().depth_regime_changes
    assert gate.maybe_remeasure(1300)
    assert gate.snapshot().depth_regime_changes == changes + 1
    assert gate.snapshot().speculative_tokens_per_second == before
    verify(gate, 16, 2, 50.0)
    plain(gate, 16, 50.0)
    tokens, plain_steps = 16, 16
    while tokens < 1000:
        if gate.next_step() is GateStep.VERIFY:
            gate.record_verify(50.0, 2, 1)
            tokens += 2
        else:
            gate.record_plain(50.0, 1)
            tokens += 1
            plain_steps += 1
        assert gate.snapshot().mode is GateMode.SPECULATIVE
    assert plain_steps <= 16
    assert plain_steps / tokens < 0.05


def test_rounds_that_emit_nothing_count_as_one_token(gate: MtpGate) -> None:
    verify(gate, 16, 0, 50.0)
    assert gate.snapshot().speculative_tokens_per_second == pytest.approx(20.0)


def test_a_stale_plain_estimate_cannot_take_the_mode(gate: MtpGate) -> None:
    verify_until_plain(gate, 2, 50.0)
    plain(gate, 16, 40.0)
    assert gate.maybe_remeasure(2000)
    for _ in range(64):
        if gate.next_step() is GateStep.PLAIN:
            break
        gate.record_verify(100.0, 1, 1)
    assert gate.snapshot().speculative_tokens_per_second == pytest.approx(10.0)
    assert gate.snapshot().mode is GateMode.SPECULATIVE
    assert gate.take_decision() is None


def test_growing_to_2048_tokens_costs_two_probes_and_no_more(gate: MtpGate) -> None:
    depth, plain_steps, rounds = 64, 0, 0
    while depth < 2048 + 1:
        gate.maybe_remeasure(depth)
        gate.note_depth(depth)
        if gate.next_step() is GateStep.VERIFY:
            gate.record_verify(50.0, 2, 1)
            depth, rounds = depth + 2, rounds + 1
        else:
            gate.record_plain(50.0, 1)
            depth, plain_steps = depth + 1, plain_steps + 1
    assert gate.snapshot().depth_regime_changes == 2
    assert plain_steps <= 48
    assert plain_steps / (plain_steps + rounds) < 0.08
    assert gate.snapshot().mode is GateMode.SPECULATIVE


def test_a_plain_step_counts_one_token_for_each_row(gate: MtpGate) -> None:
    verify_until_plain(gate, 2, 50.0)
    plain(gate, 32, 10.0, width=4)
    assert gate.snapshot().plain_tokens_per_second == pytest.approx(400.0, abs=1.0)


@pytest.mark.parametrize("width", [1, 4, 16])
def test_the_refresh_interval_counts_the_tokens_of_a_row(width: int) -> None:
    assert verify_until_plain(MtpGate(GateConfig.seed()), 2 * width, 50.0, width) == 512


def test_a_width_change_measures_both_modes_anew(gate: MtpGate) -> None:
    verify_until_plain(gate, 2, 50.0)
    plain(gate, 16, 40.0)
    verify(gate, 8, 2, 50.0)
    verify(gate, 16, 1, 100.0, width=8)
    assert gate.snapshot().plain_stale
    assert gate.snapshot().speculative_stale
    verify(gate, 16, 6, 5.0, width=8)
    assert gate.snapshot().speculative_tokens_per_second == pytest.approx(1200.0, abs=1.0)
    plain(gate, 16, 10.0, width=8)
    assert gate.snapshot().plain_tokens_per_second == pytest.approx(800.0)
    assert not gate.snapshot().plain_stale
    assert gate.snapshot().mode is GateMode.SPECULATIVE
    assert gate.take_decision() is None


def test_widths_of_one_bucket_are_one_regime(gate: MtpGate) -> None:
    for width in (5, 6, 7, 8, 6, 5, 7):
        verify(gate, 1, 6, 50.0, width)
    assert not gate.snapshot().speculative_stale
    assert gate.snapshot().window_steps == 7
    verify(gate, 1, 6, 50.0, width=4)
    assert gate.snapshot().speculative_stale
    assert gate.snapshot().plain_stale
    assert gate.snapshot().window_steps == 0
    verify(gate, 15, 6, 50.0, width=4)
    assert gate.snapshot().window_steps == 0
    verify(gate, 16, 6, 50.0, width=4)
    assert not gate.snapshot().speculative_stale
    assert gate.snapshot().plain_stale
    assert gate.next_step() is GateStep.PLAIN


def test_a_partial_window_below_half_is_thrown_away() -> None:
    gate = MtpGate(GateConfig.seed())  # step by step only: no verify that a grant allows emits so much
    verify(gate, 1, 1020, 1000.0)
    verify(gate, 1, 4, 1000.0)
    assert gate.next_step() is GateStep.PLAIN
    assert gate.snapshot().speculative_tokens_per_second is None


def test_a_partial_window_of_half_or_more_counts(gate: MtpGate) -> None:
    verify(gate, 8, 128, 1000.0)
    assert gate.next_step() is GateStep.PLAIN
    assert gate.snapshot().speculative_tokens_per_second == pytest.approx(128.0)


def test_a_confirming_probe_that_measured_nothing_confirms_nothing(gate: MtpGate) -> None:
    verify_until_plain(gate, 2, 100.0)
    plain(gate, 16, 10.0)
    verify(gate, 1, 2, 100.0)
    plain(gate, 16, 5e-324)  # a rate beyond every number
    assert gate.snapshot().mode is GateMode.SPECULATIVE
    assert gate.snapshot().plain_tokens_per_second == pytest.approx(100.0)
    assert gate.snapshot().losses == 1


def test_windows_blend_with_weight_three_tenths(gate: MtpGate) -> None:
    verify(gate, 16, 1, 100.0)
    verify(gate, 16, 2, 100.0)
    assert gate.snapshot().speculative_tokens_per_second == pytest.approx(0.7 * 10 + 0.3 * 20)


def test_noise_widens_the_margin(gate: MtpGate) -> None:
    """Windows of 20 and 60 tok/s spread the estimate, so a lead of a sixth is not believed."""
    for _ in range(6):
        verify(gate, 16, 2, 100.0)
        verify(gate, 16, 6, 100.0)
    estimate = gate.snapshot().speculative_tokens_per_second
    assert estimate is not None
    gate.record_verify(100.0, 1024, 1)
    plain(gate, 16, 1000.0 / (estimate * 1.16))
    assert gate.snapshot().losses == 0


@pytest.mark.parametrize("wall_ms", [0.0, -1.0, math.nan, math.inf])
def test_a_wall_time_that_no_clock_gives_teaches_nothing(gate: MtpGate, wall_ms: float) -> None:
    gate.record_verify(wall_ms, 4, 2)
    gate.record_plain(wall_ms, 2)
    assert gate.snapshot().window_steps == 0


def test_depths_below_the_floor_are_one_regime(gate: MtpGate) -> None:
    assert not gate.maybe_remeasure(1)
    assert not gate.maybe_remeasure(1023)
    assert gate.maybe_remeasure(1024)
    assert not gate.maybe_remeasure(2047)
    assert gate.maybe_remeasure(2048)
    assert gate.maybe_remeasure(5)


def test_a_switch_is_measured_at_the_depth_it_happened(gate: MtpGate) -> None:
    gate.note_depth(900)
    switch_to_plain(gate)
    assert not gate.maybe_remeasure(1100)
    assert gate.maybe_remeasure(1800)

"""What the docstrings of the gate's constants claim, in exact steps, on machines without noise."""

import dataclasses
import itertools

import numpy as np
import pytest
from tests.unit.policy.driver import PLAIN_MS, Driver, Machine, Ran, rounds_share, situation

from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.gate_config import GateConfig
from burstgate_policy.core.types import Mode, Reason, Verdict

GATE = GateConfig()
# The ceiling stops probes, which most of these stories count.
FREE = CoreConfig(gate=dataclasses.replace(GATE, regret_ceiling=1.0))


def rounds_of(plain_steps: float) -> Machine:
    """Rounds keep one draft and cost so many plain steps."""
    return Machine(round_ms=lambda _, k: plain_steps * PLAIN_MS)


def stretches(ran: list[Ran]) -> list[tuple[str, int]]:
    """Steps in a row with one reason."""
    return [(reason.name, len(list(some))) for reason, some in itertools.groupby(ran, key=lambda step: step.reason)]


def test_a_loss_within_the_margin_is_no_loss() -> None:
    """margin: speculation may be slower by this fraction before it counts as losing."""
    lane = Driver(rounds_of(2.0 * (1.0 + GATE.margin) - 0.01), cap=2, table=False)
    assert rounds_share(lane.run(6000)) > 0.98
    lane = Driver(rounds_of(2.0 * (1.0 + GATE.margin) + 0.1), cap=2, table=False)
    lane.run(3000)
    assert not lane.speculates()


def test_a_lead_within_the_margin_is_no_lead() -> None:
    """margin: speculation must lead by this fraction to win."""
    lane = Driver(rounds_of(2.0 / (1.0 + GATE.margin) + 0.01), cap=2, verdict=Verdict.DECLINE, config=FREE)
    lane.run(6000)
    assert not lane.speculates()
    lane = Driver(rounds_of(1.8), cap=2, verdict=Verdict.DECLINE, config=FREE)
    lane.run(1000)
    assert lane.speculates()


def test_the_least_loss_that_ends_speculation() -> None:
    """leave_steps: one bad window costs less than is needed to leave; two of these cost more."""
    lane = Driver(Machine(round_ms=lambda _, k: 1.5 * PLAIN_MS, kept=lambda _: 0), cap=2)
    # 16 rounds lose half a plain step each, less the margin; each window is followed by a probe of plain.
    assert stretches(lane.run(60))[:5] == [
        ("GATE_SPECULATIVE", 16),
        ("GATE_PROBE_PLAIN", 4),
        ("GATE_SPECULATIVE", 16),
        ("GATE_PROBE_PLAIN", 4),
        ("GATE_PLAIN", 20),
    ]


def test_beyond_some_loss_no_luck_is_an_excuse() -> None:
    """leave_at_most: rounds whose luck explains any loss are left all the same."""
    lucky = np.random.default_rng(0).random(8000) < 0.06
    lane = Driver(
        Machine(round_ms=lambda _, k: 2.5 * PLAIN_MS, kept=lambda n: 7 if lucky[n] else 0), cap=8, config=FREE
    )
    lost, steps = 0.0, 0
    while lane.speculates():
        lane.run(4)
        steps += 4
        lost = sum(step.wall_ms / PLAIN_MS - step.emitted for step in lane.ran if step.rounds)
        assert steps < 600
    assert lost < GATE.leave_at_most + 40  # a window more, and rounds of it before plain was measured


def test_a_probe_of_rounds_ends_when_it_has_lost_enough() -> None:
    """probe_loss, look_rounds: looked at every four rounds; the first of them is not judged."""
    lane = Driver(Machine(round_ms=lambda _, k: 2.2 * PLAIN_MS, kept=lambda _: 0), cap=2, verdict=Verdict.DECLINE)
    assert ("GATE_PROBE_SPECULATIVE", 4) in stretches(lane.run(600))


def test_a_probe_that_costs_nothing_goes_on_to_its_end_and_its_share_of_the_steps() -> None:
    """probe_rounds, probe_share."""
    lane = Driver(rounds_of(2.0), cap=2, verdict=Verdict.DECLINE, config=FREE)
    ran = lane.run(20_000)
    assert {steps for reason, steps in stretches(ran) if reason == "GATE_PROBE_SPECULATIVE"} == {GATE.probe_rounds}
    assert rounds_share(ran) == pytest.approx(GATE.probe_share, abs=0.002)


def test_speculation_is_entered_after_the_rounds_that_make_it_sure() -> None:
    """sure_rounds: 16 judged rounds, one that settles, and the next look is after 20."""
    lane = Driver(rounds_of(1.5), cap=2, verdict=Verdict.DECLINE)
    ran = stretches(lane.run(700))
    assert ran[:2] == [("VERDICT_DECLINED", 512), ("GATE_PROBE_SPECULATIVE", 20)]
    assert lane.speculates()


def test_a_declining_verdict_is_worth_two_waits() -> None:
    """declined_factor."""
    lane = Driver(Machine(kept=lambda _: 0), cap=2, verdict=Verdict.DECLINE)
    assert stretches(lane.run(600))[0] == ("VERDICT_DECLINED", GATE.declined_factor * GATE.reprobe_steps)


def test_what_no_width_promises_is_still_looked_at_early() -> None:
    """first_probe_steps: steps before the mode that was never measured there."""
    lane = Driver(Machine(round_ms=lambda _, k: 3.0 * PLAIN_MS, kept=lambda _: 0), cap=2)
    assert stretches(lane.run(100))[:2] == [("DEPTH_PLAIN", GATE.first_probe_steps), ("GATE_PROBE_SPECULATIVE", 4)]


def test_no_loss_makes_a_probe_wait_longer_than_the_longest_wait() -> None:
    """longest_wait_steps: a probe of 60 plain steps a round would else make the next wait for 18,000."""
    lane = Driver(Machine(round_ms=lambda _, k: 60.0 * PLAIN_MS, kept=lambda _: 0), cap=2, config=FREE)
    waits = [steps for reason, steps in stretches(lane.run(9000)) if reason == "GATE_PLAIN"]
    assert waits[0] == GATE.longest_wait_steps


def test_a_step_counts_for_at_most_so_many_times_its_cost() -> None:
    """stall_factor: a stall of a thousand plain steps in a round costs less than the bank holds."""
    stalled = {300, 400, 500, 600}
    lane = Driver(
        Machine(round_ms=lambda _, k: PLAIN_MS, factor=lambda n, _: 1000.0 if n in stalled else 1.0), config=FREE
    )
    assert rounds_share(lane.run(2000)) > 0.98


@pytest.mark.parametrize("settle_steps", [0, 1, 2])
def test_so_many_steps_after_a_change_are_left_out(settle_steps: int) -> None:
    """settle_steps: where as many rounds after each change are bad as are left out, nobody notices."""
    bad: set[int] = set()
    config = dataclasses.replace(FREE, gate=dataclasses.replace(FREE.gate, settle_steps=settle_steps))

    def speculates(bad_rounds: int) -> bool:
        bad.clear()
        lane = Driver(
            Machine(round_ms=lambda _, k: 1.85 * PLAIN_MS, kept=lambda n: int(n not in bad)), cap=2, config=config
        )
        lane.machine.factor = lambda n, rounds: 3.0 if rounds and n in bad else 1.0
        lane.run(64)
        for width in [2, 1] * 100:
            bad.update(range(len(lane.ran), len(lane.ran) + bad_rounds))
            lane.run(8, situation(width))
        return lane.speculates()

    assert speculates(settle_steps)
    assert not speculates(settle_steps + 1)


@pytest.mark.parametrize(("ratio", "alike"), [(1.15, True), (1.3, False)])
def test_regimes_that_promise_about_the_same_are_judged_by_the_same_text(ratio: float, alike: bool) -> None:
    """alike_within: a text that stopped paying in one regime does not pay in a like one."""
    lane = Driver(Machine(round_ms=lambda at, _: PLAIN_MS * (1.5 * ratio if at.width > 1 else 1.5)), cap=2, config=FREE)
    lane.run(200, situation(4))
    lane.run(200, situation(1))
    lane.machine.kept = lambda _: 0
    lane.run(400, situation(1))
    assert not lane.speculates(situation(1))
    assert lane.speculates(situation(4)) is not alike


@pytest.mark.parametrize(("away", "expired"), [(8000, False), (8400, True)])
def test_what_a_regime_believed_is_a_guess_after_so_many_steps_elsewhere(away: int, expired: bool) -> None:
    """expiry_steps: rounds lost there once; by now costs and acceptance promise that they pay."""
    lane = Driver(Machine(round_ms=lambda at, _: 1.5 * PLAIN_MS, kept=lambda _: 0), cap=2, config=FREE)
    lane.run(100, situation(4))
    assert not lane.speculates(situation(4))
    lane.machine.kept = lambda _: 1
    lane.machine.round_ms = lambda at, _: PLAIN_MS * (1.0 if at.width == 1 else 1.9)
    lane.run(100, situation(32))  # so that what is learned next is learned elsewhere, and unlike
    lane.run(away, situation(32))
    assert (lane.lane.preview(situation(4), 0.0).reason is not Reason.GATE_PLAIN) is expired


def test_a_ceiling_of_nothing_always_holds() -> None:
    """regret_ceiling: 0 holds always, from the first judgement after 512 steps on."""
    config = CoreConfig(gate=dataclasses.replace(GATE, regret_ceiling=0.0))
    lane = Driver(rounds_of(1.5), cap=2, config=config)
    lane.run(600)
    assert lane.lane.regret.holding
    assert {step.mode for step in lane.run(2000)} == {Mode.SPECULATIVE}

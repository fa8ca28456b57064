"""What simulation and reading found wrong in a gate elsewhere, each as a story with a bound in numbers.

Goes on where `test_known_weaknesses.py` ends: a story's docstring says what happened there, its asserts say how
much of it may happen with the default lane here.
"""

import itertools
import statistics

import numpy as np
import pytest
from tests.unit.policy.driver import NOW, PLAIN_MS, Driver, Machine, plain_share, rate, rounds_share, situation

from burstgate_bench.gate.arms import default_policy
from burstgate_bench.gate.families import FAMILIES
from burstgate_bench.gate.machine import correlated_noise
from burstgate_bench.gate.play import play
from burstgate_bench.gate.recipe import build
from burstgate_policy.core.types import BurstOutcome, Grant, Reason, Situation, StepRecord, Verdict

WIDTHS = [1, 2, 4, 8, 16, 32]
FAST = Machine(round_ms=lambda _, k: PLAIN_MS)
"""Rounds keep one draft for the price of a plain step: twice as fast."""
HOPELESS = Machine(kept=lambda _: 0)
"""Rounds keep nothing and cost half as much again."""


@pytest.mark.parametrize("verdict", [None, Verdict.ENABLE], ids=["cold", "enabled"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("depth_tokens", [100, 1000, 8000])
def test_s19_the_mode_that_was_never_measured_is_measured_early(
    width: int, depth_tokens: int, verdict: Verdict | None
) -> None:
    """Up to a thousand tokens of each sequence went by before plain was first measured; short requests never saw it,
    and wide batches waited longest."""
    lane = Driver(HOPELESS, verdict=verdict, table=False)
    ran = lane.run(600, situation(width, depth_tokens))
    assert next(number for number, step in enumerate(ran) if not step.rounds) <= 16
    assert sum(step.rounds for step in ran) <= 96
    assert rate(lane.run(400, situation(width, depth_tokens))) > 0.97 * width * 1000.0 / PLAIN_MS


@pytest.mark.parametrize("width", WIDTHS)
def test_s20_parked_speculation_costs_as_little_in_a_wide_batch(width: int) -> None:
    """While plain ran, speculation was probed every 256 tokens of the batch: at width 32 in two thirds of the steps,
    for a quarter of the throughput."""
    lane, at = Driver(HOPELESS), situation(width)
    lane.run(200, at)
    ran = lane.run(4000, at)
    assert rounds_share(ran) < 0.02
    assert rate(ran) > 0.99 * width * 1000.0 / PLAIN_MS


@pytest.mark.parametrize("period", range(1, 41))
def test_s21_a_batch_that_flaps_between_two_buckets_learns_all_the_same(period: int) -> None:
    """Windows never closed while a fifth row came and went; a probe that was open stayed open for good."""

    def flapping(number: int) -> Situation:
        return situation(5 if number // period % 2 else 4)

    paying = Driver(FAST)
    paying.run(200, flapping)
    assert rounds_share(paying.run(800, flapping)) > 0.95
    hopeless = Driver(HOPELESS)
    hopeless.run(200, flapping)
    assert plain_share(hopeless.run(800, flapping)) > 0.95


@pytest.mark.parametrize("answer_tokens", [50, 100, 200, 400])
def test_s22_requests_of_other_lengths_in_turn_cost_nothing(answer_tokens: int) -> None:
    """Every request of another length was a new regime and was measured anew: 49 % of the steps ran plain with
    answers of 50 tokens."""
    lane = Driver(Machine(round_ms=lambda _, k: 1.2 * PLAIN_MS))
    steps = answer_tokens // 2

    def turns(number: int) -> Situation:
        return situation(depth_tokens=(300, 3000)[number // steps % 2] + 2 * (number % steps))

    ran = lane.run(4000, turns)
    assert plain_share(ran) < 0.03
    assert rate(ran) > 0.99 * 2.0 * 1000.0 / (1.2 * PLAIN_MS)


@pytest.mark.parametrize("ran_of_probe", [1, 2, 3])
def test_s23_a_probe_cut_by_a_change_of_width_compares_nothing(ran_of_probe: int) -> None:
    """Plain measured at the new width was held against rounds of the old one."""

    def plain_ms(at: Situation) -> float:
        return PLAIN_MS / at.width**0.5

    lane = Driver(Machine(plain_ms=plain_ms, round_ms=lambda at, _: 1.2 * plain_ms(at)))
    lane.until(Reason.GATE_PROBE_PLAIN, 100)
    lane.run(ran_of_probe)
    ran = lane.run(200, situation(16))
    assert plain_share(ran) <= 8 / 200
    assert lane.speculates(situation(16))


def test_s24_losses_in_one_context_are_not_carried_into_another() -> None:
    """A loss that was counted in a short context and one that was counted in a long one together switched."""
    long = situation(depth_tokens=3000)
    lane = Driver(Machine(round_ms=lambda _, k: 1.2 * PLAIN_MS))
    lane.run(200)
    lane.run(200, long)
    lane.machine.kept = lambda _: 0
    losing = lane.until(Reason.GATE_PROBE_PLAIN, 600)  # The account of short contexts is as low as it may be.
    assert losing > 64
    lane.machine.kept = lambda _: 1
    assert lane.speculates(long)
    assert rounds_share(lane.run(400, long)) > 0.97
    # A third of what it took to lose there does not switch here.
    lane.machine.kept = lambda _: 0
    lane.run(losing // 3, long)
    assert lane.speculates(long)


def switches(lane: Driver) -> int:
    """Changes between plain steps and rounds, probes aside."""
    modes = [step.rounds for step in lane.ran if not step.mode.probes]
    return sum(before != after for before, after in itertools.pairwise(modes))


def test_s25_equal_modes_hardly_ever_change_places() -> None:
    """Equal modes under noise of a tenth that lasts for 16 steps changed places ten times in 20,000 steps.

    Here they do so once in most runs and three times at most.
    """
    counts = []
    for seed in range(6):
        noise = correlated_noise(np.random.default_rng(seed), 0.1)
        lane = Driver(
            Machine(round_ms=lambda _, k: 2.0 * PLAIN_MS, factor=lambda n, _, noise=noise: noise[n]),  # type: ignore[misc]
            cap=2,
        )
        lane.run(20_000)
        counts.append(switches(lane))
    assert statistics.fmean(counts) <= 2.0
    assert max(counts) <= 3


def test_s25_equal_modes_do_not_change_places_while_one_is_held() -> None:
    """As above, under the ceiling: which of two equal modes is the cheaper one changes with every few steps."""
    world = build("equal_modes", FAMILIES["equal_modes"], seed=110, index=0, steps=4000).world
    lane = default_policy(world)
    held: list[bool] = []

    class Watched:
        def decide(self, at: Situation, now_s: float) -> Grant:
            held.append(lane.regret.holding)
            return lane.decide(at, now_s)

        def observe(self, outcome: BurstOutcome, now_s: float) -> None:
            lane.observe(outcome, now_s)

    switched = play(world, Watched()).switched
    assert any(held)
    assert switched.sum() <= 5


@pytest.mark.parametrize("width", WIDTHS)
def test_s26_healthy_speculation_pays_next_to_nothing_for_being_checked(width: int) -> None:
    """Checking plain took 3 % of the steps and 0.8 % of the throughput of speculation that paid."""
    lane, at = Driver(Machine(round_ms=lambda _, k: 1.3 * PLAIN_MS)), situation(width)
    lane.run(64, at)
    ran = lane.run(8000, at)
    assert plain_share(ran) < 0.012
    assert rate(ran) > 0.995 * width * 2.0 * 1000.0 / (1.3 * PLAIN_MS)


def test_s27_the_width_of_a_round_is_chosen_and_priced_by_itself() -> None:
    """The gate knew one draft width: changes of it moved its estimate unseen, and at four streams one draft a round
    would have beaten its three by 12 %."""
    measured_ms = {1: (80.0, 89.3, 96.3, 100.6), 4: (85.1, 93.6, 129.6, 135.5)}
    draws = np.random.default_rng(0).random((3, 8000)) < np.array([[0.71], [0.51], [0.44]])

    def kept(number: int) -> int:
        return int(np.cumprod(draws[:, number]).sum())

    machine = Machine(
        plain_ms=lambda at: measured_ms[4 if at.width > 2 else 1][0],
        round_ms=lambda at, k: measured_ms[4 if at.width > 2 else 1][k - 1],
        kept=kept,
    )
    for width, best_ms, best in ((1, 100.6, 4), (4, 93.6, 2)):
        lane = Driver(machine)
        lane.run(100, situation(width))
        ran = lane.run(4000, situation(width))
        held = statistics.fmean(min(kept(number), best - 1) + 1 for number in range(100, 4100))
        assert rate(ran) > 0.97 * width * held * 1000.0 / best_ms
    # Rows near their ends leave room for narrow rounds only, which gain little; wide ones pay well.
    uneven = Driver(Machine(round_ms=lambda _, k: (1.7 + 0.05 * k) * PLAIN_MS, kept=lambda _: 7), cap=8)
    ran = uneven.run(3000, lambda number: situation(cap=2 if number // 25 % 2 else 8))
    assert plain_share(ran) < 0.03


def test_s28_a_round_that_failed_never_flatters_speculation() -> None:
    """A verify that failed was charged one token for next to no time, which made speculation look fast."""
    lane = Driver(HOPELESS)
    at, failed = situation(), 0
    for number in itertools.count(1):
        if not lane.speculates():
            break
        assert number <= 120
        grant = lane.lane.decide(at, NOW)
        if grant.mode.speculates and number % 3 == 0:  # instead of this step nothing came of it
            failed += 1
            lane.lane.observe(BurstOutcome("", next(lane._sequence), (failed_round(grant),), 0), NOW)
        lane.run(1, at)
    assert failed >= 10
    slow = 1000.0 / (1.5 * PLAIN_MS)
    assert (lane.lane.speculative_tokens_per_second or 0.0) <= 1.01 * slow
    assert plain_share(lane.run(1000)) > 0.98


def failed_round(grant: Grant) -> StepRecord:
    return StepRecord(grant.mode, grant.draft_width, 1, 100, 0, 0, (), 0.0, 0.05, 0.0, 0.05, excluded=False)

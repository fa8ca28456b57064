"""What a profile says and how sure it is."""

import dataclasses
import math
import random
import statistics
from collections.abc import Callable

import pytest

from burstgate_policy.core.evidence import traffic_kinds, weigh
from burstgate_policy.core.profile import Profile, ProfileSample
from burstgate_policy.core.profiled_burst import ProfiledBurst
from burstgate_policy.core.types import Mode, StepRecord
from burstgate_policy.core.verdict_config import VerdictConfig

CONFIG = VerdictConfig()


def burst(
    tokens: float = 3.0,
    *,
    round_ms: float = 100.0,
    plain_ms: float | None = 70.0,
    rounds: int = 8,
    proposed: int = 5,
    depth_tokens: int = 100,
) -> ProfileSample:
    emitted = round(tokens * rounds)
    return ProfileSample(
        rounds=rounds,
        row_rounds=rounds,
        emitted=emitted,
        proposed=proposed * rounds,
        accepted=emitted - rounds,
        tried=(proposed - 1) * rounds,
        draft_ms=0.0,
        verify_ms=round_ms * rounds,
        overhead_ms=0.0,
        plain_step_ms=plain_ms,
        plain_steps=0 if plain_ms is None else 2,
        depth_tokens=depth_tokens,
    )


def profile(*bursts: ProfileSample) -> Profile:
    whole = Profile()
    for index, each in enumerate(bursts):
        whole = whole.with_sample(each, probe_means_kept=8, now_s=1000.0 + index)
    return whole


def test_the_counts_times_and_instants_are_those_of_the_bursts() -> None:
    evidence = weigh(profile(*[burst()] * 4), CONFIG).evidence
    assert (evidence.rounds, evidence.plain_steps, evidence.traffic_kinds) == (32, 8, 1)
    assert (evidence.first_seen_at, evidence.last_seen_at) == (1000.0, 1003.0)
    assert (evidence.round_ms, evidence.plain_step_ms) == (100.0, 70.0)
    assert evidence.speedup == pytest.approx(2.1)
    assert evidence.confidence == 0.9


def test_bursts_that_agree_leave_no_doubt_and_bursts_that_differ_do() -> None:
    calm = weigh(profile(*[burst()] * 4), CONFIG).evidence
    assert calm.speedup_low == pytest.approx(calm.speedup_high)
    assert calm.spread == 0.0
    wild = weigh(profile(burst(1.0), burst(5.0), burst(2.0), burst(4.0)), CONFIG).evidence
    assert wild.speedup == pytest.approx(2.1)
    assert wild.speedup_low < 1.2
    assert wild.speedup_high > 3.5
    assert wild.spread == pytest.approx(statistics.stdev([0.7, 3.5, 1.4, 2.8]))


def test_the_interval_is_the_stated_formula() -> None:
    tokens = [2.0, 3.0, 4.0, 3.0]
    evidence = weigh(profile(*[burst(each) for each in tokens]), CONFIG).evidence
    logs = [math.log((sum(tokens) - each) / 3 * 70 / 100) for each in tokens]
    mean = sum(logs) / 4
    half = 2.353 * math.sqrt(3 / 4 * sum((log - mean) ** 2 for log in logs))
    assert evidence.speedup_low == pytest.approx(2.1 * math.exp(-half))
    assert evidence.speedup_high == pytest.approx(2.1 * math.exp(half))


def test_a_burst_of_more_rounds_weighs_more() -> None:
    evidence = weigh(profile(burst(4.0, rounds=30), burst(1.0, rounds=10)), CONFIG).evidence
    assert evidence.speedup == pytest.approx(3.25 * 0.7)


def test_plain_steps_that_disagree_widen_the_interval_and_one_compiling_burst_does_not() -> None:
    unsure = weigh(profile(*[burst(plain_ms=ms) for ms in (50.0, 60.0, 80.0, 90.0)]), CONFIG).evidence
    assert unsure.speedup_high / unsure.speedup_low > 1.5
    compiled = weigh(profile(burst(plain_ms=1576.0), *[burst(plain_ms=70.0)] * 3), CONFIG).evidence
    assert compiled.speedup == pytest.approx(2.1)
    assert compiled.speedup_high / compiled.speedup_low < 1.01


def test_one_burst_cannot_disagree_with_itself_and_is_not_believed() -> None:
    evidence = weigh(profile(burst()), CONFIG).evidence
    assert evidence.speedup_low == pytest.approx(2.1 / 4)
    assert evidence.speedup_high == pytest.approx(2.1 * 4)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    source = random.Random(5)
    covered = 0
    for _ in range(400):
        bursts = [burst(1.0 + source.gauss(2.0, 0.4), round_ms=source.gauss(100.0, 5.0), rounds=80) for _ in range(6)]
        evidence = weigh(profile(*bursts), CONFIG).evidence
        covered += evidence.speedup_low <= 2.1 <= evidence.speedup_high
    assert 0.84 <= covered / 400 <= 0.95


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_times_that_are_no_numbers_give_no_estimate_and_no_number_that_is_none(wrong: float) -> None:
    weighed = weigh(profile(*[burst(round_ms=wrong)] * 4), CONFIG)
    assert weighed.speedup is None
    assert weighed.evidence.speedup == 0.0
    for value in dataclasses.astuple(weighed.evidence):
        assert math.isfinite(value)


def test_without_plain_steps_the_closed_form_is_weighed() -> None:
    weighed = weigh(profile(*[burst(plain_ms=None)] * 4), CONFIG)
    assert not weighed.measured
    assert weighed.speedup == pytest.approx(3.0)
    assert weighed.evidence.plain_step_ms == 0.0


def test_kinds_of_traffic_differ_in_acceptance_or_depth() -> None:
    def kinds(*bursts: ProfileSample) -> int:
        return traffic_kinds(profile(*bursts), CONFIG)

    assert kinds() == 0
    assert kinds(burst(3.0), burst(3.0)) == 1
    assert kinds(burst(3.0), burst(3.5), burst(4.0)) == 1  # shares 0.5 to 0.75
    assert kinds(burst(1.5), burst(4.0)) == 2
    assert kinds(burst(1.0), burst(3.0), burst(6.0)) == 3
    assert kinds(burst(depth_tokens=100), burst(depth_tokens=511)) == 1
    assert kinds(burst(depth_tokens=511), burst(depth_tokens=512)) == 2
    assert kinds(burst(depth_tokens=1024), burst(depth_tokens=2047), burst(depth_tokens=2048)) == 2


def test_one_text_drafted_at_two_widths_is_one_kind(make_step: Callable[..., StepRecord]) -> None:
    """One draft in two is kept: at K=2 that is half of those proposed, at K=8 a seventh."""
    bursts = []
    for draft_width in (2, 8):
        sums = ProfiledBurst()
        for kept in (0, 1, 0, 1, 0, 1, 0, 1) if draft_width == 2 else (0, 0, 1, 3, 0, 1, 0, 2):
            sums.add_round(make_step(Mode.PROBE_SPECULATIVE, draft_width=draft_width, accepted=kept))
        bursts.append(sums.sample())
    assert [burst.accepted / burst.tried for burst in bursts] == [0.5, 7 / 15]
    assert traffic_kinds(profile(*bursts), CONFIG) == 1


def test_an_acceptance_that_is_the_same_at_two_depths_is_counted_at_both() -> None:
    bursts = [burst(tokens, depth_tokens=depth) for tokens in (1.0, 6.0) for depth in (100, 5000)]
    assert traffic_kinds(profile(*bursts), CONFIG) == 4


def test_plain_steps_whose_middle_is_beyond_every_number_fall_back_to_the_closed_form() -> None:
    weighed = weigh(profile(burst(plain_ms=8.9e307), burst(plain_ms=9.1e307)), CONFIG)
    assert not weighed.measured
    assert weighed.evidence.plain_step_ms == 0.0

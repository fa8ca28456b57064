"""A pairing that pays at one batch width or depth and not at another."""

import dataclasses

import pytest
from tests.unit.policy.loop import MIDWAY, NOW, Loop, MakeStep

from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.places import Places
from burstgate_policy.core.profile import ProfileSample
from burstgate_policy.core.types import (
    CostCell,
    LaneCapabilities,
    Mode,
    PolicyKey,
    Reason,
    Situation,
    State,
    StepRecord,
    Verdict,
)
from burstgate_policy.core.verdict_config import VerdictConfig

CONFIG = VerdictConfig()
WIDE = dataclasses.replace(MIDWAY, width=8)


def burst(speedup: float, *, width: int = 1, depth_tokens: int = 100, plain_ms: float | None = 60.0) -> ProfileSample:
    return ProfileSample(
        rounds=8,
        row_rounds=8000,
        emitted=round(16_000 * speedup),
        proposed=1000,
        accepted=500,
        draft_ms=0.0,
        verify_ms=960.0,
        overhead_ms=0.0,
        plain_step_ms=plain_ms,
        tried=1000,
        plain_steps=2,
        width=width,
        depth_tokens=depth_tokens,
    )


def at(width: int = 1, depth_tokens: int = 100) -> Situation:
    return dataclasses.replace(MIDWAY, width=width, depth_tokens=depth_tokens)


@pytest.fixture
def places() -> Places:
    return Places(static_default=False, config=CONFIG)


def add(places: Places, *bursts: ProfileSample, now_s: float = NOW) -> None:
    for each in bursts:
        places.add(each, now_s)


def verdict(places: Places, situation: Situation, now_s: float = NOW) -> Verdict | None:
    found = places.verdict(situation, now_s)
    return None if found is None else found.verdict


def test_each_place_says_what_it_saw_itself(places: Places) -> None:
    add(places, *[burst(2.5)] * 4, *[burst(0.5, width=8)] * 4, *[burst(0.6, depth_tokens=9000)] * 4)
    assert verdict(places, at()) is Verdict.ENABLE
    assert verdict(places, at(width=5)) is Verdict.DECLINE  # 5 to 8 rows are one bucket
    assert verdict(places, at(depth_tokens=12_000)) is Verdict.DECLINE
    assert verdict(places, at(width=4)) is None
    assert verdict(places, at(depth_tokens=600)) is None


def test_a_place_needs_as_much_as_a_verdict(places: Places) -> None:
    add(places, *[burst(2.5)] * 3)
    assert verdict(places, at()) is None
    add(places, burst(2.5))
    assert verdict(places, at()) is Verdict.ENABLE


def test_a_place_whose_interval_reaches_both_sides_says_nothing(places: Places) -> None:
    add(places, *[burst(speedup) for speedup in (0.8, 2.5, 1.2, 2.9)])
    assert verdict(places, at()) is None


def test_a_place_without_plain_steps_says_nothing(places: Places) -> None:
    add(places, *[burst(2.5, plain_ms=None)] * 8)
    assert verdict(places, at()) is None


def test_the_newest_bursts_count(places: Places) -> None:
    add(places, *[burst(0.5)] * 8, *[burst(2.5)] * 4)
    assert verdict(places, at()) is None
    add(places, *[burst(2.5)] * 4)
    assert verdict(places, at()) is Verdict.ENABLE


def test_only_so_many_places_are_kept(places: Places) -> None:
    for power in range(20):
        add(places, *[burst(2.5, width=1 << power)] * 4)
    assert verdict(places, at(width=1 << 3)) is None
    assert verdict(places, at(width=1 << 4)) is Verdict.ENABLE
    assert verdict(places, at(width=1 << 19)) is Verdict.ENABLE


def test_a_place_that_was_not_seen_for_a_verdicts_life_says_nothing(places: Places) -> None:
    add(places, *[burst(2.5)] * 4)
    assert verdict(places, at(), NOW + CONFIG.ttl_s - 1.0) is Verdict.ENABLE
    assert verdict(places, at(), NOW + CONFIG.ttl_s) is None


@pytest.mark.parametrize(
    ("width", "depth_tokens", "words"),
    [
        (1, 0, "at 1 row and under 512 tokens"),
        (2, 600, "at 2 rows and 512 to 1023 tokens"),
        (4, 1024, "at 3 to 4 rows and 1024 to 2047 tokens"),
        (9, 5000, "at 9 to 16 rows and 4096 to 8191 tokens"),
    ],
)
def test_a_place_is_named_by_its_rows_and_tokens(places: Places, width: int, depth_tokens: int, words: str) -> None:
    add(places, *[burst(0.5, width=width, depth_tokens=depth_tokens)] * 4)
    (sentence,) = places.unlike(Verdict.ENABLE, NOW)
    assert sentence.startswith(words)
    assert "does not pay: 0.50 times plain speed" in sentence
    assert places.unlike(Verdict.DECLINE, NOW) == []


@pytest.fixture
def policy(key: PolicyKey) -> MtpPolicy:
    return MtpPolicy.start(
        key, force=None, adaptive=True, static_default=False, hint=None, config=CoreConfig(), now_s=NOW
    )


def record(policy: MtpPolicy, *bursts: ProfileSample, now_s: float = NOW) -> None:
    for each in bursts:
        policy.record(each, now_s)


def make_loop(policy: MtpPolicy, capabilities: LaneCapabilities, costs: list[CostCell], make_step: MakeStep) -> Loop:
    return Loop(Lane(policy, capabilities, costs, CoreConfig()), make_step, round_ms=90.0, accepted=2)


def test_a_verdict_for_one_row_is_not_used_at_eight(
    policy: MtpPolicy, capabilities: LaneCapabilities, costs: list[CostCell], make_step: MakeStep
) -> None:
    """One verdict for all widths would speculate at eight rows, or at none."""
    record(policy, *[burst(2.6)] * 4, *[burst(0.9, width=8)] * 4)
    view = policy.snapshot(NOW)
    assert view.verdict is Verdict.ENABLE
    assert "at 5 to 8 rows and under 512 tokens of context speculation does not pay" in view.explanation
    loop = make_loop(policy, capabilities, costs, make_step)
    assert loop.burst(MIDWAY).reason is Reason.GATE_SPECULATIVE
    grant = loop.burst(WIDE)
    assert (grant.reason, grant.mode) == (Reason.VERDICT_DECLINED, Mode.PLAIN)
    assert "at this batch width and depth" in grant.explanation
    rules = loop.lane.explain(WIDE, NOW)
    assert (rules[-1].rule, rules[-1].decided) == ("verdict", True)


def test_a_place_that_declines_is_measured_again_with_the_pairing(
    policy: MtpPolicy, capabilities: LaneCapabilities, costs: list[CostCell], make_step: MakeStep
) -> None:
    record(policy, *[burst(2.6)] * 4, *[burst(0.9, width=8)] * 4)
    loop = make_loop(policy, capabilities, costs, make_step)
    reasons = set()
    for _ in range(3):
        challenge_at = policy.snapshot(loop.now_s).rechallenge_at
        assert challenge_at is not None
        loop.now_s = challenge_at
        for _ in range(60):
            reasons.add(loop.burst(WIDE).reason)
    assert Reason.RECHALLENGE in reasons
    assert loop.burst(WIDE).reason in {Reason.GATE_SPECULATIVE, Reason.GATE_PROBE_PLAIN}


def test_what_overturned_a_verdict_is_not_weighed_against_what_it_overturned(policy: MtpPolicy) -> None:
    record(policy, *[burst(0.5)] * 8)
    challenge_at = policy.snapshot(NOW).rechallenge_at
    assert challenge_at is not None
    policy.advance(challenge_at)
    # A deep burst makes two kinds of traffic, so that four bursts are enough.
    record(policy, *[burst(2.5)] * 4, *[burst(2.5, depth_tokens=9000)], now_s=challenge_at)
    assert policy.snapshot(challenge_at).verdict is Verdict.ENABLE
    assert verdict(policy._places, at(), challenge_at) is Verdict.ENABLE


def test_a_reset_and_drift_forget_the_places(policy: MtpPolicy) -> None:
    bursts = [*[burst(2.6)] * 4, *[burst(0.9, width=8)] * 4]
    record(policy, *bursts)
    policy.reset()
    assert verdict(policy._places, at(width=8)) is None
    record(policy, *bursts)
    assert verdict(policy._places, at(width=8)) is Verdict.DECLINE
    dear = StepRecord(Mode.SPECULATIVE, 8, 1, 100, 1, 7, (0,) * 7, 0.0, 900.0, 0.0, 900.0, False)
    for _ in range(64):
        policy.note_round(dear, NOW)
    assert policy.snapshot(NOW).state is State.PROFILING
    assert verdict(policy._places, at(width=8)) is None

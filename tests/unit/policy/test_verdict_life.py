"""What becomes of a verdict: how it is earned, doubted, overturned, overruled and shared.

Where the plain rules are weak the weakness is shown first, under `VerdictConfig.seed()`.
"""

import dataclasses
import math

import pytest

from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.hint import Hint
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.profile import ProfileSample
from burstgate_policy.core.stages import Profiling, Settled
from burstgate_policy.core.starvation import NoRound
from burstgate_policy.core.types import Evidence, Mode, Pin, PolicyKey, Snapshot, State, StepRecord, Verdict
from burstgate_policy.core.verdict_config import DriftConfig, VerdictConfig

T0 = 1_800_000_000.0
DEFAULT = VerdictConfig()
SEED = VerdictConfig.seed()


def start(
    key: PolicyKey,
    config: VerdictConfig = DEFAULT,
    *,
    static_default: bool = False,
    hint: Hint | None = None,
    force: bool | None = None,
    adaptive: bool = True,
    now_s: float = T0,
) -> MtpPolicy:
    return MtpPolicy.start(
        key,
        force=force,
        adaptive=adaptive,
        static_default=static_default,
        hint=hint,
        config=CoreConfig(verdict=config),
        now_s=now_s,
    )


def burst(
    speedup: float, *, rate: float = 0.5, rounds: int = 8, depth_tokens: int = 100, plain_ms: float | None = 60.0
) -> ProfileSample:
    """A burst whose rounds cost 120 ms against 60 ms of a plain step."""
    return ProfileSample(
        rounds=rounds,
        row_rounds=rounds * 1000,
        emitted=round(2.0 * speedup * rounds * 1000),
        proposed=1000,
        accepted=round(1000 * rate),
        tried=1000,
        draft_ms=0.0,
        verify_ms=120.0 * rounds,
        overhead_ms=0.0,
        plain_step_ms=plain_ms,
        plain_steps=2,
        depth_tokens=depth_tokens,
    )


def two_kinds(*speedups: float) -> list[ProfileSample]:
    return [burst(speedup, rate=0.2 if index % 2 else 0.8) for index, speedup in enumerate(speedups)]


def record(policy: MtpPolicy, samples: list[ProfileSample], now_s: float = T0) -> Snapshot:
    for sample in samples:
        policy.record(sample, now_s)
    return policy.snapshot(now_s)


def challenge(policy: MtpPolicy, samples: list[ProfileSample]) -> Snapshot:
    """Waits for the next challenge, and gives it these bursts."""
    assert isinstance(policy.stage, Settled)
    now_s = policy.stage.rechallenge_at_s
    policy.advance(now_s)
    assert policy.stage.challenge is not None
    return record(policy, samples, now_s)


# How a verdict is earned.


def test_four_one_round_bursts_settle_by_the_plain_rules_only(key: PolicyKey) -> None:
    samples = [burst(2.0, rounds=1, rate=0.2 if i % 2 else 0.8) for i in range(4)]
    assert record(start(key, SEED), samples).state is State.SETTLED
    assert record(start(key), samples).state is State.PROFILING


def test_thirty_two_rounds_settle_however_they_are_cut(key: PolicyKey) -> None:
    policy = start(key)
    samples = [burst(2.0, rounds=1, rate=0.2 if i % 2 else 0.8) for i in range(32)]
    assert record(policy, samples[:31]).state is State.PROFILING
    assert record(policy, samples[31:]).verdict is Verdict.ENABLE


def test_one_odd_prompt_declines_for_good_by_the_plain_rules_only(key: PolicyKey) -> None:
    """Nothing is accepted on the first prompt; on all others the pairing pays."""
    odd, usual = [burst(0.5, rate=0.0)] * 4, two_kinds(2.5, 2.6, 2.5, 2.6)
    plain = start(key, SEED)
    assert record(plain, odd).verdict is Verdict.DECLINE
    assert record(plain, usual * 9).verdict is Verdict.DECLINE
    policy = start(key)
    assert "one kind of traffic" in record(policy, odd).explanation
    assert record(policy, usual[:1]).state is State.PROFILING  # two kinds that contradict each other decide nothing
    assert record(policy, usual * 3).verdict is Verdict.ENABLE


def test_one_stalled_burst_of_four_does_not_decline_a_pairing_that_pays(key: PolicyKey) -> None:
    first, second, third, fourth = two_kinds(2.5, 2.5, 2.5, 2.5)
    bursts = [first, second, dataclasses.replace(third, verify_ms=20 * third.verify_ms), fourth]
    assert record(start(key, SEED), bursts).verdict is Verdict.DECLINE
    assert record(start(key), bursts).verdict is Verdict.ENABLE


def test_an_interval_that_holds_both_verdicts_decides_nothing(key: PolicyKey) -> None:
    """Half of the bursts pay and half of them cost twice what they give."""
    wild = two_kinds(0.5, 2.6, 0.5, 2.6)
    assert record(start(key, SEED), wild).verdict is Verdict.ENABLE
    policy = start(key)
    view = record(policy, wild)
    assert view.state is State.PROFILING
    assert "hold both answers" in view.explanation
    assert record(policy, two_kinds(2.6, 2.6, 2.6, 2.6) * 3).verdict is Verdict.ENABLE


def test_a_single_kind_of_traffic_settles_after_patience_and_is_doubted_earlier(key: PolicyKey) -> None:
    policy = start(key)
    assert record(policy, [burst(2.0)] * 7).state is State.PROFILING
    single = record(policy, [burst(2.0)])
    both = record(start(key), two_kinds(2.0, 2.0, 2.0, 2.0))
    assert (single.verdict, both.verdict) == (Verdict.ENABLE, Verdict.ENABLE)
    assert single.evidence is not None
    assert single.evidence.traffic_kinds == 1
    assert (single.rechallenge_at, both.rechallenge_at) == (T0 + 300.0, T0 + 600.0)


def test_an_interval_that_reaches_the_other_verdict_is_doubted_earlier(key: PolicyKey) -> None:
    view = record(start(key), two_kinds(1.1, 2.0, 1.3, 2.4))
    assert view.verdict is Verdict.ENABLE
    assert view.rechallenge_at == T0 + 300.0


def test_the_thresholds_stay_those_of_the_point_estimate(key: PolicyKey) -> None:
    assert record(start(key), two_kinds(1.5, 1.5, 1.5, 1.5)).verdict is Verdict.ENABLE
    assert record(start(key), two_kinds(1.499, 1.499, 1.499, 1.499)).verdict is Verdict.DECLINE
    assert record(start(key, static_default=True), two_kinds(1.001, 1.001, 1.001, 1.001)).verdict is Verdict.ENABLE
    assert record(start(key, static_default=True), two_kinds(1.0, 1.0, 1.0, 1.0)).verdict is Verdict.DECLINE


def test_the_profile_so_far_is_shown_as_evidence(key: PolicyKey) -> None:
    policy = start(key)
    assert policy.snapshot(T0).evidence is None
    evidence = record(policy, [burst(2.0)]).evidence
    assert evidence is not None
    assert evidence.rounds == 8


# How it is doubted.


def test_a_verdict_of_the_plain_rules_never_changes_and_here_it_expires(key: PolicyKey) -> None:
    policy = start(key)
    view = record(policy, two_kinds(0.5, 0.5, 0.5, 0.5))
    assert view.expires_at == T0 + 7 * 86_400
    late = policy.snapshot(T0 + 7 * 86_400)
    assert (late.state, late.verdict, late.speculation_enabled) == (State.PROFILING, Verdict.UNSPECIFIED, False)
    assert "too old" in late.explanation
    assert late.expires_at is None


def test_an_expired_verdict_rules_until_there_is_another(key: PolicyKey) -> None:
    policy = start(key)
    record(policy, two_kinds(2.0, 2.0, 2.0, 2.0))
    later = T0 + 8 * 86_400
    policy.advance(later)
    assert policy.snapshot(later).speculation_enabled
    view = record(policy, two_kinds(0.5, 0.5, 0.5, 0.5), later)
    assert (view.verdict, view.expires_at) == (Verdict.DECLINE, later + 7 * 86_400)


def test_asking_for_a_snapshot_changes_nothing(key: PolicyKey) -> None:
    policy = start(key)
    record(policy, two_kinds(2.0, 2.0, 2.0, 2.0))
    stage, version = policy.stage, policy.version
    policy.snapshot(T0 + 1e9)
    assert (policy.stage, policy.version) == (stage, version)


def test_confirmed_challenges_come_ever_more_rarely_up_to_six_hours(key: PolicyKey) -> None:
    policy = start(key)
    view = record(policy, two_kinds(0.5, 0.5, 0.5, 0.5))
    waits, last = [], T0
    for _ in range(8):
        assert view.rechallenge_at is not None
        waits.append(view.rechallenge_at - last)
        last = view.rechallenge_at
        view = challenge(policy, two_kinds(0.5, 0.5, 0.5, 0.5))
        assert view.verdict is Verdict.DECLINE
    assert waits == [600.0, 1200.0, 2400.0, 4800.0, 9600.0, 19200.0, 21600.0, 21600.0]


def slower(samples: list[ProfileSample], factor: float) -> list[ProfileSample]:
    return [
        dataclasses.replace(
            sample, verify_ms=factor * sample.verify_ms, plain_step_ms=factor * (sample.plain_step_ms or 0.0)
        )
        for sample in samples
    ]


@pytest.mark.parametrize(
    ("speedup", "wait_s"),
    [
        # 32 rounds of 3 s, half of each lost.
        (0.5, 32 * 3.0 * 0.5 / 0.01),
        (0.95, 600.0),
        # 8 plain steps of 1.5 s, of which rounds would have saved half.
        (2.0, 8 * 1.5 * 0.5 / 0.01),
    ],
)
def test_what_a_challenge_lost_is_one_percent_of_the_time_before_the_next(
    key: PolicyKey, speedup: float, wait_s: float
) -> None:
    """On a machine of 1.5 s a step ten minutes are a few challenges long."""
    view = record(start(key), slower(two_kinds(*[speedup] * 4), 25.0))
    assert view.rechallenge_at is not None
    assert view.rechallenge_at - T0 == pytest.approx(max(600.0, wait_s))
    by_plain_rules = record(start(key, SEED), slower(two_kinds(*[speedup] * 4), 25.0))
    assert by_plain_rules.rechallenge_at in {T0 + 300.0, T0 + 600.0}


def test_no_loss_makes_a_challenge_wait_longer_than_six_hours(key: PolicyKey) -> None:
    view = record(start(key), slower(two_kinds(0.5, 0.5, 0.5, 0.5), 1000.0))
    assert view.rechallenge_at == T0 + 21_600.0


def test_a_remembered_verdict_is_not_challenged_sooner_for_having_been_remembered(key: PolicyKey) -> None:
    policy = start(key)
    settled = record(policy, slower(two_kinds(0.5, 0.5, 0.5, 0.5), 25.0))
    restarted = start(key, hint=policy.take_settled()).snapshot(T0)
    assert restarted.rechallenge_at == settled.rechallenge_at


def test_a_verdict_stands_while_it_is_challenged(key: PolicyKey) -> None:
    policy = start(key)
    record(policy, two_kinds(0.5, 0.5, 0.5, 0.5))
    policy.advance(T0 + 600.0)
    view = record(policy, two_kinds(3.0, 3.0, 3.0), T0 + 601.0)
    assert (view.state, view.verdict) == (State.SETTLED, Verdict.DECLINE)
    assert "being challenged, 3 of 4 bursts" in view.explanation


def test_a_clear_challenge_overturns_at_once_and_starts_the_waits_anew(key: PolicyKey) -> None:
    policy = start(key)
    record(policy, two_kinds(0.5, 0.5, 0.5, 0.5))
    challenge(policy, two_kinds(0.5, 0.5, 0.5, 0.5))
    view = challenge(policy, two_kinds(2.4, 2.5, 2.6, 2.5))
    assert view.verdict is Verdict.ENABLE
    assert view.evidence is not None
    assert view.rechallenge_at == view.evidence.last_seen_at + 600.0


def test_an_unclear_challenge_overturns_only_the_third_time_in_a_row(key: PolicyKey) -> None:
    unclear = two_kinds(1.0, 2.2, 1.2, 2.4)
    policy = start(key)
    record(policy, two_kinds(0.5, 0.5, 0.5, 0.5))
    for count in (1, 2):
        view = challenge(policy, unclear)
        assert view.verdict is Verdict.DECLINE
        assert f"{count} of the 3 in a row" in view.explanation
    challenge(policy, two_kinds(0.5, 0.5, 0.5, 0.5))
    assert [challenge(policy, unclear).verdict for _ in range(3)] == [Verdict.DECLINE] * 2 + [Verdict.ENABLE]


def test_a_challenge_without_usable_times_leaves_the_verdict_and_its_evidence(key: PolicyKey) -> None:
    policy = start(key, static_default=True)
    before = record(policy, two_kinds(0.5, 0.5, 0.5, 0.5))
    policy.take_settled()
    broken = [dataclasses.replace(sample, verify_ms=math.nan) for sample in two_kinds(1, 1, 1, 1)]
    after = challenge(policy, broken)
    assert (after.verdict, after.evidence, after.expires_at) == (before.verdict, before.evidence, before.expires_at)
    assert policy.take_settled() is None


def test_a_clock_that_jumps_back_does_not_park_a_verdict(key: PolicyKey) -> None:
    policy = start(key)
    record(policy, two_kinds(0.5, 0.5, 0.5, 0.5))
    stage = policy.stage
    policy.advance(T0 - 3600.0)
    assert policy.stage == stage
    policy.advance(T0 - 1e9)
    assert isinstance(policy.stage, Profiling)


def test_a_challenge_begins_a_campaign_with_probe_steps_of_its_own(key: PolicyKey) -> None:
    policy = start(key)
    assert policy.claim_probe_steps(100) == 8
    record(policy, two_kinds(2.0, 2.0, 2.0, 2.0))
    assert policy.claim_probe_steps(2) == 0
    before = policy.campaign
    policy.advance(T0 + 600.0)
    assert policy.campaign == before + 1
    assert policy.claim_probe_steps(100) == 8


# Drift.


def round_of(tokens: int, round_ms: float, *, width: int = 1, depth_tokens: int = 100) -> StepRecord:
    kept = (width,) * (tokens - 1)
    return StepRecord(
        Mode.SPECULATIVE, 8, width, depth_tokens, tokens * width, 7 * width, kept, 0.0, round_ms, 0.0, round_ms, False
    )


def settled_at_four_tokens(key: PolicyKey) -> MtpPolicy:
    policy = start(key)
    record(policy, two_kinds(2.0, 2.0, 2.0, 2.0))
    return policy


def rounds_until_demoted(policy: MtpPolicy, step: StepRecord, limit: int = 2000, now_s: float = T0) -> int | None:
    for count in range(1, limit + 1):
        policy.note_round(step, now_s)
        if isinstance(policy.stage, Profiling):
            return count
    return None


@pytest.mark.parametrize(("tokens", "round_ms"), [(1, 120.0), (4, 400.0), (8, 120.0)])
def test_acceptance_or_cost_that_moves_out_of_the_interval_demotes(
    key: PolicyKey, tokens: int, round_ms: float
) -> None:
    policy = settled_at_four_tokens(key)
    count = rounds_until_demoted(policy, round_of(tokens, round_ms))
    assert count is not None
    assert 64 <= count <= 120
    view = policy.snapshot(T0)
    assert (view.state, view.speculation_enabled) == (State.PROFILING, True)
    assert "4.00 in 120.0 ms" in view.explanation


@pytest.mark.parametrize(("tokens", "round_ms"), [(4, 120.0), (4, 135.0), (4, 105.0), (8, 240.0), (2, 60.0)])
def test_a_yield_within_the_margin_does_not(key: PolicyKey, tokens: int, round_ms: float) -> None:
    assert rounds_until_demoted(settled_at_four_tokens(key), round_of(tokens, round_ms)) is None


def test_sixty_four_rounds_far_outside_are_what_it_takes(key: PolicyKey) -> None:
    assert rounds_until_demoted(settled_at_four_tokens(key), round_of(1, 900.0)) == 64


def test_a_bad_paragraph_is_not_drift(key: PolicyKey) -> None:
    policy = settled_at_four_tokens(key)
    for _ in range(20):
        assert rounds_until_demoted(policy, round_of(1, 120.0), limit=30) is None
        assert rounds_until_demoted(policy, round_of(4, 120.0), limit=90) is None


def test_one_stall_is_not_drift(key: PolicyKey) -> None:
    policy = settled_at_four_tokens(key)
    assert rounds_until_demoted(policy, round_of(4, 1e6), limit=1) is None
    assert rounds_until_demoted(policy, round_of(4, 120.0)) is None


def test_another_width_or_depth_is_another_place_and_no_drift(key: PolicyKey) -> None:
    policy = settled_at_four_tokens(key)
    assert rounds_until_demoted(policy, round_of(2, 300.0, width=8)) is None
    assert rounds_until_demoted(policy, round_of(2, 300.0, depth_tokens=9000)) is None
    assert rounds_until_demoted(policy, round_of(2, 300.0)) is not None


def test_one_drift_does_not_demote_twice_in_a_row(key: PolicyKey) -> None:
    policy = settled_at_four_tokens(key)
    rounds_until_demoted(policy, round_of(1, 120.0))
    record(policy, two_kinds(2.0, 2.0, 2.0, 2.0))
    assert rounds_until_demoted(policy, round_of(1, 120.0), now_s=T0 + 599.0) is None
    assert rounds_until_demoted(policy, round_of(1, 120.0), now_s=T0 + 600.0) is not None


def test_drift_that_cannot_be_measured_again_does_not_demote_at_once_again(key: PolicyKey) -> None:
    policy = settled_at_four_tokens(key)
    rounds_until_demoted(policy, round_of(1, 120.0))
    for _ in range(256):
        policy.note_no_round(NoRound.NO_ROOM, T0)
    assert policy.snapshot(T0).verdict is Verdict.ENABLE
    assert rounds_until_demoted(policy, round_of(1, 120.0)) is None
    assert rounds_until_demoted(policy, round_of(1, 120.0), now_s=T0 + 600.0) == 64


# Starvation.


def test_profiling_that_never_runs_a_round_ends_with_the_static_gates_answer(key: PolicyKey) -> None:
    policy = start(key, static_default=True)
    for _ in range(200):
        policy.note_no_round(NoRound.NO_ROOM, T0)
    view = policy.snapshot(T0)
    assert (view.state, view.speculation_enabled) == (State.PROFILING, True)
    assert (
        view.starved_because == "the last 200 bursts ran no round: 200 had answers too short to leave room for a draft"
    )
    for _ in range(56):
        policy.note_no_round(NoRound.INELIGIBLE, T0)
    view = policy.snapshot(T0)
    assert (view.state, view.verdict) == (State.SETTLED, Verdict.ENABLE)
    assert "56 had a row that may not speculate" in view.starved_because
    assert "profiling does not progress" in view.explanation
    assert policy.take_settled() is None
    assert policy.hint() is None


def test_a_starved_pairing_is_profiled_later(key: PolicyKey) -> None:
    policy = start(key)
    for _ in range(256):
        policy.note_no_round(NoRound.NOT_RUN, T0)
    view = challenge(policy, two_kinds(2.5, 2.5, 2.5, 2.5))
    assert (view.verdict, view.starved_because) == (Verdict.ENABLE, "")
    assert policy.take_settled() is not None


def test_a_round_ends_the_count(key: PolicyKey) -> None:
    policy = start(key)
    for _ in range(3):
        for _ in range(255):
            policy.note_no_round(NoRound.NO_ROOM, T0)
        policy.note_measurable()
    assert policy.snapshot(T0).state is State.PROFILING
    assert policy.snapshot(T0).starved_because == ""


def test_a_starved_challenge_ends_and_the_verdict_stays(key: PolicyKey) -> None:
    policy = start(key)
    before = record(policy, two_kinds(0.5, 0.5, 0.5, 0.5))
    policy.advance(T0 + 600.0)
    for _ in range(256):
        policy.note_no_round(NoRound.NO_ROOM, T0 + 600.0)
    after = policy.snapshot(T0 + 600.0)
    assert (after.verdict, after.evidence) == (Verdict.DECLINE, before.evidence)
    assert after.rechallenge_at == T0 + 600.0 + 1200.0
    assert after.starved_because


def test_a_settled_policy_does_not_starve(key: PolicyKey) -> None:
    policy = settled_at_four_tokens(key)
    for _ in range(1000):
        policy.note_no_round(NoRound.NO_ROOM, T0)
    assert policy.snapshot(T0).starved_because == ""


# Pins.


ON = Pin(speculate=True, reason="a demonstration", author="ada", pinned_at=T0, expires_at=T0 + 3600.0)


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_pin_rules_above_all_but_force_until_it_expires(key: PolicyKey, adaptive: bool) -> None:
    policy = start(key, adaptive=adaptive, hint=Hint(key, Verdict.DECLINE, 0.1, 4))
    version = policy.version
    policy.pin(ON)
    view = policy.snapshot(T0)
    assert (view.pin, view.speculation_enabled) == (ON, True)
    assert view.explanation.startswith("ada pinned speculation on: a demonstration")
    assert policy.version == version + 1
    assert policy.snapshot(T0 + 3600.0).pin is None
    policy.advance(T0 + 3600.0)
    assert not policy.snapshot(T0).speculation_enabled
    assert policy.version > version + 1


def test_an_operators_force_is_above_a_pin(key: PolicyKey) -> None:
    policy = start(key, force=False)
    policy.pin(ON)
    assert not policy.snapshot(T0).speculation_enabled
    assert policy.snapshot(T0).pin == ON


def test_unpinning_says_whether_there_was_a_pin(key: PolicyKey) -> None:
    policy = start(key)
    assert not policy.unpin()
    policy.pin(dataclasses.replace(ON, expires_at=None))
    assert policy.active_pin(T0 + 1e12) is not None
    assert policy.unpin()
    assert policy.active_pin(T0) is None


# Hints, replicas and resets.


def test_a_restored_verdict_keeps_its_interval_and_expiry(key: PolicyKey) -> None:
    policy = start(key)
    before = record(policy, two_kinds(0.5, 0.6, 0.5, 0.6))
    hint = policy.take_settled()
    assert hint is not None
    restored = start(key, hint=hint, now_s=T0 + 86_400.0)
    view = restored.snapshot(T0 + 86_400.0)
    assert (view.verdict, view.evidence, view.expires_at) == (before.verdict, before.evidence, before.expires_at)
    assert (view.version, view.from_hint, view.speedup) == (hint.version, True, None)
    assert view.rechallenge_at == T0 + 86_400.0 + 600.0


def test_a_hint_that_has_expired_rules_only_until_it_is_measured_again(key: PolicyKey) -> None:
    hint = Hint(key, Verdict.DECLINE, 0.3, 4, settled_at_s=T0 - 8 * 86_400.0, expires_at_s=T0 - 86_400.0)
    view = start(key, hint=hint).snapshot(T0)
    assert (view.state, view.speculation_enabled) == (State.PROFILING, False)


def test_a_hint_that_expires_sooner_than_here_does_so(key: PolicyKey) -> None:
    hint = Hint(key, Verdict.DECLINE, 0.3, 4, settled_at_s=T0 - 60.0, expires_at_s=T0 + 60.0)
    assert start(key, hint=hint).snapshot(T0).expires_at == T0 + 60.0


def test_no_hint_stands_longer_than_a_verdict_may(key: PolicyKey) -> None:
    hint = Hint(key, Verdict.ENABLE, 0.3, 4, settled_at_s=T0 + 1e9, expires_at_s=T0 + 1e12)
    assert start(key, hint=hint).snapshot(T0).expires_at == T0 + 7 * 86_400.0
    assert start(key, hint=Hint(key, Verdict.ENABLE, 0.3, 4)).snapshot(T0).expires_at == T0 + 7 * 86_400.0


def test_every_confirmation_is_persisted_with_a_higher_version(key: PolicyKey) -> None:
    policy = start(key)
    record(policy, two_kinds(0.5, 0.5, 0.5, 0.5))
    first = policy.take_settled()
    challenge(policy, two_kinds(0.5, 0.5, 0.5, 0.5))
    second = policy.take_settled()
    assert first is not None
    assert second is not None
    assert second.version > first.version
    assert second.expires_at_s == T0 + 600.0 + 7 * 86_400.0


def test_a_policy_adopts_what_was_settled_later_elsewhere_and_nothing_older(key: PolicyKey) -> None:
    theirs = Hint(key, Verdict.ENABLE, 0.7, 4, settled_at_s=T0 + 10.0, version=3)
    policy = start(key)
    record(policy, [burst(2.0)])
    assert policy.adopt(theirs, T0 + 11.0)
    assert policy.snapshot(T0 + 11.0).verdict is Verdict.ENABLE
    assert not policy.adopt(theirs, T0 + 12.0)
    assert not policy.adopt(dataclasses.replace(theirs, settled_at_s=T0, verdict=Verdict.DECLINE), T0 + 12.0)
    assert policy.adopt(dataclasses.replace(theirs, settled_at_s=T0 + 11.0, verdict=Verdict.DECLINE), T0 + 12.0)
    assert policy.take_settled() is None


def test_after_a_refused_adoption_the_own_verdict_counts_as_newer(key: PolicyKey) -> None:
    policy = start(key)
    record(policy, two_kinds(0.5, 0.5, 0.5, 0.5))
    assert not policy.adopt(Hint(key, Verdict.ENABLE, 0.7, 4, settled_at_s=T0 - 10.0, version=900), T0)
    hint = policy.hint()
    assert hint is not None
    assert hint.version > 900


def test_a_demoted_verdict_is_not_adopted_back(key: PolicyKey) -> None:
    policy = settled_at_four_tokens(key)
    own = policy.take_settled()
    assert own is not None
    rounds_until_demoted(policy, round_of(1, 120.0))
    assert not policy.adopt(own, T0 + 100.0)
    assert isinstance(policy.stage, Profiling)


@pytest.mark.parametrize("how", [{"force": True}, {"adaptive": False}])
def test_forced_and_static_policies_adopt_and_reset_nothing(key: PolicyKey, how: dict[str, bool]) -> None:
    policy = start(key, **how)  # type: ignore[arg-type]
    stage = policy.stage
    assert not policy.adopt(Hint(key, Verdict.ENABLE, 0.7, 4), T0)
    policy.reset()
    assert policy.stage == stage


def test_a_hint_of_another_pairing_is_not_adopted(key: PolicyKey) -> None:
    other = dataclasses.replace(key, mlx_version="9.9")
    assert not start(key).adopt(Hint(other, Verdict.ENABLE, 0.7, 4), T0)


def test_a_reset_forgets_the_verdict_and_keeps_the_pin(key: PolicyKey) -> None:
    policy = start(key)
    record(policy, two_kinds(2.0, 2.0, 2.0, 2.0))
    policy.pin(ON)
    policy.reset()
    view = policy.snapshot(T0)
    assert (view.state, view.samples, view.evidence, view.pin) == (State.PROFILING, 0, None, ON)
    assert policy.take_settled() is None


def test_a_hint_refuses_numbers_that_no_profile_gives(key: PolicyKey) -> None:
    evidence = Evidence(32, 8, 2, 2.0, 1.5, 2.5, 0.9, 0.1, T0, T0, 100.0, 70.0)
    Hint(key, Verdict.ENABLE, 0.5, 4, evidence)
    with pytest.raises(ValueError, match="speedup_high"):
        Hint(key, Verdict.ENABLE, 0.5, 4, dataclasses.replace(evidence, speedup_high=math.inf))
    with pytest.raises(ValueError, match="version"):
        Hint(key, Verdict.ENABLE, 0.5, 4, version=0)
    with pytest.raises(ValueError, match="expires_at_s"):
        Hint(key, Verdict.ENABLE, 0.5, 4, expires_at_s=math.nan)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"patience_samples": 3}, "patience_samples"),
        ({"ttl_s": 0.0}, "ttl_s"),
        ({"ttl_s": math.inf}, "ttl_s"),
        ({"rechallenge_limit_s": 1.0}, "rechallenge_limit_s"),
        ({"weak_factor": 0.0}, "weak_factor"),
        ({"challenge_budget": 0.0}, "challenge_budget"),
        ({"starved_bursts": 0}, "starved_bursts"),
        ({"kind_band": 0.0}, "kind_band"),
    ],
)
def test_a_constant_out_of_range_is_named(fields: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        VerdictConfig(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [{"weight": 0.0}, {"margin": 1.0}, {"cost_clip": 1.0}, {"sustained_rounds": 0}])
def test_a_drift_constant_out_of_range_is_named(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        DriftConfig(**fields)  # type: ignore[arg-type]

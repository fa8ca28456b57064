"""How a pairing is profiled and settles by the plain rules; time stands still here."""

import dataclasses
import math

import pytest

from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.hint import Hint
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.profile import Profile, ProfileSample
from burstgate_policy.core.stages import Settled
from burstgate_policy.core.types import PolicyKey, State, Verdict
from burstgate_policy.core.verdict_config import VerdictConfig

NOW = 1_800_000_000.0
SEED = CoreConfig(verdict=VerdictConfig.seed())


def start(
    key: PolicyKey,
    *,
    force: bool | None = None,
    adaptive: bool = True,
    static_default: bool = False,
    hint: Hint | None = None,
) -> MtpPolicy:
    return MtpPolicy.start(
        key, force=force, adaptive=adaptive, static_default=static_default, hint=hint, config=SEED, now_s=NOW
    )


def burst(
    accepted_len: float,
    *,
    draft_ms: float = 12.0,
    verify_ms: float = 80.0,
    overhead_ms: float = 6.0,
    plain_step_ms: float | None = None,
    rounds: int = 10,
    draft_width: int = 4,
    width: int = 1,
) -> ProfileSample:
    accepted = round(accepted_len * rounds * width)
    return ProfileSample(
        rounds=rounds,
        row_rounds=rounds * width,
        emitted=accepted + rounds * width,
        proposed=rounds * width * (draft_width - 1),
        accepted=accepted,
        draft_ms=draft_ms * rounds,
        verify_ms=verify_ms * rounds,
        overhead_ms=overhead_ms * rounds,
        plain_step_ms=plain_step_ms,
    )


def settled(policy: MtpPolicy, *samples: ProfileSample) -> Settled:
    for sample in samples:
        policy.record(sample, NOW)
    assert isinstance(policy.stage, Settled)
    return policy.stage


GOOD = burst(1.1, plain_step_ms=72.0)
BAD = burst(1.05, rounds=20, draft_ms=0.0, verify_ms=269.0, overhead_ms=0.0, plain_step_ms=69.0)


def test_a_favourable_profile_enables_over_a_declining_static_gate(key: PolicyKey) -> None:
    stage = settled(start(key, static_default=False), *[GOOD] * 4)
    assert stage.verdict is Verdict.ENABLE
    assert stage.speedup == pytest.approx(2.1 * 72 / 98)
    assert stage.samples == 4
    assert not stage.from_hint


def test_an_unfavourable_profile_declines_over_an_enabling_static_gate(key: PolicyKey) -> None:
    stage = settled(start(key, static_default=True), *[BAD] * 4)
    assert stage.verdict is Verdict.DECLINE
    assert stage.speedup == pytest.approx(0.53, abs=0.01)


@pytest.mark.parametrize("static_default", [True, False])
def test_a_profile_in_between_follows_the_static_gate(key: PolicyKey, static_default: bool) -> None:
    ambiguous = burst(1.3, draft_ms=4.0, verify_ms=4.0, overhead_ms=0.0, plain_step_ms=4.0)
    stage = settled(start(key, static_default=static_default), *[ambiguous] * 4)
    assert stage.speedup == pytest.approx(1.15)
    assert (stage.verdict is Verdict.ENABLE) is static_default


@pytest.mark.parametrize(
    ("accepted_len", "round_ms", "plain_ms", "verdict"),
    [(1.4, 31.0, 25.6, Verdict.ENABLE), (1.0, 70.0, 22.0, Verdict.DECLINE)],
)
def test_known_machines_get_their_known_verdicts(
    key: PolicyKey, accepted_len: float, round_ms: float, plain_ms: float, verdict: Verdict
) -> None:
    sample = burst(accepted_len, draft_ms=0.0, verify_ms=round_ms, overhead_ms=0.0, plain_step_ms=plain_ms)
    assert settled(start(key), *[sample] * 4).verdict is verdict


def test_four_qualifying_bursts_are_needed(key: PolicyKey) -> None:
    policy = start(key)
    for samples in range(4):
        assert policy.snapshot(NOW).state is State.PROFILING
        assert policy.snapshot(NOW).samples == samples
        policy.record(GOOD, NOW)
    assert policy.snapshot(NOW).state is State.SETTLED


def test_bursts_without_rounds_do_not_count_but_their_plain_steps_do(key: PolicyKey) -> None:
    policy = start(key)
    for _ in range(3):
        policy.record(burst(0.0, rounds=0, plain_step_ms=72.0), NOW)
    assert policy.snapshot(NOW).samples == 0
    stage = settled(policy, *[burst(1.1)] * 4)
    assert stage.speedup == pytest.approx(2.1 * 72 / 98)


def test_without_plain_steps_the_closed_form_decides(key: PolicyKey) -> None:
    stage = settled(start(key), *[burst(2.5, draft_ms=1.0, verify_ms=4.0)] * 4)
    assert stage.speedup == pytest.approx(2.8)
    assert "upper bound" in stage.explanation


def test_the_first_bursts_compilation_does_not_pollute_the_plain_step(key: PolicyKey) -> None:
    slow = dataclasses.replace(GOOD, plain_step_ms=1576.0)
    assert settled(start(key), slow, GOOD, GOOD, GOOD).speedup == pytest.approx(2.1 * 72 / 98)


def test_every_round_weighs_the_same() -> None:
    profile = Profile()
    for sample in (burst(3.0, rounds=30), burst(0.0, rounds=10)):
        profile = profile.with_sample(sample, probe_means_kept=8)
    assert profile.accepted_len == pytest.approx(2.25)
    assert profile.acceptance_rate == pytest.approx(0.75)
    assert profile.round_cost_ms == pytest.approx(98.0)


def test_a_wide_batch_is_counted_by_row(key: PolicyKey) -> None:
    """Four rows that each keep one draft are a speed-up of two, not of five."""
    wide = burst(1.0, width=4, draft_ms=0.0, verify_ms=72.0, overhead_ms=0.0, plain_step_ms=72.0)
    assert settled(start(key), *[wide] * 4).speedup == pytest.approx(2.0)


def test_at_most_eight_plain_means_are_kept_and_bad_ones_never(key: PolicyKey) -> None:
    profile = Profile()
    for mean in (math.nan, math.inf, 0.0, -5.0, *[70.0] * 8, 1000.0):
        sample = burst(0.0, rounds=0, plain_step_ms=mean)
        profile = profile.with_sample(sample, probe_means_kept=8)
    assert profile.plain_means_ms == (70.0,) * 8


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("static_default", [True, False])
def test_a_time_that_is_no_number_leaves_the_verdict_to_the_static_gate(
    key: PolicyKey, wrong: float, static_default: bool
) -> None:
    sample = burst(3.0, draft_ms=wrong, plain_step_ms=72.0)
    stage = settled(start(key, static_default=static_default), *[sample] * 4)
    assert stage.speedup is None
    assert (stage.verdict is Verdict.ENABLE) is static_default
    assert "no usable times" in stage.explanation


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("adaptive", [True, False])
def test_a_forced_policy_never_profiles_nor_persists(key: PolicyKey, force: bool, adaptive: bool) -> None:
    hint = Hint(key, Verdict.DECLINE if force else Verdict.ENABLE, 0.5, 4)
    policy = start(key, force=force, adaptive=adaptive, hint=hint)
    for _ in range(8):
        policy.record(BAD if force else GOOD, NOW)
    view = policy.snapshot(NOW)
    assert (view.state, view.speculation_enabled) == (State.FORCED, force)
    assert (view.verdict, view.acceptance_rate, view.samples) == (Verdict.UNSPECIFIED, None, 0)
    assert policy.take_settled() is None


@pytest.mark.parametrize("static_default", [True, False])
def test_without_adaptive_profiling_the_static_gate_alone_decides(key: PolicyKey, static_default: bool) -> None:
    policy = start(key, adaptive=False, static_default=static_default, hint=Hint(key, Verdict.ENABLE, 1, 4))
    policy.record(GOOD, NOW)
    view = policy.snapshot(NOW)
    assert (view.state, view.speculation_enabled) == (State.STATIC, static_default)
    assert policy.take_settled() is None


def test_a_hint_settles_at_once_and_is_not_persisted_again(key: PolicyKey) -> None:
    policy = start(key, hint=Hint(key, Verdict.DECLINE, 0.68, 4))
    view = policy.snapshot(NOW)
    assert (view.state, view.verdict, view.from_hint) == (State.SETTLED, Verdict.DECLINE, True)
    assert (view.acceptance_rate, view.samples, view.speedup) == (0.68, 4, None)
    assert policy.take_settled() is None


def test_verdict_at_k4_is_not_reused_at_k8(key: PolicyKey) -> None:
    hint = Hint(dataclasses.replace(key, draft_width=4), Verdict.ENABLE, 0.68, 4)
    assert start(key, hint=hint).snapshot(NOW).state is State.PROFILING


def test_a_settled_policy_ignores_further_bursts(key: PolicyKey) -> None:
    policy = start(key)
    first = settled(policy, *[GOOD] * 4)
    assert settled(policy, *[BAD] * 20) == first


def test_the_settled_hint_is_handed_out_once_and_equals_the_snapshot(key: PolicyKey) -> None:
    policy = start(key)
    settled(policy, *[burst(1.1, plain_step_ms=72.0)] * 4)
    hint = policy.take_settled()
    assert hint is not None
    assert (hint.key, hint.verdict, hint.acceptance_rate, hint.samples) == (key, Verdict.ENABLE, 0.37, 4)
    assert hint.acceptance_rate == policy.snapshot(NOW).acceptance_rate
    assert policy.take_settled() is None


def test_a_profiling_snapshot_has_a_running_rate_and_no_verdict(key: PolicyKey) -> None:
    policy = start(key)
    assert policy.snapshot(NOW).acceptance_rate is None
    policy.record(burst(1.0, rounds=9, draft_width=8), NOW)
    view = policy.snapshot(NOW)
    assert (view.verdict, view.speculation_enabled) == (Verdict.UNSPECIFIED, True)
    assert view.acceptance_rate == pytest.approx(1 / 7)
    assert (view.samples, view.samples_required, view.key_hash) == (1, 4, key.hash)


def test_lanes_share_eight_plain_probe_steps(key: PolicyKey) -> None:
    policy = start(key)
    assert [policy.claim_probe_steps(3) for _ in range(5)] == [3, 3, 2, 0, 0]
    assert policy.claim_probe_steps(-1) == 0


def test_explanations_carry_the_numbers(key: PolicyKey) -> None:
    explanation = settled(start(key), *[GOOD] * 4).explanation
    for number in ("2.10 tokens", "98.0 ms", "72.0 ms", "1.54"):
        assert number in explanation


def test_a_hint_rounds_its_rate_and_refuses_nonsense(key: PolicyKey) -> None:
    assert Hint(key, Verdict.ENABLE, 0.6789, 4).acceptance_rate == 0.68
    for rate, samples, verdict in [
        (math.nan, 4, Verdict.ENABLE),
        (1.1, 4, Verdict.ENABLE),
        (0.5, 0, Verdict.ENABLE),
        (0.5, 4, Verdict.UNSPECIFIED),
    ]:
        with pytest.raises(ValueError, match="must"):
            Hint(key, verdict, rate, samples)


def test_thresholds_out_of_order_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="decline_at"):
        VerdictConfig(enable_at=1.0, decline_at=1.5)
    with pytest.raises(ValueError, match="samples_required must be at least 1, not 0"):
        VerdictConfig(samples_required=0)

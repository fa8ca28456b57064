"""How a lane measures besides running: challenges, demoted verdicts, starvation and pins, in grants."""

import dataclasses
from collections import Counter
from collections.abc import Callable

import pytest
from tests.unit.policy.loop import MIDWAY, NOW, Loop, MakeStep

from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.gate_config import GateConfig
from burstgate_policy.core.hint import Hint
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.profiled_burst import ProfiledBurst
from burstgate_policy.core.types import CostCell, Grant, LaneCapabilities, Mode, Pin, PolicyKey, Reason, State, Verdict

DAY = 86_400.0
NO_ROOM = dataclasses.replace(MIDWAY, max_draft_width=1)
INELIGIBLE = dataclasses.replace(MIDWAY, eligible=False)
MakeLoop = Callable[..., Loop]


@pytest.fixture
def make_loop(
    key: PolicyKey, capabilities: LaneCapabilities, costs: list[CostCell], make_step: MakeStep
) -> Callable[..., Loop]:
    def make(
        *,
        verdict: Verdict | None = None,
        force: bool | None = None,
        adaptive: bool = True,
        static_default: bool = False,
        round_ms: float = 90.0,
        accepted: int = 2,
    ) -> Loop:
        config = CoreConfig()
        hint = Hint(key, verdict, 0.68, 4) if verdict else None
        policy = MtpPolicy.start(
            key, force=force, adaptive=adaptive, static_default=static_default, hint=hint, config=config, now_s=NOW
        )
        return Loop(Lane(policy, capabilities, costs, config), make_step, round_ms=round_ms, accepted=accepted)

    return make


def run_until_challenged(loop: Loop) -> None:
    """Skips to just before the next challenge."""
    at = loop.lane.policy.snapshot(loop.now_s).rechallenge_at
    assert at is not None
    loop.now_s = at


def settle(loop: Loop) -> list[Grant]:
    """Bursts until the measurement under way is over."""
    grants = []
    before = loop.lane.policy.hint()
    for _ in range(500):
        grants.append(loop.burst())
        after = loop.lane.policy.hint()
        if after is not None and (before is None or after.settled_at_s != before.settled_at_s):
            return grants
    raise AssertionError("it never settled")


def test_a_declined_pairing_is_challenged_by_few_rounds_among_plain_steps(make_loop: MakeLoop) -> None:
    loop = make_loop(verdict=Verdict.DECLINE, round_ms=270.0, accepted=0)
    assert {loop.burst().reason for _ in range(20)} == {Reason.VERDICT_DECLINED}
    run_until_challenged(loop)
    grants = settle(loop)
    reasons = Counter(grant.reason for grant in grants)
    assert reasons == {Reason.VERDICT_DECLINED: 8 * 4, Reason.RECHALLENGE: 8}
    assert {g.mode for g in grants if g.reason is Reason.RECHALLENGE} == {Mode.PROBE_SPECULATIVE}
    assert "the verdict is challenged" in next(g for g in grants if g.reason is Reason.RECHALLENGE).explanation
    view = loop.lane.policy.snapshot(loop.now_s)
    assert view.verdict is Verdict.DECLINE
    assert view.evidence is not None
    assert view.evidence.plain_steps == 32 * 8
    assert {loop.burst().reason for _ in range(50)} == {Reason.VERDICT_DECLINED}


def test_a_challenge_that_loses_too_much_rests_until_the_loss_is_forgotten(make_loop: MakeLoop) -> None:
    """A round costs four plain steps and brings one token: eight bursts in a row would lose a third of the time."""
    loop = make_loop(verdict=Verdict.DECLINE, round_ms=270.0, accepted=0)
    for _ in range(100):
        loop.burst()
    run_until_challenged(loop)
    most, held = 0.0, 0
    for _ in range(5000):
        holding = loop.lane.regret.holding
        grant = loop.burst()
        held += holding
        if holding:
            assert not grant.mode.speculates
            (measurement,) = (row for row in loop.lane.explain(None, loop.now_s) if row.rule == "measurement")
            assert "rests, because exploring has cost too much" in measurement.answer
        most = max(most, loop.lane.regret.recent_share)
        if loop.lane.policy.snapshot(loop.now_s).evidence is not None:
            break
    else:
        raise AssertionError("it never settled")
    assert held > 0
    assert most < 2.0 * GateConfig().regret_ceiling


def test_a_declined_pairing_that_pays_now_is_enabled_by_its_next_challenge(make_loop: MakeLoop) -> None:
    """By the plain rules it would have stayed off for ever."""
    loop = make_loop(verdict=Verdict.DECLINE, round_ms=90.0, accepted=3)
    run_until_challenged(loop)
    settle(loop)
    assert loop.lane.policy.snapshot(loop.now_s).verdict is Verdict.ENABLE
    assert "speculation delivers" in loop.burst().explanation


def test_an_enabled_pairing_is_challenged_by_a_few_plain_steps_and_runs_on(make_loop: MakeLoop) -> None:
    loop = make_loop(verdict=Verdict.ENABLE)
    for _ in range(20):
        loop.burst()
    run_until_challenged(loop)
    grants = settle(loop)
    asked = [grant for grant in grants if grant.reason is Reason.RECHALLENGE]
    assert {grant.mode for grant in asked} == {Mode.PROBE_PLAIN}
    assert sum(grant.max_steps for grant in asked) <= 8
    assert sum(g.max_steps for g in grants if g.mode.speculates) > 0.5 * sum(g.max_steps for g in grants)
    view = loop.lane.policy.snapshot(loop.now_s)
    assert view.verdict is Verdict.ENABLE
    assert view.evidence is not None
    assert view.evidence.speedup == pytest.approx(3 * 68 / 90)


def test_an_enabled_pairing_that_stopped_paying_is_declined(make_loop: MakeLoop) -> None:
    loop = make_loop(verdict=Verdict.ENABLE)
    loop.round_ms, loop.accepted = 300.0, 1
    run_until_challenged(loop)
    settle(loop)
    assert loop.lane.policy.snapshot(loop.now_s).verdict is Verdict.DECLINE


@pytest.mark.parametrize("verdict", [Verdict.ENABLE, Verdict.DECLINE])
def test_an_expired_verdict_rules_while_it_is_measured_again(make_loop: MakeLoop, verdict: Verdict) -> None:
    pays = verdict is Verdict.ENABLE
    loop = make_loop(verdict=verdict, round_ms=90.0 if pays else 270.0, accepted=2 if pays else 0)
    loop.now_s = NOW + 8 * DAY
    grants = settle(loop)
    assert loop.lane.policy.snapshot(loop.now_s).verdict is verdict
    ruling = {Reason.GATE_SPECULATIVE} if pays else {Reason.VERDICT_DECLINED}
    measuring = {Reason.PROFILING_PLAIN} if pays else {Reason.PROFILING_SPECULATIVE}
    assert {grant.reason for grant in grants} >= ruling | measuring
    rounds = sum(grant.max_steps for grant in grants if grant.mode.speculates)
    share = rounds / sum(grant.max_steps for grant in grants)
    assert share > 0.5 if pays else share <= 0.2


def test_drift_keeps_the_run_mode_while_it_is_measured_again(make_loop: MakeLoop) -> None:
    loop = make_loop()
    settle(loop)
    loop.round_ms = 160.0
    while loop.lane.policy.snapshot(loop.now_s).state is State.SETTLED:
        assert loop.burst().reason is not Reason.PROFILING_SPECULATIVE
    view = loop.lane.policy.snapshot(loop.now_s)
    assert view.speculation_enabled
    grant = loop.until(Reason.PROFILING_PLAIN)
    assert "in 90.0 ms" in grant.explanation
    settle(loop)
    view = loop.lane.policy.snapshot(loop.now_s)
    assert view.evidence is not None
    assert view.evidence.round_ms == pytest.approx(160.0)


def test_a_round_is_charged_for_time_that_no_part_accounts_for(make_step: MakeStep) -> None:
    burst = ProfiledBurst()
    step = make_step(Mode.PROBE_SPECULATIVE, draft_ms=10.0, verify_ms=78.0, overhead_ms=2.0)
    burst.add_round(dataclasses.replace(step, wall_ms=120.0))
    sample = burst.sample()
    assert sample.draft_ms + sample.verify_ms + sample.overhead_ms == pytest.approx(120.0)


@pytest.mark.parametrize(
    ("situation", "says"), [(NO_ROOM, "too short"), (INELIGIBLE, "may not speculate")], ids=["no room", "ineligible"]
)
@pytest.mark.parametrize("static_default", [True, False])
def test_a_lane_that_never_runs_a_round_settles_and_says_why(
    make_loop: MakeLoop, situation: object, says: str, static_default: bool
) -> None:
    """By the plain rules it would say "profiling" for ever."""
    loop = make_loop(static_default=static_default)
    for _ in range(256):
        assert loop.burst(situation).mode is Mode.PLAIN  # type: ignore[arg-type]
    view = loop.lane.policy.snapshot(loop.now_s)
    assert (view.state, view.verdict is Verdict.ENABLE) == (State.SETTLED, static_default)
    assert says in view.starved_because
    run_until_challenged(loop)
    settle(loop)
    assert loop.lane.policy.snapshot(loop.now_s).starved_because == ""


@pytest.mark.parametrize("probed", [True, False], ids=["after its plain probes", "from the start"])
def test_a_loop_that_never_runs_what_it_is_asked_to_starves_as_well(
    make_loop: MakeLoop, make_step: MakeStep, probed: bool
) -> None:
    loop = make_loop()
    if probed:
        loop.report(*[make_step(Mode.PROBE_PLAIN)] * 2)
    for _ in range(256):
        assert loop.lane.decide(MIDWAY, loop.now_s).mode is (Mode.PROBE_SPECULATIVE if probed else Mode.PROBE_PLAIN)
        loop.report(make_step(Mode.PLAIN))
    loop.lane.decide(MIDWAY, loop.now_s)
    view = loop.lane.policy.snapshot(loop.now_s)
    assert view.state is State.SETTLED
    assert "were asked to measure and ran something else" in view.starved_because


def test_a_round_now_and_then_is_no_starvation(make_loop: MakeLoop, make_step: MakeStep) -> None:
    loop = make_loop()
    for _ in range(6):
        for _ in range(100):
            loop.burst(NO_ROOM)
        loop.report(make_step(Mode.PROBE_SPECULATIVE))
    assert loop.lane.policy.snapshot(loop.now_s).state is State.PROFILING
    assert loop.lane.policy.snapshot(loop.now_s).starved_because == ""


def test_an_idle_lane_does_not_starve(make_loop: MakeLoop) -> None:
    loop = make_loop()
    for _ in range(1000):
        loop.lane.decide(MIDWAY, loop.now_s)
    assert loop.lane.policy.snapshot(loop.now_s).starved_because == ""


@pytest.mark.parametrize("how", [{}, {"verdict": Verdict.DECLINE}, {"verdict": Verdict.ENABLE}, {"adaptive": False}])
def test_a_pin_decides_grants_in_both_directions_and_ends_by_itself(
    make_loop: MakeLoop, how: dict[str, object]
) -> None:
    loop = make_loop(**how)
    for speculate, reason, mode in (
        (True, Reason.PINNED_ON, Mode.SPECULATIVE),
        (False, Reason.PINNED_OFF, Mode.PLAIN),
    ):
        loop.lane.policy.pin(Pin(speculate, "a demonstration", "ada", loop.now_s, loop.now_s + 60.0))
        grant = loop.burst()
        assert (grant.reason, grant.mode) == (reason, mode)
        assert "ada pinned speculation" in grant.explanation
    loop.now_s += 61.0
    assert loop.burst().reason not in {Reason.PINNED_ON, Reason.PINNED_OFF}


def test_a_pin_does_not_speculate_with_an_ineligible_row_nor_against_a_force(make_loop: MakeLoop) -> None:
    pin = Pin(speculate=True, reason="why", author="ada", pinned_at=NOW)
    loop, forced = make_loop(), make_loop(force=False)
    loop.lane.policy.pin(pin)
    forced.lane.policy.pin(pin)
    assert loop.burst(INELIGIBLE).reason is Reason.INELIGIBLE
    assert forced.burst().reason is Reason.FORCED_OFF


def test_a_burst_begun_for_an_earlier_measurement_does_not_count_for_the_next(
    make_loop: MakeLoop, make_step: MakeStep
) -> None:
    loop = make_loop()
    loop.report(*[make_step(Mode.PROBE_SPECULATIVE, verify_ms=9999.0)] * 7)
    loop.lane.policy.reset()
    loop.report(*[make_step(Mode.PROBE_SPECULATIVE)] * 8)
    evidence = loop.lane.policy.snapshot(loop.now_s).evidence
    assert evidence is not None
    assert evidence.round_ms == pytest.approx(90.0)


def test_lanes_of_a_pairing_share_a_challenge(make_loop: MakeLoop, make_step: MakeStep) -> None:
    first = make_loop(verdict=Verdict.DECLINE, round_ms=270.0, accepted=0)
    lane = Lane(
        first.lane.policy,
        LaneCapabilities(batchable=True, max_width=16, drafter_kind="mtp_head", apple_gpu_generation=0),
        [],
        CoreConfig(),
    )
    second = Loop(lane, make_step, round_ms=270.0, accepted=0)
    run_until_challenged(first)
    second.now_s = first.now_s
    rounds = 0
    for _ in range(40):
        for loop in (first, second):
            grant = loop.burst()
            rounds += grant.max_steps if grant.reason is Reason.RECHALLENGE else 0
    assert 64 <= rounds <= 72
    assert first.lane.policy.snapshot(first.now_s).verdict is Verdict.DECLINE

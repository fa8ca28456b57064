"""How the rules compose into grants, and what a lane learns from outcomes."""

import dataclasses
from collections.abc import Callable

import pytest
from tests.unit.policy.loop import MIDWAY, NOW, Loop, MakeStep

from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.gate_config import GateConfig
from burstgate_policy.core.hint import Hint
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.types import (
    BurstOutcome,
    CostCell,
    LaneCapabilities,
    Mode,
    PolicyKey,
    Reason,
    State,
    StepRecord,
    Verdict,
)
from burstgate_policy.core.verdict_config import VerdictConfig

SEED = CoreConfig(verdict=VerdictConfig.seed())


@pytest.fixture
def make_loop(
    key: PolicyKey, capabilities: LaneCapabilities, costs: list[CostCell], make_step: MakeStep
) -> Callable[..., Loop]:
    def make(
        *,
        force: bool | None = None,
        adaptive: bool = True,
        static_default: bool = False,
        verdict: Verdict | None = None,
        round_ms: float = 90.0,
        accepted: int = 2,
        config: CoreConfig | None = None,
        policy: MtpPolicy | None = None,
    ) -> Loop:
        config = config or SEED
        hint = Hint(key, verdict, 0.68, 4) if verdict else None
        policy = policy or MtpPolicy.start(
            key, force=force, adaptive=adaptive, static_default=static_default, hint=hint, config=config, now_s=NOW
        )
        return Loop(Lane(policy, capabilities, costs, config), make_step, round_ms=round_ms, accepted=accepted)

    return make


MakeLoop = Callable[..., Loop]


def test_force_decides_in_both_directions_and_never_profiles(make_loop: MakeLoop) -> None:
    on, off = make_loop(force=True), make_loop(force=False)
    for _ in range(20):
        grant = on.burst()
        assert (grant.reason, grant.mode) == (Reason.FORCED_ON, Mode.SPECULATIVE)
        assert 2 <= grant.draft_width <= 8
        grant = off.burst()
        assert (grant.reason, grant.mode, grant.draft_width) == (Reason.FORCED_OFF, Mode.PLAIN, 1)
    assert on.lane.policy.take_settled() is None


@pytest.mark.parametrize("static_default", [True, False])
def test_without_adaptive_profiling_the_static_gate_decides(make_loop: MakeLoop, static_default: bool) -> None:
    grant = make_loop(adaptive=False, static_default=static_default).burst()
    expected = (Reason.STATIC_ON, Mode.SPECULATIVE) if static_default else (Reason.STATIC_OFF, Mode.PLAIN)
    assert (grant.reason, grant.mode) == expected


def test_profiling_asks_for_two_plain_steps_then_eight_rounds_four_times(make_loop: MakeLoop) -> None:
    loop = make_loop()
    seen = [loop.burst() for _ in range(8)]
    assert [(g.reason, g.mode, g.max_steps) for g in seen] == [
        (Reason.PROFILING_PLAIN, Mode.PROBE_PLAIN, 2),
        (Reason.PROFILING_SPECULATIVE, Mode.PROBE_SPECULATIVE, 8),
    ] * 4
    view = loop.lane.policy.snapshot(NOW)
    assert (view.state, view.verdict, view.samples) == (State.SETTLED, Verdict.ENABLE, 4)
    assert view.speedup == pytest.approx(3 * 68 / 90)
    assert loop.burst().reason is Reason.GATE_SPECULATIVE


def test_a_losing_pairing_is_declined_and_stays_plain(make_loop: MakeLoop) -> None:
    loop = make_loop(round_ms=270.0, accepted=1)
    for _ in range(8):
        loop.burst()
    grant = loop.burst()
    assert (grant.reason, grant.mode) == (Reason.VERDICT_DECLINED, Mode.PLAIN)
    assert "270.0 ms" in grant.explanation


def test_a_plain_probe_that_ran_no_step_is_asked_again_without_more_allowance(make_loop: MakeLoop) -> None:
    loop = make_loop()
    for _ in range(50):
        assert loop.lane.decide(MIDWAY, NOW).reason is Reason.PROFILING_PLAIN
        loop.report()
    plain_steps = sum(g.max_steps for g in (loop.burst() for _ in range(8)) if g.mode is Mode.PROBE_PLAIN)
    assert plain_steps == 8
    assert loop.lane.policy.snapshot(NOW).state is State.SETTLED


def test_a_profiled_burst_may_be_spread_over_short_bursts(make_loop: MakeLoop, make_step: MakeStep) -> None:
    loop = make_loop()
    for _ in range(4 * (2 + 8)):
        loop.report(make_step(loop.lane.decide(MIDWAY, NOW).mode))
    view = loop.lane.policy.snapshot(NOW)
    assert (view.state, view.samples) == (State.SETTLED, 4)


def test_asking_while_the_last_step_still_runs_costs_no_more_plain_steps(
    make_loop: MakeLoop, make_step: MakeStep
) -> None:
    """A pipelining client reports a burst's last step one request late."""
    loop = make_loop()
    late: list[StepRecord] = []
    plain_steps = 0
    while loop.lane.policy.snapshot(NOW).state is State.PROFILING:
        grant = loop.lane.decide(dataclasses.replace(MIDWAY, steps_in_flight=len(late)), NOW)
        steps = [make_step(grant.mode)] * grant.max_steps
        plain_steps += grant.max_steps if grant.mode is Mode.PROBE_PLAIN else 0
        loop.report(*late, *steps[:-1])
        late = steps[-1:]
    assert plain_steps <= 8
    assert loop.lane.policy.snapshot(NOW).speedup == pytest.approx(3 * 68 / 90)


def test_lanes_of_one_pairing_profile_together(make_loop: MakeLoop) -> None:
    first = make_loop()
    second = make_loop(policy=first.lane.policy)
    grants = [loop.burst() for _ in range(4) for loop in (first, second)]
    assert sum(g.max_steps for g in grants if g.mode is Mode.PROBE_PLAIN) == 8
    assert first.lane.policy.snapshot(NOW).state is State.SETTLED
    assert second.burst().reason is Reason.GATE_SPECULATIVE


@pytest.mark.parametrize(
    "how",
    [{"force": True}, {"adaptive": False, "static_default": True}, {}, {"verdict": Verdict.ENABLE}],
    ids=["forced", "static", "profiling", "settled"],
)
def test_no_state_speculates_with_an_ineligible_row(make_loop: MakeLoop, how: dict[str, bool]) -> None:
    grant = make_loop(**how).lane.decide(dataclasses.replace(MIDWAY, eligible=False), NOW)
    assert (grant.mode, grant.draft_width, grant.reason) == (Mode.PLAIN, 1, Reason.INELIGIBLE)


@pytest.mark.parametrize(
    "how",
    [{"force": True}, {"adaptive": False, "static_default": True}, {}, {"verdict": Verdict.ENABLE}],
    ids=["forced", "static", "profiling", "settled"],
)
def test_no_state_speculates_without_room_for_a_draft(make_loop: MakeLoop, how: dict[str, bool]) -> None:
    grant = make_loop(**how).lane.decide(dataclasses.replace(MIDWAY, max_draft_width=1), NOW)
    assert (grant.mode, grant.draft_width, grant.reason) == (Mode.PLAIN, 1, Reason.INELIGIBLE)
    assert "drafts nothing" in grant.explanation


def test_the_verdict_comes_before_eligibility(make_loop: MakeLoop) -> None:
    loop = make_loop(verdict=Verdict.DECLINE)
    assert loop.lane.decide(dataclasses.replace(MIDWAY, eligible=False), NOW).reason is Reason.VERDICT_DECLINED


def test_a_lane_without_a_drafter_says_so(
    key: PolicyKey, capabilities: LaneCapabilities, costs: list[CostCell]
) -> None:
    config = CoreConfig()
    policy = MtpPolicy.start(key, force=True, adaptive=True, static_default=True, hint=None, config=config, now_s=NOW)
    bare = dataclasses.replace(capabilities, drafter_kind="")
    assert Lane(policy, bare, costs, config).decide(MIDWAY, NOW).reason is Reason.NO_DRAFTER
    narrow = MtpPolicy.start(
        dataclasses.replace(key, draft_width=1),
        force=True,
        adaptive=True,
        static_default=True,
        hint=None,
        config=config,
        now_s=NOW,
    )
    assert Lane(narrow, capabilities, costs, config).decide(MIDWAY, NOW).reason is Reason.NO_DRAFTER


@pytest.mark.parametrize("narrow", [2, 3, 5])
def test_the_rows_budgets_cap_the_draft_width(make_loop: MakeLoop, narrow: int) -> None:
    loop = make_loop(verdict=Verdict.ENABLE, accepted=7)
    for _ in range(20):
        loop.burst()
    assert max(loop.burst().draft_width for _ in range(3)) == 8
    narrowed = [loop.burst(dataclasses.replace(MIDWAY, max_draft_width=narrow)).draft_width for _ in range(3)]
    assert max(narrowed) == narrow


def test_the_gate_probes_plain_early_and_briefly(make_loop: MakeLoop) -> None:
    loop = make_loop(verdict=Verdict.ENABLE)
    grants = [loop.burst() for _ in range(3)]
    assert [(grant.mode, grant.max_steps) for grant in grants] == [
        (Mode.SPECULATIVE, 8),
        (Mode.SPECULATIVE, 8),
        (Mode.PROBE_PLAIN, 4),
    ]
    assert grants[2].reason is Reason.GATE_PROBE_PLAIN
    assert loop.burst().reason is Reason.GATE_SPECULATIVE
    assert loop.lane.plain_tokens_per_second == pytest.approx(1000 / 68, rel=0.01)


def test_the_gate_leaves_a_mode_that_loses_and_comes_back(make_loop: MakeLoop) -> None:
    loop = make_loop(verdict=Verdict.ENABLE, round_ms=300.0, accepted=1)
    loop.until(Reason.GATE_PLAIN)
    loop.until(Reason.GATE_PROBE_SPECULATIVE)
    loop.accepted, loop.round_ms = 3, 90.0
    loop.until(Reason.GATE_SPECULATIVE)
    for _ in range(8):
        loop.burst()
    assert loop.lane.speculative_tokens_per_second == pytest.approx(4000 / 90, rel=0.3)


def test_an_answers_opening_is_pinned_only_while_the_gate_wants_plain(make_loop: MakeLoop) -> None:
    opening = dataclasses.replace(MIDWAY, min_emitted_tokens=5)
    config = dataclasses.replace(SEED, entry_pin_tokens=8)
    loop = make_loop(verdict=Verdict.ENABLE, round_ms=300.0, accepted=1, config=config)
    assert loop.burst(opening).reason is Reason.GATE_SPECULATIVE
    loop.until(Reason.GATE_PLAIN)
    grant = loop.burst(opening)
    assert (grant.reason, grant.mode, grant.max_steps) == (Reason.ENTRY_PIN, Mode.PINNED, 3)
    assert loop.burst(dataclasses.replace(opening, min_emitted_tokens=8)).reason is Reason.GATE_PLAIN


def test_by_default_no_opening_is_pinned(make_loop: MakeLoop) -> None:
    loop = make_loop(verdict=Verdict.ENABLE, round_ms=300.0, accepted=1)
    loop.until(Reason.GATE_PLAIN)
    assert loop.burst(dataclasses.replace(MIDWAY, min_emitted_tokens=0)).reason is Reason.GATE_PLAIN


def test_rounds_in_which_a_row_could_not_follow_teach_the_gate_nothing(
    make_loop: MakeLoop, make_step: MakeStep
) -> None:
    loop = make_loop(verdict=Verdict.ENABLE)
    for _ in range(4):
        loop.burst()
    before, grant = loop.lane.speculative_tokens_per_second, loop.lane.preview(MIDWAY, NOW)
    for _ in range(40):
        loop.report(*[make_step(Mode.SPECULATIVE, verify_ms=9999.0, excluded=True)] * 8)
    assert loop.lane.speculative_tokens_per_second == before
    assert loop.lane.preview(MIDWAY, NOW) == grant


def test_plain_steps_that_nobody_asked_for_tell_what_a_plain_step_costs(
    make_loop: MakeLoop, make_step: MakeStep
) -> None:
    """They ran while a row could not speculate, say; they count for plain and never for speculation."""
    loop = make_loop(verdict=Verdict.ENABLE)
    loop.report(*[make_step(Mode.PLAIN, plain_ms=34.0)] * 64)
    assert loop.lane.plain_tokens_per_second == pytest.approx(1000 / 34)
    assert loop.lane.speculative_tokens_per_second is None
    assert loop.burst().reason is Reason.GATE_SPECULATIVE


def test_plain_steps_that_were_held_up_do_not_tell_what_a_plain_step_costs(
    make_loop: MakeLoop, make_step: MakeStep
) -> None:
    """A prompt was read while they ran, say: rounds would look cheaper than they are beside them."""
    loop = make_loop(verdict=Verdict.ENABLE)
    loop.report(*[make_step(Mode.PLAIN, plain_ms=34.0)] * 8)
    loop.report(*[make_step(Mode.PLAIN, plain_ms=99.0, excluded=True)] * 64)
    assert loop.lane.plain_tokens_per_second == pytest.approx(1000 / 34)


def test_held_up_plain_steps_alone_leave_plain_decoding_to_be_measured(
    make_loop: MakeLoop, make_step: MakeStep
) -> None:
    loop = make_loop(verdict=Verdict.ENABLE)
    loop.report(*[make_step(Mode.PLAIN, plain_ms=99.0, excluded=True)] * 8)
    assert loop.lane.plain_tokens_per_second is None
    loop.until(Reason.GATE_PROBE_PLAIN)
    assert loop.lane.steps <= 8 + 2 * GateConfig().window_steps


def test_the_gate_is_charged_the_active_width(make_loop: MakeLoop, make_step: MakeStep) -> None:
    loop = make_loop(verdict=Verdict.ENABLE)
    wide = dataclasses.replace(MIDWAY, width=4)
    while loop.burst(wide).mode is not Mode.PROBE_PLAIN:
        pass
    assert loop.lane.plain_tokens_per_second == pytest.approx(4 * 1000 / 68)


def test_an_outcome_seen_before_changes_nothing(make_loop: MakeLoop, make_step: MakeStep) -> None:
    loop = make_loop(verdict=Verdict.ENABLE)
    outcome = BurstOutcome("", 5, (make_step(Mode.SPECULATIVE),) * 16, 3)
    loop.lane.observe(outcome, NOW)
    loop.lane.observe(outcome, NOW)
    loop.lane.observe(dataclasses.replace(outcome, sequence=4), NOW)
    assert (loop.lane.steps, loop.lane.dropped_steps) == (16, 3)


def test_a_lane_counts_what_its_listing_shows(make_loop: MakeLoop) -> None:
    loop = make_loop(verdict=Verdict.ENABLE)
    assert loop.lane.last_grant is None
    grants = [loop.burst() for _ in range(3)]
    assert loop.lane.last_grant == grants[-1]
    assert loop.lane.grants == 3
    assert loop.lane.steps == sum(grant.max_steps for grant in grants)


def test_explanations_are_sentences_with_numbers(make_loop: MakeLoop) -> None:
    loop = make_loop(verdict=Verdict.ENABLE)
    loop.until(Reason.GATE_PROBE_PLAIN)
    explanation = loop.until(Reason.GATE_SPECULATIVE).explanation
    for part in ("speculation delivers 33.3 tok/s against 14.7 plain", "promises", "tokens a row in"):
        assert part in explanation
    loop = make_loop(verdict=Verdict.ENABLE, round_ms=300.0, accepted=0)
    assert "plain decoding delivers 14.7 tok/s against 3.3 tok/s" in loop.until(Reason.GATE_PLAIN).explanation

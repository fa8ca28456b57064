"""Which rules a person is shown behind a grant."""

import dataclasses
from collections.abc import Callable

import pytest
from tests.unit.policy.loop import MIDWAY, NOW, Loop, MakeStep

from burstgate_policy.core import explain
from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.depth import DepthChoice
from burstgate_policy.core.hint import Hint
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.types import CostCell, LaneCapabilities, Pin, PolicyKey, Reason, RuleAnswer, Verdict

MakeLoop = Callable[..., Loop]
INELIGIBLE = dataclasses.replace(MIDWAY, eligible=False)


@pytest.fixture
def make_loop(
    key: PolicyKey, capabilities: LaneCapabilities, costs: list[CostCell], make_step: MakeStep
) -> Callable[..., Loop]:
    def make(
        *,
        verdict: Verdict | None = None,
        force: bool | None = None,
        adaptive: bool = True,
        drafter_kind: str = "mtp_head",
        round_ms: float = 90.0,
        config: CoreConfig | None = None,
    ) -> Loop:
        config = config or CoreConfig()
        hint = Hint(key, verdict, 0.68, 4) if verdict else None
        policy = MtpPolicy.start(
            key, force=force, adaptive=adaptive, static_default=True, hint=hint, config=config, now_s=NOW
        )
        lane = Lane(policy, dataclasses.replace(capabilities, drafter_kind=drafter_kind), costs, config)
        return Loop(lane, make_step, round_ms=round_ms, accepted=2)

    return make


def names(rules: tuple[RuleAnswer, ...]) -> list[str]:
    return [f"{rule.rule}!" if rule.decided else rule.rule for rule in rules]


@pytest.mark.parametrize(
    ("how", "rules"),
    [
        ({"drafter_kind": ""}, ["drafter!"]),
        ({"force": True}, ["drafter", "force!", "eligibility", "depth"]),
        ({"force": False}, ["drafter", "force!"]),
        ({"adaptive": False}, ["drafter", "force", "pin", "adaptive!", "eligibility", "depth"]),
        ({}, ["drafter", "force", "pin", "adaptive", "verdict", "eligibility", "measurement!"]),
        ({"verdict": Verdict.DECLINE}, ["drafter", "force", "pin", "adaptive", "verdict!"]),
        (
            {"verdict": Verdict.ENABLE},
            ["drafter", "force", "pin", "adaptive", "verdict", "eligibility", "gate!", "depth"],
        ),
    ],
)
def test_the_rules_come_in_the_order_in_which_they_are_asked(
    make_loop: MakeLoop, how: dict[str, object], rules: list[str]
) -> None:
    assert names(make_loop(**how).lane.explain(MIDWAY, NOW)) == rules


@pytest.mark.parametrize(
    ("how", "before"),
    [
        ({"force": True}, ["drafter", "force"]),
        ({"adaptive": False}, ["drafter", "force", "pin", "adaptive"]),
        ({}, ["drafter", "force", "pin", "adaptive", "verdict"]),
        ({"verdict": Verdict.ENABLE}, ["drafter", "force", "pin", "adaptive", "verdict"]),
    ],
)
def test_an_ineligible_row_is_named_as_what_decided(
    make_loop: MakeLoop, how: dict[str, object], before: list[str]
) -> None:
    rules = make_loop(**how).lane.explain(INELIGIBLE, NOW)
    assert names(rules) == [*before, "eligibility!"]
    assert "may not speculate" in rules[-1].answer


def test_a_pin_is_shown_with_its_author_and_end(make_loop: MakeLoop) -> None:
    loop = make_loop(verdict=Verdict.DECLINE)
    loop.lane.policy.pin(Pin(True, "a demonstration", "ada", NOW, NOW + 60.0))
    rules = loop.lane.explain(MIDWAY, NOW)
    assert names(rules) == ["drafter", "force", "pin!", "eligibility", "depth"]
    assert rules[2].numbers == {"pinned_at": NOW, "expires_at": NOW + 60.0}
    assert "ada pinned speculation on: a demonstration" in rules[2].answer
    assert names(loop.lane.explain(MIDWAY, NOW + 60.0))[-1] == "verdict!"


def test_a_challenge_of_a_declined_verdict_shows_that_it_was_asked(make_loop: MakeLoop) -> None:
    loop = make_loop(verdict=Verdict.DECLINE)
    loop.now_s = NOW + 600.0
    rules = loop.lane.explain(MIDWAY, loop.now_s)
    assert names(rules) == ["drafter", "force", "pin", "adaptive", "eligibility", "measurement", "verdict!"]
    loop.until(Reason.RECHALLENGE)
    assert names(loop.lane.explain(None, loop.now_s))[-3:] == ["eligibility", "measurement!", "depth"]


def test_the_entry_pin_is_shown_only_when_the_gate_wants_plain(make_loop: MakeLoop) -> None:
    loop = make_loop(verdict=Verdict.ENABLE, round_ms=400.0, config=CoreConfig(entry_pin_tokens=8))
    assert "entry pin" not in names(loop.lane.explain(MIDWAY, NOW))
    loop.until(Reason.GATE_PLAIN)
    assert names(loop.lane.explain(MIDWAY, loop.now_s))[-2:] == ["entry pin", "gate!"]
    opening = dataclasses.replace(MIDWAY, min_emitted_tokens=3)
    rules = loop.lane.explain(opening, loop.now_s)
    assert names(rules)[-2:] == ["entry pin!", "depth"]
    assert rules[-2].numbers == {"min_emitted_tokens": 3, "entry_pin_tokens": 8}


def test_a_gate_that_samples_rounds_against_a_verdict_is_shown_after_it(make_loop: MakeLoop) -> None:
    loop = make_loop(verdict=Verdict.DECLINE, round_ms=400.0)
    loop.until(Reason.GATE_PROBE_SPECULATIVE)
    rules = loop.lane.explain(None, loop.now_s)
    assert names(rules)[-4:] == ["verdict", "eligibility", "gate!", "depth"]
    assert rules[-2].numbers["probing"] == 1.0


def test_the_gate_is_shown_with_what_deciding_has_cost(make_loop: MakeLoop) -> None:
    loop = make_loop(verdict=Verdict.ENABLE)

    def gate() -> RuleAnswer:
        return next(rule for rule in loop.lane.explain(MIDWAY, loop.now_s) if rule.rule == "gate")

    assert "recent_share" not in gate().numbers, "nothing was priced yet"
    loop.accepted, loop.round_ms = 0, 200.0
    while loop.lane.steps < 64:
        loop.burst()
    costly = gate().numbers
    assert costly["recent_share"] == loop.lane.regret.recent_share > 0.03
    assert costly["holding"] == 0.0, "so few steps say nothing yet"
    for _ in range(500):
        loop.burst()
        if loop.lane.regret.holding:
            break
    assert gate().numbers["holding"] == 1.0
    assert gate().numbers["recent_share"] > CoreConfig().gate.regret_ceiling


def test_the_last_grant_is_explained_as_it_was_decided_not_as_things_are_now(
    make_loop: MakeLoop, make_step: MakeStep
) -> None:
    loop = make_loop(verdict=Verdict.ENABLE)
    assert loop.lane.explain(None, NOW) == ()
    loop.lane.decide(MIDWAY, NOW)
    before = loop.lane.explain(None, NOW)
    loop.lane.policy.pin(Pin(False, "why", "ada", NOW))
    assert loop.lane.explain(None, NOW) == before
    assert loop.lane.last_grant is not None
    assert next(rule for rule in before if rule.decided).answer == loop.lane.last_grant.explanation


def test_the_verdicts_numbers_are_those_of_its_evidence(make_loop: MakeLoop) -> None:
    loop = make_loop()
    for _ in range(40):
        loop.burst()
    rule = next(rule for rule in loop.lane.explain(MIDWAY, loop.now_s) if rule.rule == "verdict")
    evidence = loop.lane.policy.snapshot(loop.now_s).evidence
    assert evidence is not None
    assert rule.numbers["speedup_low"] == evidence.speedup_low
    assert rule.numbers["rounds"] == evidence.rounds
    assert rule.numbers["enable_at"] == 1.5


def test_a_preview_is_the_grant_that_would_be_given(make_loop: MakeLoop) -> None:
    loop = make_loop(verdict=Verdict.ENABLE)
    preview = loop.lane.preview(MIDWAY, NOW)
    assert loop.lane.last_grant is None
    assert loop.lane.decide(MIDWAY, NOW) == preview


@pytest.mark.parametrize(
    ("count", "says"), [(1, ("over 1 step", "over 1 more round;")), (2, ("2 steps", "2 more rounds;"))]
)
def test_one_is_no_plural(count: int, says: tuple[str, str]) -> None:
    choice = DepthChoice(4, 2.9, 100.0)
    plain = (explain.profiling_plain(count, 0, 4), explain.passing_plain("declined", count, 0, 4))
    drafted = (
        explain.profiling_speculative(count, 0, 4, choice), explain.passing_rounds("declined", count, 0, 4, choice)
    )  # fmt: skip
    assert all(sentence.endswith(says[0]) for sentence in plain)
    assert all(says[1] in sentence for sentence in drafted)

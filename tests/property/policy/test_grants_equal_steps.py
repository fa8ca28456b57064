"""Whether a lane is asked before every step or once a grant makes no difference to what runs.

Both drivings meet the same world: what a step costs and keeps depends on its number and on nothing else.
Asked by steps, the lane is asked before every step and told of it at once. Asked by grants, it is asked when
a grant has run its steps or the situation has changed, and told at the end of the burst. Time stands still
inside a stretch and passes between two of them.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.hint import Hint
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.regime import regime
from burstgate_policy.core.types import (
    BurstOutcome,
    CostCell,
    Evidence,
    Grant,
    LaneCapabilities,
    Mode,
    PolicyKey,
    Reason,
    Situation,
    StepRecord,
    Verdict,
)

KEY = PolicyKey("target", "drafter", "machine", 8, "t", "d", "float32", "cpu", "openblas", "0.32.4")
CAPABILITIES = LaneCapabilities(batchable=True, max_width=32, drafter_kind="mtp_head", apple_gpu_generation=0)
NOW = 1_800_000_000.0
CONFIGS = {"default": CoreConfig(), "plain rules": dataclasses.replace(CoreConfig.seed(), entry_pin_tokens=0)}
Ran = tuple[Mode, int, Reason]


@dataclass(frozen=True)
class World:
    """What a step costs and keeps, by its number."""

    row_cost: float = 0.2
    """Plain steps that each further row of a verify costs."""
    kept: tuple[int, ...] = (2, 1, 3, 0, 2)
    """Drafts that a round keeps, one after the other and from the start again."""
    kept_later: tuple[int, ...] = (2, 1, 3, 0, 2)
    changes_every: int = 10_000
    """Steps after which the two swap."""
    noise: float = 0.0
    stalls_every: int = 10_000
    cannot_follow_every: int = 10_000
    """Every so many rounds one in which a row has no room."""
    table: bool = True

    def cells(self) -> list[CostCell]:
        return [CostCell(1, k, 64, self.cost_ms(k, 1), 0.0) for k in (1, 2, 4, 8)] if self.table else []

    def cost_ms(self, draft_width: int, width: int) -> float:
        return 50.0 * (1.0 + self.row_cost * (draft_width * width - 1))

    def step(self, number: int, grant: Grant, situation: Situation) -> StepRecord:
        rounds = grant.mode.speculates
        draft_width, width = (grant.draft_width if rounds else 1), situation.width
        kept = self.kept if number // self.changes_every % 2 == 0 else self.kept_later
        accepted = min(kept[number % len(kept)], draft_width - 1)
        # Spread evenly over [-1, 1), the same for every mode.
        luck = number * 0.6180339887498949 % 1.0 * 2.0 - 1.0
        wall_ms = self.cost_ms(draft_width, width) * (1.0 + self.noise * luck)
        if number % self.stalls_every == self.stalls_every - 1:
            wall_ms *= 30.0
        cannot_follow = rounds and number % self.cannot_follow_every == self.cannot_follow_every - 1
        return StepRecord(
            mode=grant.mode,
            draft_width=grant.draft_width,
            width=width,
            depth_tokens=situation.depth_tokens,
            emitted=width * (1 + accepted),
            proposed=width * (draft_width - 1),
            accepted_by_position=tuple(width if i < accepted else 0 for i in range(draft_width - 1)),
            draft_ms=0.0,
            verify_ms=wall_ms,
            overhead_ms=0.0,
            wall_ms=wall_ms,
            excluded=not situation.eligible or cannot_follow or grant.mode is Mode.PINNED,
        )


@dataclass(frozen=True)
class Stretch:
    """Steps of one batch; its context grows by four tokens a step."""

    steps: int
    width: int = 1
    depth_tokens: int = 100
    eligible: bool = True
    max_draft_width: int = 8
    pause_s: float = 0.0
    """Before it: whoever comes then finds an idle lane."""
    restarts: bool = False
    """Whether the lane before it is gone, and a new one starts with what was remembered."""

    def situation(self, step: int) -> Situation:
        return Situation(self.width, self.depth_tokens + 4 * step, 50, self.eligible, self.max_draft_width)


@dataclass
class Driving:
    """A lane in its world, and what ran."""

    world: World
    config: CoreConfig
    hint: Hint | None
    by_grants: bool
    ran: list[Ran] = field(default_factory=list)
    ever_held: bool = False
    """Whether the lane ever held a mode because too much had been lost."""

    def __post_init__(self) -> None:
        self.now_s = NOW
        self.sequence: Iterator[int] = itertools.count(1)
        self.lane = self.new_lane()

    def new_lane(self) -> Lane:
        policy = MtpPolicy.start(
            KEY,
            force=None,
            adaptive=True,
            static_default=True,
            hint=self.hint,
            config=self.config,
            now_s=self.now_s,
        )
        return Lane(policy, CAPABILITIES, self.world.cells(), self.config)

    def run(self, schedule: list[Stretch]) -> "Driving":
        for stretch in schedule:
            self.now_s += stretch.pause_s
            if stretch.restarts:
                self.hint = self.lane.policy.hint() or self.hint
                self.lane = self.new_lane()
            first = 0
            while first < stretch.steps:
                first += self.burst(stretch, first)
        return self

    def burst(self, stretch: Stretch, first: int) -> int:
        """Asks, runs and reports; the steps that ran."""
        start = stretch.situation(first)
        grant = self.lane.decide(start, self.now_s)
        steps: list[StepRecord] = []
        for step in range(first, stretch.steps):
            situation = stretch.situation(step)
            if len(steps) == (grant.max_steps if self.by_grants else 1) or place(situation) != place(start):
                break
            steps.append(self.world.step(len(self.ran), grant, situation))
            self.ran.append((grant.mode, grant.draft_width, grant.reason))
        self.observe(*steps)
        self.ever_held |= self.lane.regret.holding
        return len(steps)

    def observe(self, *steps: StepRecord, dropped: int = 0) -> None:
        self.lane.observe(BurstOutcome("", next(self.sequence), steps, dropped), self.now_s)


def place(situation: Situation) -> tuple[tuple[int, int], bool, int]:
    """What ends a burst when it changes."""
    return regime(situation.width, situation.depth_tokens), situation.eligible, situation.max_draft_width


def hint_of(verdict: Verdict, speedup: float = 1.2) -> Hint:
    evidence = Evidence(
        rounds=32,
        plain_steps=8,
        traffic_kinds=2,
        speedup=speedup,
        speedup_low=speedup,
        speedup_high=speedup,
        confidence=0.9,
        spread=0.1,
        first_seen_at=NOW,
        last_seen_at=NOW,
        round_ms=80.0,
        plain_step_ms=50.0,
    )
    return Hint(KEY, verdict, 0.6, 4, evidence=evidence, settled_at_s=NOW, expires_at_s=NOW + 604_800.0)


def both(
    world: World, schedule: list[Stretch], *, config: str = "default", hint: Hint | None = None
) -> tuple[Driving, Driving]:
    return (
        Driving(world, CONFIGS[config], hint, by_grants=False).run(schedule),
        Driving(world, CONFIGS[config], hint, by_grants=True).run(schedule),
    )


def assert_equal(by_steps: Driving, by_grants: Driving) -> None:
    for number, (stepped, granted) in enumerate(zip(by_steps.ran, by_grants.ran, strict=True)):
        assert stepped == granted, f"step {number}"


kept_drafts = st.lists(st.integers(0, 7), min_size=1, max_size=7).map(tuple)
worlds = st.builds(
    World,
    row_cost=st.sampled_from([0.02, 0.1, 0.3, 1.0]),
    kept=kept_drafts,
    kept_later=kept_drafts,
    changes_every=st.sampled_from([37, 100, 300, 10_000]),
    noise=st.sampled_from([0.0, 0.1, 0.4]),
    stalls_every=st.sampled_from([41, 10_000]),
    cannot_follow_every=st.sampled_from([1, 7, 10_000]),
    table=st.booleans(),
)
stretches = st.builds(
    Stretch,
    steps=st.one_of(st.integers(1, 12), st.integers(13, 200)),
    width=st.sampled_from([1, 1, 2, 4, 5, 8, 16, 32]),
    depth_tokens=st.sampled_from([1, 100, 480, 1000, 8000]),
    eligible=st.sampled_from([True, True, True, False]),
    max_draft_width=st.sampled_from([8, 8, 8, 0, 1, 2, 3, 5]),
    pause_s=st.sampled_from([0.0, 0.0, 700.0, 30_000.0, 700_000.0]),
    restarts=st.sampled_from([False, False, False, True]),
)
hints = st.sampled_from([None, None, hint_of(Verdict.ENABLE), hint_of(Verdict.DECLINE), hint_of(Verdict.DECLINE, 0.8)])


@settings(max_examples=150, deadline=None)
@given(worlds, st.lists(stretches, min_size=1, max_size=10), st.sampled_from(sorted(CONFIGS)), hints)
def test_grants_run_what_single_steps_would_run(
    world: World, schedule: list[Stretch], config: str, hint: Hint | None
) -> None:
    assert_equal(*both(world, schedule, config=config, hint=hint))


# Long enough for what a lane only does after many steps; the flips fool it, so that it tries everything.
FLIPPING = World(row_cost=0.3, kept=(7,), kept_later=(0,), changes_every=300)
COLLAPSING = World(row_cost=0.3, kept=(3,), kept_later=(0,), changes_every=700)
HOPELESS = World(row_cost=1.0, kept=(0,), kept_later=(0,))
PAYING = World(row_cost=0.1, kept=(3,), kept_later=(3,))
FALLING = World(row_cost=0.05, kept=(7,), kept_later=(2,), changes_every=600)
LONG = [Stretch(1500), Stretch(600, pause_s=700.0), Stretch(300, width=4, pause_s=30_000.0), Stretch(300)]
BUSY = [Stretch(steps, width) for steps, width in zip(itertools.cycle([3, 29, 7, 11]), [4, 5] * 40, strict=False)]


@pytest.mark.parametrize("config", sorted(CONFIGS))
@pytest.mark.parametrize("schedule", [LONG, BUSY], ids=["long", "busy"])
@pytest.mark.parametrize("hint", [None, hint_of(Verdict.ENABLE), hint_of(Verdict.DECLINE)], ids=["cold", "on", "off"])
@pytest.mark.parametrize(
    "world",
    [FLIPPING, COLLAPSING, HOPELESS, PAYING, FALLING],
    ids=["flipping", "collapsing", "hopeless", "paying", "falling"],
)
def test_grants_run_what_single_steps_would_run_in_long_stories(
    world: World, hint: Hint | None, schedule: list[Stretch], config: str
) -> None:
    assert_equal(*both(world, schedule, config=config, hint=hint))


def test_the_long_stories_meet_everything_a_lane_does() -> None:
    """Or the equality above would say little."""
    worlds = [FLIPPING, COLLAPSING, HOPELESS, PAYING, FALLING]
    hints = [None, hint_of(Verdict.ENABLE), hint_of(Verdict.DECLINE)]
    told = [Driving(world, CONFIGS["default"], hint, by_grants=True).run(LONG) for world in worlds for hint in hints]
    reasons = {reason for driving in told for _, _, reason in driving.ran}
    assert reasons >= {
        Reason.PROFILING_PLAIN,
        Reason.PROFILING_SPECULATIVE,
        Reason.GATE_SPECULATIVE,
        Reason.GATE_PLAIN,
        Reason.GATE_PROBE_PLAIN,
        Reason.GATE_PROBE_SPECULATIVE,
        Reason.VERDICT_DECLINED,
        Reason.DEPTH_PLAIN,
        Reason.RECHALLENGE,
    }
    assert any(driving.ever_held for driving in told)


def test_drift_inside_a_grant_is_met_the_same_way() -> None:
    drifted = [driving.lane.policy.campaign for driving in both(FALLING, [Stretch(100)] * 13)]
    assert drifted[0] == drifted[1] > 0


@settings(max_examples=60, deadline=None)
@given(worlds, st.lists(stretches, min_size=1, max_size=6), hints, st.data())
def test_a_lost_outcome_only_delays(
    world: World, schedule: list[Stretch], hint: Hint | None, data: st.DataObject
) -> None:
    """What is decided next is decided as if the lost steps had never run."""
    losing, sparing = (Driving(world, CONFIGS["default"], hint, by_grants=True) for _ in range(2))
    for stretch in schedule:
        for first in range(0, stretch.steps, 8):
            situation = stretch.situation(first)
            grant = losing.lane.decide(situation, NOW)
            assert sparing.lane.decide(situation, NOW) == grant
            number = len(losing.ran)
            steps = [world.step(number + i, grant, situation) for i in range(grant.max_steps)]
            losing.ran += [(grant.mode, grant.draft_width, grant.reason)] * grant.max_steps
            if data.draw(st.booleans()):
                next(losing.sequence)  # The outcome got lost on its way,
                losing.observe(dropped=data.draw(st.integers(0, 8)))  # and the next one may tell how many it held.
            else:
                losing.observe(*steps)
                sparing.observe(*steps)


@settings(max_examples=60, deadline=None)
@given(worlds, st.lists(stretches, min_size=1, max_size=6), hints)
def test_what_was_asked_ahead_is_what_is_asked_again(world: World, schedule: list[Stretch], hint: Hint | None) -> None:
    """A grant that was asked for while the last step ran is one step older; that step changes nothing of it."""
    driving = Driving(world, CONFIGS["default"], hint, by_grants=True)
    for stretch in schedule:
        situation = stretch.situation(0)
        grant = driving.lane.decide(situation, NOW)
        for _ in range(0, stretch.steps, 8):
            steps = [world.step(len(driving.ran) + i, grant, situation) for i in range(grant.max_steps)]
            driving.ran += [(grant.mode, grant.draft_width, grant.reason)] * grant.max_steps
            driving.observe(*steps[:-1])
            ahead = driving.lane.decide(dataclasses.replace(situation, steps_in_flight=1), NOW)
            driving.observe(*steps[-1:])
            assert driving.lane.decide(situation, NOW) == ahead
            grant = ahead


def test_a_grant_falls_where_something_else_ran() -> None:
    driving = Driving(PAYING, CONFIGS["default"], hint_of(Verdict.ENABLE), by_grants=False)
    situation = Stretch(1).situation(0)
    grant = driving.lane.decide(situation, NOW)
    assert grant.max_steps == 8
    driving.observe(PAYING.step(0, grant, situation))
    assert driving.lane.decide(situation, NOW).max_steps == 7
    driving.observe(PAYING.step(1, dataclasses.replace(grant, mode=Mode.PLAIN), situation))
    # Not the six steps that were left of it, but the seven rounds that its draft width is still good for.
    assert driving.lane.decide(situation, NOW).max_steps == 7

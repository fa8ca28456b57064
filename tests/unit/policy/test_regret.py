"""The account of what deciding has cost, and accounts of several lanes added up."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.policy.loop import MakeStep

from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.depth import DepthController
from burstgate_policy.core.regret import Regret, RegretMeter, together
from burstgate_policy.core.types import CostCell, Mode, StepRecord

BLOCK = 16
CAP = 4
PLAIN_MS = 20.0

times = st.tuples(*[st.floats(1.0, 1e6)] * (CAP + 1))
accounts = st.lists(st.builds(Regret, times, times, st.booleans()), max_size=5)


class World:
    """A meter and the controller that prices its steps: a plain step takes 20 ms, rounds what they are told."""

    def __init__(self, make_step: MakeStep, costs: Sequence[CostCell] = (), memory_steps: int = 4096) -> None:
        self.make_step = make_step
        self.depth = DepthController(cap=CAP, costs=costs, config=CoreConfig().depth)
        self.meter = RegretMeter(self.depth, cap=CAP, memory_steps=memory_steps, stall_factor=2.0)

    def take(self, step: StepRecord) -> None:
        self.depth.observe(step)
        self.meter.observe(step)

    def plain(self, steps: int, *, width: int = 1) -> None:
        for _ in range(steps):
            self.take(self.make_step(Mode.PLAIN, plain_ms=PLAIN_MS, width=width))

    def rounds(self, steps: int, *, round_ms: float, accepted: int, width: int = 1) -> None:
        for _ in range(steps):
            self.take(
                self.make_step(
                    Mode.SPECULATIVE,
                    draft_width=CAP,
                    accepted=accepted,
                    width=width,
                    draft_ms=0.0,
                    verify_ms=round_ms,
                    overhead_ms=0.0,
                )
            )


@pytest.fixture
def world(make_step: MakeStep) -> World:
    return World(make_step)


def test_rounds_that_lose_are_time_lost_against_plain(world: World) -> None:
    world.plain(10 * BLOCK)
    world.rounds(10 * BLOCK, round_ms=60.0, accepted=1)
    regret = world.meter.view()
    # Each round emitted two tokens: two plain steps of 20 ms would have.
    assert regret.actual_ms == pytest.approx(10 * BLOCK * (PLAIN_MS + 60.0))
    assert (regret.best_draft_width, regret.recent_best) == (1, 1)
    assert regret.lost_ms == pytest.approx(10 * BLOCK * (60.0 - 2 * PLAIN_MS))
    assert regret.share == pytest.approx(0.25)


def test_plain_steps_are_time_lost_where_a_width_that_ran_was_faster(world: World) -> None:
    world.plain(10 * BLOCK)
    world.rounds(10 * BLOCK, round_ms=20.0, accepted=3)
    world.plain(10 * BLOCK)
    regret = world.meter.view()
    assert regret.best_draft_width == CAP
    # The first plain steps ran before that width was measured, so that nothing says it would have been faster.
    wide = 3 * 10 * BLOCK * 20.0
    assert 0.6 * 10 * BLOCK * PLAIN_MS < regret.lost_ms < 10 * BLOCK * PLAIN_MS
    assert regret.actual_ms == pytest.approx(wide)


def test_a_width_that_never_ran_is_no_evidence(make_step: MakeStep) -> None:
    promising = [CostCell(1, k, 64, PLAIN_MS if k == 1 else 1.0, 0.0) for k in range(1, CAP + 1)]
    world = World(make_step, promising)
    world.plain(10 * BLOCK)
    regret = world.meter.view()
    assert regret.actual_ms == pytest.approx(10 * BLOCK * PLAIN_MS)
    assert regret.lost_ms == 0.0


def test_what_was_lost_long_ago_is_not_recent(make_step: MakeStep) -> None:
    world = World(make_step, memory_steps=64)
    world.plain(10 * BLOCK)
    world.rounds(10 * BLOCK, round_ms=60.0, accepted=1)
    early = world.meter.view()
    world.plain(64 * BLOCK)
    late = world.meter.view()
    assert early.recent_share == pytest.approx(1 / 3, abs=0.05)
    assert late.lost_ms == pytest.approx(early.lost_ms)
    assert abs(late.recent_share) < 1e-3


def test_deciding_that_beats_every_single_mode_loses_negative_time(world: World) -> None:
    # Rounds win alone and lose in a batch, so that neither mode is the best of both.
    for _ in range(20):
        world.plain(2, width=8)
        world.rounds(2, round_ms=200.0, accepted=3, width=8)
        world.plain(2)
        world.rounds(2, round_ms=20.0, accepted=3)
    before = world.meter.view()
    for _ in range(20):
        world.plain(BLOCK, width=8)
        world.rounds(BLOCK, round_ms=20.0, accepted=3)
    after = world.meter.view()
    assert before.lost_ms > 0.0
    assert after.lost_ms < 0.0
    assert (after.share < 0.0, after.recent_share < 0.0) == (True, True)


def test_the_lead_is_of_the_best_draft_width_over_plain() -> None:
    assert Regret(recent_ms=(200.0, 180.0, 150.0, 170.0)).recent_lead == pytest.approx(0.15)
    assert Regret(recent_ms=(200.0, 140.0, 150.0, 170.0)).recent_lead == pytest.approx(-0.05)
    assert Regret(recent_ms=(200.0, 140.0)).recent_lead == Regret().recent_lead == 0.0


def test_an_account_without_time_has_no_best_mode() -> None:
    for empty in (Regret(), together([]), together([Regret(), Regret()]), Regret((0.0,) * 5, (0.0,) * 5)):
        assert (empty.actual_ms, empty.best_ms, empty.best_draft_width, empty.recent_best) == (0.0, 0.0, 0, 0)
        assert (empty.lost_ms, empty.share, empty.recent_share, empty.holding) == (0.0, 0.0, 0.0, False)


@given(accounts)
def test_accounts_are_added_mode_by_mode(lanes: list[Regret]) -> None:
    whole = together(lanes)
    assert whole.actual_ms == pytest.approx(sum(lane.actual_ms for lane in lanes))
    assert whole.holding == any(lane.holding for lane in lanes)
    for k in range(1, CAP + 1) if lanes else ():
        assert whole.times_ms[k] == pytest.approx(sum(lane.times_ms[k] for lane in lanes))
        assert whole.recent_ms[k] == pytest.approx(sum(lane.recent_ms[k] for lane in lanes))
        assert whole.best_ms <= whole.times_ms[k]


@given(accounts)
def test_one_mode_for_all_lanes_is_never_faster_than_the_best_of_each(lanes: list[Regret]) -> None:
    assert together(lanes).lost_ms <= sum(lane.lost_ms for lane in lanes) + 1e-6 * sum(lane.actual_ms for lane in lanes)


@given(accounts, accounts)
def test_it_does_not_matter_in_which_order_accounts_are_added(some: list[Regret], others: list[Regret]) -> None:
    stepwise, at_once = together([together(some), together(others)]), together([*others, *some])
    assert stepwise.times_ms == pytest.approx(at_once.times_ms)
    assert stepwise.recent_ms == pytest.approx(at_once.recent_ms)
    assert stepwise.holding == at_once.holding


@given(st.builds(Regret, times, times, st.booleans()))
def test_a_lane_that_is_gone_keeps_what_it_lost_and_nothing_else(regret: Regret) -> None:
    past = regret.past()
    assert past.times_ms == regret.times_ms
    assert (past.recent_best, past.recent_share, past.holding) == (0, 0.0, False)
    both = together([past, regret])
    assert both.recent_ms == regret.recent_ms
    assert both.actual_ms == pytest.approx(2 * regret.actual_ms)


def test_lanes_of_other_widths_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="argument 2 is longer"):
        together([Regret((1.0, 1.0), (1.0, 1.0)), Regret((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))])

"""What the default gate does: when it changes modes, what its probes cost, and what does not disturb it."""

import itertools
from collections.abc import Callable

import pytest

from burstgate_policy.core.arbiter import Arbiter
from burstgate_policy.core.config import DepthConfig
from burstgate_policy.core.depth import DepthController
from burstgate_policy.core.gate_config import GateConfig, SeedGateConfig
from burstgate_policy.core.gating import Because
from burstgate_policy.core.regime import regime
from burstgate_policy.core.types import CostCell, Mode, Situation, StepRecord

PLAIN_MS = 100.0


class World:
    """An arbiter on a machine where a round costs and yields the same every time."""

    def __init__(self, *, costs: bool = False) -> None:
        table = [CostCell(1, k, 64, PLAIN_MS, 0.0) for k in (1, 2, 4)] if costs else []
        self.depth = DepthController(cap=4, costs=table, config=DepthConfig())
        self.gate = Arbiter(self.depth, GateConfig())
        self.plain_ms, self.round_ms = PLAIN_MS, 150.0
        self.emitted, self.width, self.depth_tokens = 1, 1, 100
        self.steps = 0

    def situation(self) -> Situation:
        return Situation(self.width, self.depth_tokens, 50, eligible=True, max_draft_width=4)

    def step(self, *, speculates: bool, probing: bool = False, wall_ms: float | None = None) -> None:
        mode = Mode.SPECULATIVE if speculates else Mode.PROBE_PLAIN if probing else Mode.PLAIN
        wall_ms = wall_ms or (self.round_ms if speculates else self.plain_ms)
        emitted = self.emitted * self.width if speculates else self.width
        kept = tuple(self.width for _ in range(self.emitted - 1)) if speculates else ()
        record = StepRecord(
            mode=mode,
            draft_width=4 if speculates else 1,
            width=self.width,
            depth_tokens=self.depth_tokens,
            emitted=emitted,
            proposed=3 * self.width if speculates else 0,
            accepted_by_position=kept,
            draft_ms=0.0,
            verify_ms=wall_ms,
            overhead_ms=0.0,
            wall_ms=wall_ms,
            excluded=False,
        )
        self.depth.observe(record)
        self.gate.observe(record)
        self.steps += 1

    def run(self, steps: int) -> list[tuple[bool, bool]]:
        """Follows the gate; for each step whether it speculated and whether it was a probe."""
        ran = []
        for _ in range(steps):
            outlook = self.gate.outlook(self.situation())
            ran.append((outlook.speculates, outlook.probing))
            self.step(speculates=outlook.speculates, probing=outlook.probing)
        return ran

    def believes_speculation(self) -> bool:
        outlook = self.gate.outlook(self.situation())
        return outlook.speculates != outlook.probing

    def until_plain(self) -> int:
        for steps in itertools.count():
            assert steps < 5000
            if not self.believes_speculation():
                return steps
            self.run(1)
        raise AssertionError


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("width", [1, 4, 16, 32])
@pytest.mark.parametrize("depth_tokens", [100, 1000, 8000])
def test_hopeless_speculation_is_left_within_80_steps_at_every_width_and_depth(
    world: World, width: int, depth_tokens: int
) -> None:
    world.width, world.depth_tokens = width, depth_tokens
    assert world.until_plain() <= 80


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
def test_a_parked_mode_is_probed_in_under_two_percent_of_the_steps_at_every_width(world: World, width: int) -> None:
    world.width = width
    world.until_plain()
    ran = world.run(4000)
    assert 0 < sum(speculated for speculated, _ in ran) / 4000 < 0.02


@pytest.mark.parametrize("width", [1, 8, 32])
def test_the_first_probe_of_plain_comes_after_one_window_at_every_width(world: World, width: int) -> None:
    world.width, world.emitted = width, 3
    ran = world.run(40)
    assert [i for i, (speculated, _) in enumerate(ran) if not speculated] == [16, 17, 18, 19]


def test_probes_that_confirm_come_half_as_often_and_a_dear_one_makes_the_next_wait(world: World) -> None:
    def gaps(world: World) -> list[int]:
        world.until_plain()
        rounds = [i for i, (speculated, _) in enumerate(world.run(6000)) if speculated]
        return [later - before for before, later in itertools.pairwise(rounds) if later - before > 1]

    dear = World()
    dear.round_ms = 2000.0
    config = GateConfig()
    assert set(gaps(world)) == {config.reprobe_steps * 2 + 1}
    # Two rounds at 20 plain steps each for one token lose 1 % of some 4000 steps.
    assert min(gaps(dear)) > 2000


def test_healthy_speculation_spends_under_two_percent_of_its_steps_on_plain(world: World) -> None:
    world.emitted = 2
    assert sum(speculated for speculated, _ in world.run(5000)) / 5000 > 0.98


def test_equal_modes_do_not_flap(world: World) -> None:
    world.round_ms, world.emitted = 200.0, 2
    assert all(world.believes_speculation() for _ in range(500) if world.run(10))


def test_speculation_that_pays_again_is_entered_again(world: World) -> None:
    world.until_plain()
    world.run(600)
    world.emitted = 4
    world.run(900)
    assert world.believes_speculation()


def test_what_speculation_has_won_pays_for_a_bad_stretch(world: World) -> None:
    """A text that drafts well and badly in turn is best speculated on throughout."""
    for _ in range(20):
        world.emitted = 4
        world.run(40)
        world.emitted = 1
        world.run(60)  # loses 30 plain steps: less than the bank holds
        assert world.believes_speculation()


def test_a_collapse_that_lasts_empties_the_bank(world: World) -> None:
    world.emitted = 4
    world.run(400)
    world.emitted = 1
    before = world.steps
    world.until_plain()
    # The bank holds 48 plain steps and leaving takes 12 to 64 more; each round loses half a step, and windows are
    # judged whole, once plain was measured again.
    assert 120 <= world.steps - before <= 260


@pytest.mark.parametrize("costs", [False, True])
@pytest.mark.parametrize(("round_ms", "most"), [(220.0, 1000), (230.0, 600), (250.0, 450)])
def test_rounds_that_get_dearer_are_not_taken_for_a_slow_machine(costs: bool, round_ms: float, most: int) -> None:
    """They lose a tenth or more from then on; a plain step costs what it did."""
    world = World(costs=costs)
    world.width, world.emitted = 8, 2
    world.run(400)
    world.round_ms = round_ms
    before = world.steps
    world.until_plain()
    assert world.steps - before <= most


@pytest.mark.parametrize("costs", [False, True])
def test_a_machine_that_gets_slow_changes_no_mode(costs: bool) -> None:
    world = World(costs=costs)
    world.width, world.emitted = 8, 2
    world.run(400)
    world.round_ms, world.plain_ms = 230.0, 153.0
    assert all(world.believes_speculation() for _ in range(3000) if world.run(1))
    assert world.depth.plain_ms(regime(8, 100)) == pytest.approx(153.0, rel=0.05)


def test_a_batch_that_flaps_between_two_buckets_still_learns(world: World) -> None:
    for width in itertools.cycle([4, 4, 5, 5]):
        world.width = width
        world.run(1)
        if not world.believes_speculation():
            break
        assert world.steps < 400


def test_regimes_keep_what_they_learned(world: World) -> None:
    """Rounds of a wide batch are dear and those of a single row are not; going to and fro starts nothing anew."""
    world.emitted = 3
    for width, round_ms in [(1, 150.0), (16, 500.0)] * 2:
        world.width, world.round_ms = width, round_ms
        world.run(150)
    for width, round_ms in [(1, 150.0), (16, 500.0)] * 5:
        world.width, world.round_ms = width, round_ms
        assert world.believes_speculation() is (width == 1)
        world.run(20)


def test_one_stalled_step_of_either_mode_changes_nothing(world: World) -> None:
    world.emitted = 2
    world.run(200)
    world.step(speculates=True, wall_ms=60_000.0)
    world.run(40)
    assert world.believes_speculation()
    world.emitted = 1
    world.until_plain()
    world.step(speculates=False, wall_ms=60_000.0)
    assert not world.believes_speculation()
    world.run(300)
    assert not world.believes_speculation()


def test_a_round_that_emitted_nothing_never_flatters_speculation(world: World) -> None:
    world.emitted = 0
    world.round_ms = 0.5
    world.run(400)
    assert not world.believes_speculation() or (world.gate.speculative_tps or 0.0) == 0.0


def test_where_no_width_promises_to_pay_plain_runs_from_the_first_step() -> None:
    world = World()
    world.depth = DepthController(
        cap=4, costs=[CostCell(1, k, 64, PLAIN_MS * k, 0.0) for k in (1, 2, 3, 4)], config=DepthConfig()
    )
    world.gate = Arbiter(world.depth, GateConfig())
    outlook = world.gate.outlook(world.situation())
    assert (outlook.speculates, outlook.because) == (False, Because.PROMISED)


def test_a_held_mode_is_run_without_probes(world: World) -> None:
    world.emitted = 2
    world.gate.hold(speculates=True)
    assert all(speculated for speculated, _ in world.run(2000))
    world.gate.hold(speculates=False)
    assert not any(speculated for speculated, _ in world.run(2000))
    world.gate.hold(speculates=None)
    assert world.believes_speculation()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: GateConfig(window_steps=0),
        lambda: GateConfig(probe_budget=0.0),
        lambda: GateConfig(pool_weight=float("nan")),
        lambda: GateConfig(margin=-0.1),
        lambda: GateConfig(bank_steps=float("inf")),
        lambda: GateConfig(regret_ceiling=-0.1),
        lambda: SeedGateConfig(ewma_weight=0.0),
        lambda: SeedGateConfig(depth_factor=1),
    ],
)
def test_a_constant_out_of_range_is_refused_by_name(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="must"):
        wrong()


def test_a_probe_whose_steps_never_come_is_given_up(world: World) -> None:
    """Behind a load balancer the steps of one replica's grants may be reported to another."""
    world.run(16)
    assert world.gate.outlook(world.situation()).probing
    for _ in range(32):
        world.step(speculates=True)
    assert not world.gate.outlook(world.situation()).probing
    world.until_plain()
    while not world.gate.outlook(world.situation()).probing:
        world.step(speculates=False)
    for _ in range(32):
        world.step(speculates=False)
    assert not world.gate.outlook(world.situation()).probing

"""No constant of a gate or of the draft width is dead: another value changes what runs somewhere.

Each constant is changed alone, by half. What runs then is compared on a few short simulated workloads, one
after the other until one differs. What only shows in a corner or after many steps has a story of its own.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable

import pytest
from tests.unit.policy.driver import PLAIN_MS, Driver, Machine, Ran, situation

from burstgate_bench.gate.families import FAMILIES
from burstgate_bench.gate.play import START_S, play
from burstgate_bench.gate.recipe import build
from burstgate_bench.gate.world import World
from burstgate_policy.core.config import CoreConfig, DepthConfig
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.gate_config import GateConfig, SeedGateConfig
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.static_gate import static_gate
from burstgate_policy.core.types import Verdict

FAMILIES_PLAYED = ("collapse_linear", "compilation", "no_table", "wrong_table", "flapping", "contexts", "kind_changes")
STEPS = 1500
Part = GateConfig | SeedGateConfig | DepthConfig
Story = Callable[[CoreConfig], list[Ran]]


def hopeless(config: CoreConfig) -> list[Ran]:
    """Rounds keep nothing; they cost two plain steps, as the table says, or half of that more."""
    return Driver(Machine(kept=lambda _: 0), config=config).run(4000)


def unpromising(config: CoreConfig) -> list[Ran]:
    """No draft width promises to pay, and none does."""
    return Driver(Machine(round_ms=lambda _, k: 3.2 * PLAIN_MS, kept=lambda _: 0), config=config).run(400)


def losing_slowly(config: CoreConfig) -> list[Ran]:
    """Rounds lose a plain step each, so that the ceiling holds plain for a while."""
    return Driver(Machine(round_ms=lambda _, k: 2.2 * PLAIN_MS, kept=lambda _: 0), config=config).run(3000)


def dear(config: CoreConfig) -> list[Ran]:
    """A probe costs some thirty plain steps."""
    return Driver(Machine(round_ms=lambda _, k: 12.0 * PLAIN_MS, kept=lambda _: 0), config=free(config)).run(6000)


def ruinous(config: CoreConfig) -> list[Ran]:
    """A probe costs some two hundred plain steps."""
    return Driver(Machine(round_ms=lambda _, k: 60.0 * PLAIN_MS, kept=lambda _: 0), config=free(config)).run(6000)


def equal_and_declined(config: CoreConfig) -> list[Ran]:
    """Rounds neither win nor lose, so that probes are as long as they may be."""
    machine = Machine(round_ms=lambda _, k: 2.0 * PLAIN_MS)
    return Driver(machine, cap=2, verdict=Verdict.DECLINE, config=free(config)).run(3000)


def recovering(config: CoreConfig) -> list[Ran]:
    """Rounds lose, and then win by more or less; what was seen before holds speculation up for a while."""
    ran = []
    for period in (4, 5, 8):
        lane = Driver(Machine(kept=lambda _: 0), cap=2, config=free(config))
        lane.run(1000)
        lane.machine.kept = lambda n, period=period: int(n % period > 0)  # type: ignore[misc]
        ran += lane.run(2000)
    return ran


def stalling(config: CoreConfig) -> list[Ran]:
    """Rounds pay, but every third stalls."""
    stalls = Machine(
        round_ms=lambda _, k: 1.3 * PLAIN_MS,
        kept=lambda _: 1,
        factor=lambda n, rounds: 10.0 if rounds and n % 3 == 0 else 1.0,
    )
    return Driver(stalls, cap=2, config=free(config)).run(2000)


def two_bad_rounds_after_each_change(config: CoreConfig) -> list[Ran]:
    """Each change of the batch width costs two rounds."""
    bad: set[int] = set()
    lane = Driver(
        Machine(round_ms=lambda _, k: 1.85 * PLAIN_MS, kept=lambda n: int(n not in bad)), cap=2, config=free(config)
    )
    lane.machine.factor = lambda n, rounds: 6.0 if rounds and n in bad else 1.0
    for width in [2, 1] * 60:
        bad |= {len(lane.ran), len(lane.ran) + 1}
        lane.run(10, situation(width))
    return lane.ran


def alike_by_a_quarter(config: CoreConfig) -> list[Ran]:
    """Rounds promise a quarter more for one row than for four; then the text changes while one row runs."""
    lane = Driver(Machine(round_ms=lambda at, _: PLAIN_MS * (1.9 if at.width > 1 else 1.52)), cap=2, config=config)
    lane.run(200, situation(4))
    lane.run(200, situation(1))
    lane.machine.kept = lambda _: 0
    lane.run(400, situation(1))
    return lane.run(40, situation(4))


def away_for_long(config: CoreConfig) -> list[Ran]:
    """A regime in which rounds lost is met again after ten thousand steps elsewhere."""
    lane = Driver(Machine(round_ms=lambda at, _: PLAIN_MS * (3.0 if at.width > 1 else 1.0)), config=config)
    lane.run(200, situation(4))
    lane.run(10_000, situation(1))
    return lane.run(400, situation(4))


def steady(config: CoreConfig) -> list[Ran]:
    """Nothing changes for long; trials are rare from the start."""
    depth = dataclasses.replace(config.depth, explore_every=400)
    return Driver(Machine(round_ms=lambda _, k: 1.2 * PLAIN_MS), config=dataclasses.replace(config, depth=depth)).run(
        8000
    )


def losing_by_a_little(config: CoreConfig) -> list[Ran]:
    """Plain is faster by six per cent."""
    return Driver(Machine(round_ms=lambda _, k: 2.12 * PLAIN_MS), config=config).run(2000)


def slow_at_the_end_of_a_wait(config: CoreConfig) -> list[Ran]:
    """Rounds get slow ten steps before plain is due to be measured, in the middle of a window."""
    machine = Machine(
        round_ms=lambda _, k: 2.0 * PLAIN_MS,
        kept=lambda n: 1 + n % 2,
        factor=lambda n, rounds: 2.0 if rounds and n >= 400 else 1.0,
    )
    return Driver(machine, config=config).run(800)


def free(config: CoreConfig) -> CoreConfig:
    """Without the ceiling, which would stop the probes that a story is about."""
    if not isinstance(config.gate, GateConfig):
        return config
    return dataclasses.replace(config, gate=dataclasses.replace(config.gate, regret_ceiling=1.0))


STORIES: dict[str, Story] = {
    "leave_steps": hopeless,
    "backoff_limit": hopeless,
    "regret_ceiling": hopeless,
    "regret_memory_steps": losing_slowly,
    "first_probe_steps": unpromising,
    "probe_loss": losing_slowly,
    "probe_budget": dear,
    "longest_wait_steps": ruinous,
    "probe_rounds": equal_and_declined,
    "probe_share": equal_and_declined,
    "declined_factor": equal_and_declined,
    "pool_weight": recovering,
    "stall_factor": stalling,
    "settle_steps": two_bad_rounds_after_each_change,
    "alike_within": alike_by_a_quarter,
    "expiry_steps": away_for_long,
    "explore_limit": steady,
}
SEED_STORIES: dict[str, Story] = {
    "margin": losing_by_a_little,
    "min_partial_steps": slow_at_the_end_of_a_wait,
}


@functools.cache
def workload(family: str) -> World:
    return build(family, FAMILIES[family], seed=5, index=0, steps=STEPS).world


@functools.cache
def played(family: str, config: CoreConfig) -> str:
    """A digest of what every step emitted and took on a workload."""
    world = workload(family)
    policy = MtpPolicy.start(
        world.key,
        force=None,
        adaptive=True,
        static_default=static_gate(world.capabilities, world.cells).enabled,
        hint=None,
        config=config,
        now_s=START_S,
    )
    log = play(world, Lane(policy, world.capabilities, world.cells, config))
    return hashlib.sha256(log.tokens.tobytes() + log.busy_ms.tobytes()).hexdigest()


def changed(part: Part, name: str) -> Part:
    """The part with one constant half as large again, or smaller where it may not be larger."""
    value = getattr(part, name)
    for other in (max(round(value * 1.5), value + 1) if isinstance(value, int) else value * 1.5, value / 1.5):
        try:
            return dataclasses.replace(part, **{name: other})
        except ValueError:
            continue
    raise AssertionError(f"no other value of {name} is allowed")


def numbers(part: Part) -> list[str]:
    return [field.name for field in dataclasses.fields(part) if isinstance(getattr(part, field.name), int | float)]


def differs(base: CoreConfig, other: CoreConfig, story: Story | None) -> bool:
    if story is not None:
        return story(base) != story(other)
    return any(played(family, base) != played(family, other) for family in FAMILIES_PLAYED)


@pytest.mark.parametrize("name", numbers(GateConfig()))
def test_every_constant_of_the_gate_matters(name: str) -> None:
    base = CoreConfig()
    other = dataclasses.replace(base, gate=changed(GateConfig(), name))
    assert differs(base, other, STORIES.get(name))


@pytest.mark.parametrize("name", numbers(SeedGateConfig()))
def test_every_constant_of_the_plain_rules_matters(name: str) -> None:
    base = CoreConfig.seed()
    other = dataclasses.replace(base, gate=changed(SeedGateConfig(), name))
    assert differs(base, other, SEED_STORIES.get(name))


@pytest.mark.parametrize("name", numbers(DepthConfig()))
def test_every_constant_of_the_draft_width_matters(name: str) -> None:
    base = CoreConfig()
    other = dataclasses.replace(base, depth=changed(DepthConfig(), name))
    assert differs(base, other, STORIES.get(name))


def test_the_objective_matters() -> None:
    base = CoreConfig()
    assert differs(base, dataclasses.replace(base, depth=DepthConfig(objective="latency")), None)


def test_the_same_constants_run_the_same() -> None:
    """Or a difference would mean nothing."""
    again = CoreConfig(burst_steps=8)
    stories = {*STORIES.values(), hopeless}
    assert not any(differs(CoreConfig(), again, story) for story in stories)
    first = played.__wrapped__(FAMILIES_PLAYED[0], CoreConfig())
    assert first == played.__wrapped__(FAMILIES_PLAYED[0], again)


def test_every_story_is_for_a_constant() -> None:
    assert set(STORIES) <= {*numbers(GateConfig()), *numbers(DepthConfig())}
    assert set(SEED_STORIES) <= set(numbers(SeedGateConfig()))

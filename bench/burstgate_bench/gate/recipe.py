"""Builds a world from its parts, large enough that every policy has to run for a while. Decides no family."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from burstgate_bench.gate.costs import StepCosts
from burstgate_bench.gate.fixed import FixedRun, fixed_runs
from burstgate_bench.gate.machine import Machine
from burstgate_bench.gate.texts import Bytes, Kind, Random, draw_accepted
from burstgate_bench.gate.traffic import Answer, Traffic
from burstgate_bench.gate.world import Text, World, measured_cells
from burstgate_policy.core.types import CostCell

Process = Callable[[Random, int, int], Bytes]
"""From a source of chance, the tokens before a text and its length to the index of the kind at each position."""

TABLE_ERROR = 0.03
"""Relative error of a cell that was measured in a few runs."""
_MOST_BUILDS = 12
_PICKY_BUILDS = 3
_AS_GOOD = 0.03
# More steps than this beyond those asked for take time and tell nothing.
_MOST_EXCESS = 1.25


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything of a world but its size."""

    machine: Machine
    kinds: tuple[Kind, ...]
    process: Process
    traffic: Traffic
    cap: int = 8
    table_error: float | None = TABLE_ERROR
    """None: the lane has no cost table."""
    table_wrong: bool = False
    """Whether the table is off by up to `table_error` for a K as a whole, instead of cell by cell."""
    steps_factor: float = 1.0
    """A family may need more steps than asked for."""


Family = Callable[[Random], Recipe]


@dataclass(frozen=True, slots=True)
class Built:
    """A world and what every fixed mode does to it."""

    world: World
    fixed: dict[int, FixedRun]

    @property
    def best(self) -> FixedRun:
        """The fixed mode that is through first."""
        return min(self.fixed.values(), key=lambda run: run.total_ms)

    @property
    def fewest_steps(self) -> int:
        """Of the best mode and those that are as good: chance decides between them anew at every size."""
        limit_ms = self.best.total_ms * (1.0 + _AS_GOOD)
        return min(run.steps for run in self.fixed.values() if run.total_ms <= limit_ms)


def build(name: str, family: Family, *, seed: int, index: int, steps: int) -> Built:
    """The world of a family with this number; its best fixed mode needs at least `steps` steps."""
    place = [seed, zlib.crc32(name.encode()), index]
    recipe = family(np.random.default_rng([*place, 0]))
    return sized(lambda tokens: _world(name, recipe, place, tokens), int(steps * recipe.steps_factor))


def sized(make: Callable[[int], World], steps: int) -> Built:
    """The world that a maker makes from a number of tokens, with as many that the best fixed mode needs `steps`."""
    # The first is small: it tells how many tokens a step takes.
    tokens = steps // 4
    for attempt in range(_MOST_BUILDS):
        world = make(tokens)
        built = Built(world, fixed_runs(world))
        found = built.fewest_steps
        if steps <= found and (found <= _MOST_EXCESS * steps or attempt >= _PICKY_BUILDS):
            return built
        tokens = int(world.tokens * 1.04 * steps / found)
    raise ValueError(f"{world.name}: no size gives {steps} steps; the last had {found}")


def _world(name: str, recipe: Recipe, place: Sequence[int], tokens: int) -> World:
    random = np.random.default_rng([*place, 1])
    demand = recipe.traffic(random, tokens)
    before = 0
    texts: list[Text] = []
    for answer in demand.answers:
        texts.append(_text(recipe, answer, before, random))
        before += answer.tokens
    visitors = [_text(recipe, answer, answer.after_tokens, random) for answer in demand.visitors]
    cells: tuple[CostCell, ...] = ()
    if recipe.table_error is not None:
        table_random = np.random.default_rng([*place, 2])
        cells = measured_cells(
            recipe.machine, recipe.cap, table_random, error=recipe.table_error, systematic=recipe.table_wrong
        )
    return World(name, recipe.kinds, tuple(texts), demand.slots, tuple(visitors), recipe.machine, cells, recipe.cap)


def _text(recipe: Recipe, answer: Answer, before: int, random: Random) -> Text:
    kinds = recipe.process(random, before, answer.tokens)
    return Text(
        context_tokens=answer.context_tokens,
        accepted=draw_accepted(recipe.kinds, kinds, random).tobytes(),
        kinds=kinds.tobytes(),
        thinking_tokens=answer.thinking_tokens,
        after_tokens=answer.after_tokens,
    )


def one_kind(kinds: int) -> Process:
    """Every text is of one kind, drawn anew for each."""

    def process(random: Random, before: int, length: int) -> Bytes:
        return np.full(length, random.integers(kinds), np.uint8)

    return process


def changing(kinds: int, every_tokens: int) -> Process:
    """The kind changes every so many tokens, across texts as well."""

    def process(random: Random, before: int, length: int) -> Bytes:
        return ((before + np.arange(length)) // every_tokens % kinds).astype(np.uint8)

    return process


def collapsing(period_tokens: int, share: float) -> Process:
    """Kind 0, but kind 1 during the last `share` of every `period_tokens`: the drafter loses the text for a while."""

    def process(random: Random, before: int, length: int) -> Bytes:
        return ((before + np.arange(length)) % period_tokens >= (1.0 - share) * period_tokens).astype(np.uint8)

    return process


def plain_ms(costs: StepCosts, width: int = 1) -> float:
    """A plain step in a short context."""
    return costs.step_ms(width, 1, 64)

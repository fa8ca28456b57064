"""Says which cells of a cost table are measured in which order, and stops when the time is used up.

The cells that decide most come first, so that a slow machine that measures few of them still prices well
what it mostly runs. It is told what a run is and what time it is; it knows no model and no MLX.
"""

import itertools
import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from burstgate_policy.core.types import CostCell

BUDGET_MS = 4800.0
"""What a measurement may add to a start: less than five seconds, since how long a run will take is a guess."""

LEAST_RUNS = 2
"""A first run compiles and allocates; a cell that has no other says nothing."""

MOST_RUNS = 4
"""The lower median of four is the median of three when the first one was dear."""

DEPTH_TOKENS = 64
"""Depth of most cells: that of a short answer."""

# Attention grows with the depth, and verifies pay it for each row. The second only if there is time.
_DEEP_TOKENS = (512, 2048)
# In the order of what they tell: up to 8 every K, beyond it a few, since the policy draws lines between them.
_DRAFT_WIDTHS = (1, 4, 2, 3, 6, 5, 7, 8, 12, 16, 24, 32, 48, 64)
# With two and four rows between one and eight, the nearest measured width is never far off.
_BATCH_WIDTHS = (8, 2, 4)
# Dear, and nobody's usual load.
_WIDEST_BATCHES = (16, 32)
# The scores of more positions than this would take hundreds of megabytes.
_MOST_POSITIONS = 256


class Cell(NamedTuple):
    """One place of the table."""

    width: int
    """Rows of the batch."""
    draft_width: int
    """Rows of the verify for each sequence."""
    depth_tokens: int


class Timing(NamedTuple):
    """What one run of a cell took, in milliseconds."""

    verify_ms: float
    draft_ms: float


Stage: TypeAlias = tuple[Cell, ...]


@dataclass(frozen=True)
class Plan:
    """Cells in the order of what they are worth."""

    essential: Stage
    """Measured whatever it takes: a plain step and the widest round of one row."""
    one_row: tuple[Stage, ...]
    """The other K of one row, which is what is mostly run."""
    main: tuple[Stage, ...]
    """The usual batches and a medium depth."""
    extra: tuple[Stage, ...]
    """What is measured when all of those have their runs."""

    def is_covered(self, table: Collection[CostCell]) -> bool:
        """Whether a table has every K of one row; a measurement that had the machine to itself does."""
        found = {Cell(cell.width, cell.draft_width, cell.depth_tokens) for cell in table}
        return found.issuperset(itertools.chain(self.essential, *self.one_row))


def make_plan(draft_width: int, max_width: int, context_length: int, *, fillable: bool) -> Plan:
    """The plan for verifies of up to `draft_width` rows and batches of up to `max_width` sequences.

    A stage begins with its widest verify, which compiles and allocates what the others need. Caches that
    are not `fillable` must be prefilled, which takes too long for more than one row at one depth.
    """
    depth = min(DEPTH_TOKENS, max(1, context_length - draft_width))

    def stage(width: int, draft_widths: set[int], depth_tokens: int = depth) -> Stage:
        widest = min(draft_width, max(1, _MOST_POSITIONS // width))
        outer = [widest] if draft_width in draft_widths else []
        inner = [k for k in _DRAFT_WIDTHS if k in draft_widths and k < widest]
        return tuple(Cell(width, k, depth_tokens) for k in (*outer, *inner))

    essential = stage(1, {1, draft_width})
    one_row = (stage(1, {2, 4}), stage(1, {3, 6}), stage(1, set(_DRAFT_WIDTHS) - {1, 2, 3, 4, 6, draft_width}))
    if not fillable or draft_width == 1:
        return Plan(essential, one_row, (), ())
    deep = [stage(1, {1, 4, draft_width}, tokens) for tokens in _DEEP_TOKENS if tokens + draft_width <= context_length]
    batches = [stage(width, {1, 2, 4, draft_width}) for width in _BATCH_WIDTHS if width <= max_width]
    widest = [stage(width, {1, 2, 4, draft_width}) for width in _WIDEST_BATCHES if width <= max_width]
    rest = [stage(width, {3, 6}) for width in _BATCH_WIDTHS if width <= max_width]
    main = (*batches[:1], *deep[:1], *batches[1:])
    return Plan(essential, one_row, main, (*deep[1:], *widest, *rest))


class BudgetedRuns:
    """Runs cells while the time lasts, and keeps what each run took."""

    def __init__(self, run: Callable[[Cell], Timing], clock: Callable[[], float], budget_ms: float = BUDGET_MS) -> None:
        """`clock` gives milliseconds; the budget starts now."""
        self._run = run
        self._clock = clock
        self._deadline_ms = clock() + budget_ms
        self._timings: dict[Cell, list[Timing]] = {}
        self._took_ms: dict[Cell, float] = {}

    def take(self, cells: Stage, runs: int, *, whatever_it_takes: bool = False) -> bool:
        """Runs the cells in turn until each has so many runs. False when the time did not suffice.

        In turn, so that a moment in which the machine is busy makes all of them dearer and not one.
        """
        for turn in range(runs):
            for cell in cells:
                if len(self._timings.get(cell, ())) > turn:
                    continue
                if not whatever_it_takes and self._clock() + self._expected_ms(cell) > self._deadline_ms:
                    return False
                self._take_one(cell)
        return True

    def complete(self, plan: Plan) -> None:
        """Takes the plan's runs as far as the time goes."""
        self.take(plan.essential, LEAST_RUNS, whatever_it_takes=True)
        for stages in ((plan.essential, *plan.one_row, *plan.main), plan.extra):
            if not all(self.take(stage, LEAST_RUNS) for stage in stages):
                return
            if not self.take(tuple(cell for stage in stages for cell in stage), MOST_RUNS):
                return

    def timing(self, cell: Cell) -> Timing | None:
        """The lower median of a cell's runs, None if it has too few.

        A first run that was dear because it compiled is the highest of its cell, so it is never the answer;
        one that was not is as good as any other.
        """
        timings = self._timings.get(cell, ())
        if len(timings) < LEAST_RUNS:
            return None
        return Timing(*(statistics.median_low(values) for values in zip(*timings, strict=True)))

    def table(self) -> tuple[CostCell, ...]:
        """What was measured, by width, depth and K.

        A width and depth of which only one K, or no plain step, was measured is left out: read on its own it
        would price every K alike.
        """
        found = {cell: timing for cell in sorted(self._timings) if (timing := self.timing(cell)) is not None}
        return tuple(CostCell(*cell, *timing) for cell, timing in found.items() if _is_comparable(cell, found))

    def _expected_ms(self, cell: Cell) -> float:
        """What the next run will take: as long as its last one, or as the dearest of one row for each row."""
        return self._took_ms.get(cell) or cell.width * max(
            (took_ms for seen, took_ms in self._took_ms.items() if seen.width == 1), default=0.0
        )

    def _take_one(self, cell: Cell) -> None:
        start_ms = self._clock()
        self._timings.setdefault(cell, []).append(self._run(cell))
        self._took_ms[cell] = self._clock() - start_ms


def _is_comparable(cell: Cell, found: Collection[Cell]) -> bool:
    place = cell.width, cell.depth_tokens
    beside = {other.draft_width for other in found if (other.width, other.depth_tokens) == place}
    return 1 in beside and (len(beside) > 1 or len(found) == 1)

"""Gives a pairing its cost table at start: the stored one if two of its cells still hold, else a new one.

It logs what it did. Nothing that is wrong with the cache folder stops a start: then the table is measured,
and lost with the process.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from burstgate_decode.models.calibration_plan import LEAST_RUNS, BudgetedRuns, Cell, Plan, Timing
from burstgate_decode.models.cost_files import CostFileError, CostFiles, CostKey, StoredCosts
from burstgate_policy.core.types import CostCell

RATIO_TOLERANCE = 1.25
"""How far the price of the widest round in plain steps may be from the stored one, as a factor, and how much
faster a plain step may be. Farther, the machine or what runs on it changed; nearer, live rounds correct it."""

# An odd number, so that the lower median is the middle one.
_CHECK_RUNS = 3

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Costs:
    """A cost table and where it comes from."""

    table: tuple[CostCell, ...]
    stored: bool
    """Whether it was read; otherwise it was measured just now."""
    measured_at: float
    """Seconds since the epoch."""


def obtain_costs(
    plan: Plan,
    run: Callable[[Cell], Timing],
    clock: Callable[[], float],
    files: CostFiles,
    key: CostKey,
    *,
    fresh: bool = False,
) -> Costs:
    """The table of a pairing. `fresh` measures it whatever is stored; `clock` gives milliseconds."""
    start_ms = clock()
    runs = BudgetedRuns(run, clock)
    stored = None if fresh else _load(files, key)
    if stored is not None and _holds(stored, plan, runs):
        _log.info("costs_read", path=str(files.path(key)), **_facts(stored.table, clock() - start_ms))
        return Costs(stored.table, True, stored.measured_at)
    costs = _measure(plan, runs, clock, start_ms)
    _save(files, key, costs.table)
    return costs


def measure_costs(plan: Plan, run: Callable[[Cell], Timing], clock: Callable[[], float]) -> Costs:
    """A table that is not stored. `clock` gives milliseconds."""
    return _measure(plan, BudgetedRuns(run, clock), clock, clock())


def _measure(plan: Plan, runs: BudgetedRuns, clock: Callable[[], float], start_ms: float) -> Costs:
    runs.complete(plan)
    table = runs.table()
    _log.info("costs_measured", **_facts(table, clock() - start_ms))
    return Costs(table, False, time.time())


def _load(files: CostFiles, key: CostKey) -> StoredCosts | None:
    try:
        return files.load(key)
    except CostFileError as error:
        _log.warning("costs_file_ignored", why=str(error))
        return None


def _save(files: CostFiles, key: CostKey, table: tuple[CostCell, ...]) -> None:
    try:
        files.save(key, table)
    except CostFileError as error:
        _log.warning("costs_not_stored", why=str(error))


def _holds(stored: StoredCosts, plan: Plan, runs: BudgetedRuns) -> bool:
    """Whether the widest round of one row still costs about as many plain steps as it did.

    A machine that is slower all over now prices every mode alike, so its table is kept. One that is faster was
    busy when it was measured, and so was one whose table ran out of time early: both are measured anew. The
    runs are the first of a new measurement should it be needed.
    """
    if not plan.is_covered(stored.table):
        _log.info("costs_incomplete", cells=len(stored.cells))
        return False
    runs.take(plan.essential, LEAST_RUNS, whatever_it_takes=True)
    runs.take(plan.essential, _CHECK_RUNS)
    before, now = _essence(stored.table, plan), _essence(runs.table(), plan)
    same_price = 1 / RATIO_TOLERANCE <= now.widest_steps / before.widest_steps <= RATIO_TOLERANCE
    if same_price and before.plain_ms / now.plain_ms <= RATIO_TOLERANCE:
        return True
    _log.info("costs_outdated", now=now.rounded(), stored=before.rounded())
    return False


class _Essence(NamedTuple):
    """What a stored table is checked by."""

    plain_ms: float
    widest_steps: float
    """Price of the widest round in plain steps."""

    def rounded(self) -> dict[str, float]:
        return {name: round(value, 2) for name, value in self._asdict().items()}


def _essence(table: tuple[CostCell, ...], plan: Plan) -> _Essence:
    rounds_ms = {
        Cell(cell.width, cell.draft_width, cell.depth_tokens): cell.verify_ms + cell.draft_ms for cell in table
    }
    widest, plain = plan.essential
    return _Essence(rounds_ms[plain], rounds_ms[widest] / rounds_ms[plain])


def _facts(table: tuple[CostCell, ...], took_ms: float) -> dict[str, object]:
    """What a line of the log says of a table."""
    first = table[0]
    one_row = [cell for cell in table if (cell.width, cell.depth_tokens) == (first.width, first.depth_tokens)]
    return {
        "cells": len(table),
        "step_ms": {cell.draft_width: round(cell.verify_ms, 1) for cell in one_row},
        "took_ms": round(took_ms),
    }

"""Which cells a measurement takes, in which order, and what it makes of their runs."""

import itertools

import pytest
from tests.unit.models.machines import DRAFT_MS, ROW_MS, STEP_MS, Machine, cost

from burstgate_decode.models.calibration_plan import (
    BUDGET_MS,
    LEAST_RUNS,
    MOST_RUNS,
    BudgetedRuns,
    Cell,
    Plan,
    Timing,
    make_plan,
)
from burstgate_policy.core.costs import CostTable
from burstgate_policy.core.types import CostCell

PLAN = make_plan(8, 8, 2048, fillable=True)


def measured(machine: Machine, plan: Plan = PLAN) -> tuple[CostCell, ...]:
    runs = BudgetedRuns(machine.run, machine.clock)
    runs.complete(plan)
    return runs.table()


def cells_of(table: tuple[CostCell, ...]) -> set[Cell]:
    return {Cell(cell.width, cell.draft_width, cell.depth_tokens) for cell in table}


def test_a_fast_machine_measures_every_width_k_and_depth() -> None:
    table = measured(Machine(slower=0.01))
    assert cells_of(table) == {
        *(Cell(1, k, 64) for k in range(1, 9)),
        *(Cell(width, k, 64) for width in (2, 4, 8) for k in (1, 2, 3, 4, 6, 8)),
        *(Cell(1, k, 512) for k in (1, 4, 8)),
    }


def test_a_deeper_context_is_measured_where_the_model_has_room_for_it() -> None:
    deepest = {cell.depth_tokens for cell in measured(Machine(slower=0.01), make_plan(8, 8, 2056, fillable=True))}
    assert deepest == {64, 512, 2048}
    short = {cell.depth_tokens for cell in measured(Machine(slower=0.01), make_plan(8, 8, 512, fillable=True))}
    assert short == {64}


def test_a_context_shorter_than_the_usual_depth_is_not_overrun() -> None:
    plan = make_plan(8, 8, 40, fillable=True)
    assert {cell.depth_tokens + 8 for cell in plan.essential} == {40}


def test_no_batch_is_wider_than_the_lane() -> None:
    assert {cell.width for cell in measured(Machine(slower=0.01), make_plan(8, 3, 2048, fillable=True))} == {1, 2}
    assert max(cell.width for cell in measured(Machine(slower=0.001), make_plan(8, 64, 2048, fillable=True))) == 32


def test_no_forward_has_more_rows_than_its_scores_have_room_for() -> None:
    table = measured(Machine(slower=1e-5), make_plan(64, 32, 8192, fillable=True))
    assert max(cell.width * cell.draft_width for cell in table) == 256
    assert {cell.width for cell in table} == {1, 2, 4, 8, 16, 32}


def test_caches_that_must_be_prefilled_are_measured_for_one_row_at_one_depth() -> None:
    table = measured(Machine(slower=0.01), make_plan(8, 8, 2048, fillable=False))
    assert cells_of(table) == {Cell(1, k, 64) for k in range(1, 9)}


def test_without_a_drafter_a_plain_step_is_all() -> None:
    (cell,) = measured(Machine(), make_plan(1, 8, 2048, fillable=True))
    assert cell == CostCell(1, 1, 64, STEP_MS, 0.0)


@pytest.mark.parametrize("slower", [0.1, 0.5, 0.7, 1, 1.4, 2, 3, 4, 5, 8, 10, 13, 15])
def test_a_measurement_ends_within_its_budget(slower: float) -> None:
    machine = Machine(slower=slower)
    started_ms = machine.now_ms
    table = measured(machine)
    assert machine.now_ms - started_ms <= BUDGET_MS
    assert {Cell(1, 1, 64), Cell(1, 8, 64)} <= cells_of(table)


def test_a_machine_that_is_too_slow_measures_a_plain_step_and_the_widest_round() -> None:
    machine = Machine(slower=1000.0)
    assert cells_of(measured(machine)) == {Cell(1, 1, 64), Cell(1, 8, 64)}
    assert len(machine.ran) == 2 * LEAST_RUNS


def test_less_time_leaves_out_what_is_worth_less() -> None:
    kept = [cells_of(measured(Machine(slower=slower))) for slower in (0.1, 1, 2, 4, 8, 16)]
    assert all(slow < fast for fast, slow in itertools.pairwise(kept))
    assert all(cell.width == 1 and cell.depth_tokens == 64 for cell in kept[-2])


def test_the_cells_of_a_stage_take_turns_so_that_a_busy_moment_hits_all() -> None:
    machine = Machine()
    BudgetedRuns(machine.run, machine.clock).take((Cell(1, 8, 64), Cell(1, 1, 64), Cell(1, 4, 64)), 3)
    assert [cell.draft_width for cell in machine.ran] == [8, 1, 4] * 3


def test_runs_that_were_taken_before_count() -> None:
    machine = Machine()
    runs = BudgetedRuns(machine.run, machine.clock)
    runs.take(PLAN.essential, 3)
    runs.complete(PLAN)
    assert all(machine.ran.count(cell) <= MOST_RUNS for cell in machine.ran)


@pytest.mark.parametrize("slower", [0.01, 1.0, 5.0])
def test_what_a_first_run_compiles_is_not_in_the_table(slower: float) -> None:
    table = measured(Machine(slower=slower, first_run_ms=400.0))
    assert len(table) >= 2
    for cell in table:
        assert cell.verify_ms == pytest.approx(slower * cost(Cell(*_place(cell))).verify_ms)


def test_one_stalled_run_of_four_changes_nothing() -> None:
    stalls = iter([0.0] * 5 + [900.0] + [0.0] * 10_000)
    machine = Machine(lambda cell: cost(cell)._replace(verify_ms=cost(cell).verify_ms + next(stalls)), slower=0.1)
    for cell in measured(machine):
        assert cell.verify_ms == pytest.approx(0.1 * cost(Cell(*_place(cell))).verify_ms)


def test_a_cell_holds_both_parts_of_a_round() -> None:
    costs = {Cell(*_place(cell)): cell for cell in measured(Machine(slower=0.01))}
    assert costs[Cell(8, 4, 64)].draft_ms == pytest.approx(0.01 * 3 * DRAFT_MS)
    assert costs[Cell(8, 4, 64)].verify_ms == pytest.approx(0.01 * (STEP_MS + 31 * ROW_MS))
    assert costs[Cell(8, 1, 64)].draft_ms == 0.0


@pytest.mark.parametrize("slower", [1.0, 1.3, 1.7, 2.2, 3.0, 4.0, 6.0, 9.0])
def test_wherever_time_runs_out_no_batch_or_depth_prices_every_k_alike(slower: float) -> None:
    table = measured(Machine(slower=slower))
    for width, depth in {(cell.width, cell.depth_tokens) for cell in table}:
        curve = CostTable(table).curve(width=width, depth_tokens=depth, max_draft_width=8)
        assert curve is not None
        assert curve[8] > curve[1]


def test_a_table_covers_its_plan_once_it_has_every_k_of_one_row() -> None:
    assert PLAN.is_covered(measured(Machine()))
    assert not PLAN.is_covered(measured(Machine(slower=20.0)))
    assert not make_plan(6, 8, 2048, fillable=True).is_covered(measured(Machine(slower=20.0)))


def test_an_unmeasured_cell_has_no_timing() -> None:
    machine = Machine()
    runs = BudgetedRuns(machine.run, machine.clock)
    runs.take(PLAN.essential, 1)
    assert runs.timing(PLAN.essential[0]) is None
    assert runs.table() == ()
    runs.take(PLAN.essential, 2)
    assert runs.timing(PLAN.essential[1]) == Timing(STEP_MS, 0.0)


def _place(cell: CostCell) -> tuple[int, int, int]:
    return cell.width, cell.draft_width, cell.depth_tokens

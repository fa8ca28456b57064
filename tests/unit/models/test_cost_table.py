"""Which table a start gets: the stored one while it holds, a new one otherwise, and never none."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.unit.models.machines import Machine, cost
from tests.unit.models.test_cost_files import KEY

from burstgate_decode.models.calibration_plan import BUDGET_MS, Cell, Timing, make_plan
from burstgate_decode.models.cost_files import CostFiles
from burstgate_decode.models.cost_table import RATIO_TOLERANCE, Costs, measure_costs, obtain_costs

PLAN = make_plan(8, 8, 2048, fillable=True)


@pytest.fixture
def files(tmp_path: Path) -> CostFiles:
    return CostFiles(tmp_path / "costs")


def start(files: CostFiles, machine: Machine, **options: Any) -> tuple[Costs, list[str]]:
    """A start's table and the events of its log."""
    with capture_logs() as lines:
        costs = obtain_costs(PLAN, machine.run, machine.clock, files, options.pop("key", KEY), **options)
    return costs, [line["event"] for line in lines]


def dearer_rounds(factor: float) -> Machine:
    """A machine whose rounds cost so much more than they did, and whose plain steps do not."""

    def run(cell: Cell) -> Timing:
        verify_ms, draft_ms = cost(cell)
        return Timing(verify_ms * factor, draft_ms * factor) if cell.draft_width > 1 else Timing(verify_ms, draft_ms)

    return Machine(run)


def test_a_first_start_measures_and_stores_and_a_second_reads(files: CostFiles) -> None:
    measured, events = start(files, Machine())
    assert (measured.stored, events) == (False, ["costs_measured"])
    machine = Machine()
    read, events = start(files, machine)
    assert (read.stored, events) == (True, ["costs_read"])
    assert read.table == measured.table
    assert set(machine.ran) == {Cell(1, 1, 64), Cell(1, 8, 64)}


def test_a_machine_that_is_slower_all_over_keeps_its_table(files: CostFiles) -> None:
    measured, _ = start(files, Machine())
    read, events = start(files, Machine(slower=3.0))
    assert events == ["costs_read"]
    assert read.table == measured.table


@pytest.mark.parametrize(("slower", "holds"), [(1.0, True), (0.81, True), (0.79, False), (0.2, False)])
def test_a_machine_that_is_faster_than_its_table_was_busy_then_and_is_measured_anew(
    files: CostFiles, slower: float, holds: bool
) -> None:
    busy, _ = start(files, Machine())
    costs, events = start(files, Machine(slower=slower))
    assert events == (["costs_read"] if holds else ["costs_outdated", "costs_measured"])
    assert costs.stored is holds
    assert len(costs.table) >= len(busy.table)


@pytest.mark.parametrize(
    ("factor", "holds"),
    [(RATIO_TOLERANCE * 0.99, True), (RATIO_TOLERANCE * 1.01, False), (0.81, True), (0.79, False)],
)
def test_rounds_that_became_dearer_or_cheaper_by_a_quarter_are_measured_anew(
    files: CostFiles, factor: float, holds: bool
) -> None:
    start(files, Machine())
    machine = dearer_rounds(factor)
    costs, events = start(files, machine)
    assert events == (["costs_read"] if holds else ["costs_outdated", "costs_measured"])
    assert costs.stored is holds
    again, _ = start(files, dearer_rounds(factor))
    assert again.stored
    assert again.table == costs.table


def test_the_check_is_part_of_the_budget(files: CostFiles) -> None:
    start(files, Machine())
    machine = dearer_rounds(2.0)
    started_ms = machine.now_ms
    _, events = start(files, machine)
    assert "costs_outdated" in events
    assert machine.now_ms - started_ms <= BUDGET_MS


def test_a_table_that_ran_out_of_time_is_measured_again(files: CostFiles) -> None:
    busy, _ = start(files, Machine(slower=20.0))
    quiet, events = start(files, Machine())
    assert events == ["costs_incomplete", "costs_measured"]
    assert len(quiet.table) > len(busy.table)
    assert start(files, Machine())[1] == ["costs_read"]


def test_a_fresh_measurement_replaces_what_is_stored(files: CostFiles) -> None:
    start(files, Machine())
    fresh, events = start(files, Machine(slower=0.5), fresh=True)
    assert events == ["costs_measured"]
    assert start(files, Machine(slower=0.5))[0].table == fresh.table


def test_another_key_is_measured_beside_the_first(files: CostFiles) -> None:
    first, _ = start(files, Machine())
    other = dataclasses.replace(KEY, blas_threads=1)
    assert start(files, Machine(slower=0.5), key=other)[1] == ["costs_measured"]
    assert start(files, Machine())[0].table == first.table


def test_a_damaged_file_is_ignored_with_a_warning_and_rewritten(files: CostFiles) -> None:
    start(files, Machine())
    files.path(KEY).write_text("{}")
    assert start(files, Machine())[1] == ["costs_file_ignored", "costs_measured"]
    assert start(files, Machine())[1] == ["costs_read"]


def test_a_cache_folder_that_cannot_be_used_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "costs").write_text("")
    costs, events = start(CostFiles(tmp_path / "costs"), Machine())
    assert events == ["costs_file_ignored", "costs_measured", "costs_not_stored"]
    assert Cell(1, 1, 64) in {Cell(cell.width, cell.draft_width, cell.depth_tokens) for cell in costs.table}


def test_a_table_without_a_drafter_is_measured_and_not_stored() -> None:
    machine = Machine()
    costs = measure_costs(make_plan(1, 8, 2048, fillable=True), machine.run, machine.clock)
    assert [(cell.draft_width, cell.draft_ms) for cell in costs.table] == [(1, 0.0)]
    assert not costs.stored

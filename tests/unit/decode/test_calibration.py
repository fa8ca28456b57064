"""Cells of the real pair: what a run takes is measured, and the caches are what they claim to be."""

import mlx.core as mx
import pytest
from tests.unit.decode.conftest import Pair, clock_ms

from burstgate_decode.models.calibration import CalibrationBench
from burstgate_decode.models.calibration_plan import BudgetedRuns, Cell, make_plan
from burstgate_decode.models.target import cache_arrays, cache_length


@pytest.fixture
def bench(pair: Pair) -> CalibrationBench:
    return CalibrationBench(pair.target, pair.drafter, clock_ms)


@pytest.mark.parametrize("cell", [Cell(1, 1, 64), Cell(1, 8, 64), Cell(2, 3, 64), Cell(1, 4, 512)])
def test_a_run_takes_time_and_leaves_the_cache_at_its_depth(bench: CalibrationBench, cell: Cell) -> None:
    for _ in range(2):
        timing = bench.run(cell)
        assert timing.verify_ms > 0.0
        assert (timing.draft_ms > 0.0) is (cell.width == 1 and cell.draft_width > 1)
        assert cache_length(bench._cache(cell.width, cell.depth_tokens)) == cell.depth_tokens


def test_a_filled_cache_has_the_arrays_of_a_prefilled_one(bench: CalibrationBench, pair: Pair) -> None:
    prefilled = pair.target.make_cache()
    pair.target.advance(bench._tokens(2, 64), prefilled)
    mx.eval(cache_arrays(prefilled))
    filled = cache_arrays(bench._cache(2, 64))
    assert bench.fillable
    assert [(part.shape, part.dtype) for part in filled] == [
        (part.shape, part.dtype) for part in cache_arrays(prefilled)
    ]


def test_without_a_drafter_nothing_is_drafted(pair: Pair) -> None:
    assert CalibrationBench(pair.target, None, clock_ms).run(Cell(1, 8, 64)).draft_ms == 0.0


def test_a_measurement_of_the_real_pair_is_a_usable_table(bench: CalibrationBench, pair: Pair) -> None:
    plan = make_plan(8, 4, pair.target.context_length, fillable=bench.fillable)
    runs = BudgetedRuns(bench.run, clock_ms)
    runs.complete(plan)
    table = runs.table()
    assert {(1, 1), (1, 8)} <= {(cell.width, cell.draft_width) for cell in table}
    for cell in table:
        assert cell.verify_ms > 0.0
        assert (cell.draft_ms > 0.0) is (cell.draft_width > 1)

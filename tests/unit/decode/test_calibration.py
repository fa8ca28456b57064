"""Cells of the real pair: what a run takes is measured, and the rows are what they claim to be."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import mamba
from tests.unit.decode.conftest import Pair, clock_ms

from burstgate_decode.models.calibration import CalibrationBench, _Rows
from burstgate_decode.models.calibration_plan import BudgetedRuns, Cell, make_plan
from burstgate_decode.models.target import Target


@pytest.fixture
def bench(pair: Pair) -> CalibrationBench:
    return CalibrationBench(pair.target, pair.drafter, clock_ms)


@pytest.fixture
def recurrent_target() -> Target:
    """A few random layers that keep a state, of which nothing can be dropped."""
    args = mamba.ModelArgs(
        model_type="mamba",
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        state_size=4,
        num_hidden_layers=2,
        conv_kernel=4,
        use_bias=False,
        use_conv_bias=True,
        time_step_rank=4,
    )
    model = mamba.Model(args)
    mx.eval(model.parameters())
    return Target(
        model, None, "tiny", Path(), "", "mamba", "float32", 100, 2048, frozenset(), False, None, shares_forwards=False
    )


@pytest.mark.parametrize("cell", [Cell(1, 1, 64), Cell(1, 8, 64), Cell(3, 4, 64), Cell(1, 4, 512)])
def test_a_run_takes_time_and_leaves_every_row_at_its_depth(bench: CalibrationBench, cell: Cell) -> None:
    for _ in range(2):
        timing = bench.run(cell)
        assert timing.verify_ms > 0.0
        assert (timing.draft_ms > 0.0) is (cell.draft_width > 1)
        rows = bench._rows[cell.width, cell.depth_tokens]
        assert list(rows._cache.lengths) == [cell.depth_tokens] * cell.width


def test_filled_rows_hold_what_prefilled_ones_hold(pair: Pair) -> None:
    filled = _Rows(pair.target, None, 2, 64)._cache
    prefilled = pair.target.make_batch_cache()
    for _ in range(2):
        prefilled.open()
    prefilled.run(pair.target.advance, mx.zeros((2, 64), mx.int32), 0)
    assert list(filled.lengths) == list(prefilled.lengths)
    assert [(one.shape, one.dtype) for one in filled.arrays()] == [(one.shape, one.dtype) for one in prefilled.arrays()]
    # An entry nobody wrote would be zero, and cheaper to multiply on some hardware.
    assert all(bool(mx.all(mx.any(one[:2, :, :64] != 0, axis=-1)).item()) for one in filled.arrays())


def test_rows_that_share_no_forward_are_filled_and_run_one_by_one(pair: Pair) -> None:
    alone = CalibrationBench(replace(pair.target, shares_forwards=False), pair.drafter, clock_ms)
    assert alone.run(Cell(2, 3, 64)).draft_ms > 0.0
    assert list(alone._rows[2, 64]._cache.lengths) == [64, 64]


def test_without_a_drafter_nothing_is_drafted(pair: Pair) -> None:
    assert CalibrationBench(pair.target, None, clock_ms).run(Cell(1, 8, 64)).draft_ms == 0.0


def test_a_recurrent_target_is_prefilled_and_taken_back_to_its_depth(recurrent_target: Target) -> None:
    bench = CalibrationBench(recurrent_target, None, clock_ms)
    assert not bench.fillable
    runs = BudgetedRuns(bench.run, clock_ms)
    runs.complete(make_plan(4, 8, 2048, fillable=bench.fillable))
    assert {(cell.width, cell.draft_width) for cell in runs.table()} >= {(1, 1), (1, 4)}
    assert list(bench._rows[1, 64]._cache.lengths) == [64]


def test_a_round_over_caches_that_cannot_drop_entries_is_measured_with_what_it_runs_again(
    recurrent_target: Target, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance, again = Target.advance, list[int]()

    def counted(target: Target, tokens: mx.array, cache: Any) -> mx.array | None:
        again.append(tokens.shape[1])
        return advance(target, tokens, cache)

    for target, expected in [(recurrent_target, [3]), (replace(pair.target, shares_forwards=False), [])]:
        bench = CalibrationBench(target, None, clock_ms)
        bench.run(Cell(1, 1, 64))
        with monkeypatch.context() as patched:
            patched.setattr(Target, "advance", counted)
            bench.run(Cell(1, 1, 64))
            assert again == []
            bench.run(Cell(1, 4, 64))
        assert again == expected
        again.clear()


def test_a_measurement_of_the_real_pair_is_a_usable_table(bench: CalibrationBench, pair: Pair) -> None:
    runs = BudgetedRuns(bench.run, clock_ms)
    runs.complete(make_plan(8, 4, pair.target.context_length, fillable=bench.fillable))
    table = runs.table()
    assert {(1, 1), (1, 8)} <= {(cell.width, cell.draft_width) for cell in table}
    for cell in table:
        assert cell.verify_ms > 0.0
        assert (cell.draft_ms > 0.0) is (cell.draft_width > 1)

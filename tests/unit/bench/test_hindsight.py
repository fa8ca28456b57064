"""What the hindsight benchmark makes of its samples."""

import pytest

from burstgate_bench.hindsight_plan import HindsightOptions
from burstgate_bench.hindsight_run import Cell, HindsightResult


@pytest.fixture
def result() -> HindsightResult:
    cell = Cell(
        {"classic": (10.0, 12.0), "K=4": (20.0, 24.0), "AUTO": (21.0, 22.0)},
        {"SPECULATIVE GATE": 9},
        {"classic": 25.0, "K=4": 20.0, "AUTO": 24.0},
    )
    result = HindsightResult(HindsightOptions(("prose",), 200, (1,), (4,), 1))
    result.cells[1] = {"prose": cell}
    return result


def test_auto_is_compared_with_the_best_mode_and_with_plain_by_medians(result: HindsightResult) -> None:
    assert result.line == {
        "auto_vs_best": {"1": {"prose": round(21.5 / 22.0, 3)}},
        "auto_vs_plain": {"1": {"prose": round(21.5 / 11.0, 3)}},
        "best": {"1": {"prose": "K=4"}},
        "quiet": {
            "auto_vs_best": {"1": {"prose": 0.96}},
            "auto_vs_plain": {"1": {"prose": 0.96}},
            "best": {"1": {"prose": "classic"}},
        },
        "differing_answers": 0,
    }


def test_the_spread_is_that_of_the_worst_mode_and_auto_is_never_its_own_best(result: HindsightResult) -> None:
    cell = result.cells[1]["prose"]
    assert cell.spread == pytest.approx(0.2)
    assert Cell({"classic": (1.0,), "AUTO": (2.0,)}, {}, {}).best == "classic"

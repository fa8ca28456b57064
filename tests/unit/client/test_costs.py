"""What the command says of a cost table: rounds in plain steps, the K that pays, tables and plots that fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from burstgate.cli._cost_plots import PictureError, check_picture, save_picture, terminal_plot
from burstgate.cli._cost_tables import costs_screen
from burstgate.cli._costs import Best, expected_tokens, places
from burstgate.serving import CostCell

DRAFT_WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8)
# Verifies that cost little more than a step, and ones that cost a step for each row.
FLAT = [CostCell(1, k, 64, 50.0 + 2.0 * (k - 1), 3.0 * (k - 1)) for k in DRAFT_WIDTHS]
STEEP = [CostCell(8, k, 64, 80.0 * k, 24.0 * (k - 1)) for k in DRAFT_WIDTHS]
DEEP = [CostCell(1, k, 512, 60.0 + 9.0 * (k - 1), 3.0 * (k - 1)) for k in (1, 4, 8)]


def screen(cells: list[CostCell]) -> str:
    console = Console(width=80, force_terminal=False)
    with console.capture() as captured:
        console.print(costs_screen(places(cells)))
    return captured.get()


def test_places_are_ordered_by_width_and_depth_and_hold_whole_rounds() -> None:
    found = places([*STEEP, *DEEP, *FLAT])
    assert [(place.width, place.depth_tokens) for place in found] == [(1, 64), (1, 512), (8, 64)]
    assert list(found[0].round_ms) == list(DRAFT_WIDTHS)
    assert found[0].round_ms[8] == 50 + 14 + 21


@pytest.mark.parametrize(
    ("acceptance", "draft_width", "tokens"),
    [(0.6, 1, 1.0), (0.6, 2, 1.6), (0.6, 4, 2.176), (0.8, 8, 4.16114), (1.0, 5, 5.0), (0.0, 7, 1.0)],
)
def test_a_round_yields_a_geometric_sum(acceptance: float, draft_width: int, tokens: float) -> None:
    assert expected_tokens(acceptance, draft_width) == pytest.approx(tokens, rel=1e-5)


def test_the_best_k_grows_with_acceptance_and_is_plain_where_rounds_cost_a_step_a_row() -> None:
    flat, steep = places([*FLAT, *STEEP])
    low, high = flat.best(0.6), flat.best(0.8)
    assert low is not None
    assert high is not None
    assert 1 < low.draft_width < high.draft_width
    assert high.speedup == pytest.approx(expected_tokens(0.8, 7) * 50 / 80)
    assert steep.best(0.8) == Best(1, 1.0)


def test_a_place_without_a_plain_step_compares_nothing() -> None:
    (place,) = places(FLAT[1:])
    assert place.plain_steps(2) is None
    assert place.best(0.8) is None
    assert "-" in screen(FLAT[1:])


def test_the_tables_fit_eighty_columns_and_leave_gaps_where_nothing_was_measured() -> None:
    text = screen([*FLAT, *STEEP, *DEEP])
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    milliseconds, to_pay, best = text.split("\n\n")
    deep = milliseconds.splitlines()[4].split()
    assert deep == ["1", "512", "60", "-", "-", "96", "-", "-", "-", "144"]
    assert to_pay.splitlines()[2].split() == ["1", "64", "1.00", "1.10", "1.20", "1.30", "1.40", "1.50", "1.60", "1.70"]
    assert "plain" in best.splitlines()[-1]
    assert "K=7  2.47x" in best


@pytest.mark.parametrize("cells", [FLAT, [*FLAT, *STEEP], FLAT[:2], FLAT[:1]], ids=len)
def test_the_terminal_plot_marks_every_cell_of_its_batch(cells: list[CostCell]) -> None:
    drawing = terminal_plot(places(cells))
    assert max(map(len, drawing.splitlines())) <= 80
    plotted, legend = drawing.split("Legend")
    for width in {cell.width for cell in cells}:
        assert f"batch {width}" in legend
        count = sum(line.partition("|")[2].count(str(width)) for line in plotted.splitlines()[:-2])
        assert count >= len(cells) // len({cell.width for cell in cells}) - 1  # two may share a character


def test_the_terminal_plot_has_colours_only_for_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" not in terminal_plot(places(FLAT))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in terminal_plot(places(FLAT))


def test_a_batch_of_two_digits_is_marked_with_a_letter() -> None:
    wide = [CostCell(16, cell.draft_width, 64, cell.verify_ms, 0.0) for cell in STEEP]
    assert "batch 16" in terminal_plot(places([*FLAT, *wide]))


@pytest.mark.parametrize(
    ("name", "magic"), [("costs.png", b"\x89PNG"), ("costs.svg", b"<?xml"), ("costs.pdf", b"%PDF")]
)
def test_a_picture_is_written_in_the_format_of_its_name(tmp_path: Path, name: str, magic: bytes) -> None:
    path = tmp_path / name
    check_picture(path)
    save_picture(places([*FLAT, *STEEP, *DEEP]), "a pairing", path)
    assert path.read_bytes().startswith(magic)
    check_picture(path)


def test_a_picture_that_cannot_be_written_after_all_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match=r"costs\.png cannot be written: No such file"):
        save_picture(places(FLAT), "a pairing", tmp_path / "gone" / "costs.png")

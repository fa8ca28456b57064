"""What `burstgate models` prints of a cost table.

Eighty columns must be enough for a table of K up to 8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from burstgate.cli._costs import Best, PlaceCosts

ACCEPTANCES = (0.6, 0.8)
"""A drafter on ordinary prose, and on text that repeats itself."""


def costs_screen(places: Sequence[PlaceCosts]) -> RenderableType:
    """Milliseconds of a round, what it must yield, and which K would pay best."""
    return Group(
        _title("milliseconds of a round"),
        round_table(places),
        _title("tokens a round must yield for each sequence to pay"),
        _by_draft_width(places, _plain_steps),
        _title("best K, and its speed over plain decoding"),
        _best_table(places),
    )


def round_table(places: Sequence[PlaceCosts]) -> Table:
    """Milliseconds of a round, drafting included, by K across and batch width and depth down."""
    return _by_draft_width(places, _round_ms)


def _by_draft_width(places: Sequence[PlaceCosts], text: Callable[[PlaceCosts, int], str]) -> Table:
    draft_widths = sorted({draft_width for place in places for draft_width in place.round_ms})
    table = _table(*(f"K={draft_width}" for draft_width in draft_widths))
    for place in places:
        _add(table, place, *(text(place, draft_width) for draft_width in draft_widths))
    return table


def _best_table(places: Sequence[PlaceCosts]) -> Table:
    table = _table(*(f"at {acceptance:.0%} acceptance" for acceptance in ACCEPTANCES))
    for place in places:
        _add(table, place, *(_best(place.best(acceptance)) for acceptance in ACCEPTANCES))
    return table


def _table(*columns: str) -> Table:
    table = Table(header_style="bold", box=None, pad_edge=False)
    for column in ("batch", "depth", *columns):
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _add(table: Table, place: PlaceCosts, *values: str) -> None:
    table.add_row(str(place.width), str(place.depth_tokens), *values)


def _round_ms(place: PlaceCosts, draft_width: int) -> str:
    value = place.round_ms.get(draft_width)
    return "-" if value is None else f"{value:.0f}" if value >= 10 else f"{value:.2f}"


def _plain_steps(place: PlaceCosts, draft_width: int) -> str:
    value = place.plain_steps(draft_width)
    return "-" if value is None else f"{value:.2f}"


def _best(best: Best | None) -> str:
    if best is None:
        return "-"
    return "plain" if best.draft_width == 1 else f"K={best.draft_width}  {best.speedup:.2f}x"


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold")

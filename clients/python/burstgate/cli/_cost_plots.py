"""Draws a cost table: in the terminal with plotille, and as a picture with matplotlib.

matplotlib is only needed for a picture, so it is imported there.
"""

from __future__ import annotations

import itertools
import math
import os
import string
from collections.abc import Sequence
from pathlib import Path

import plotille

from burstgate.cli._cost_tables import ACCEPTANCES
from burstgate.cli._costs import PlaceCosts, expected_tokens

# plotille marks every tenth column and every line.
_TICK_COLUMNS = 10
_MOST_TICKS = 6
_MOST_LINES = 14
_COLOURS = ("cyan", "yellow", "green", "red", "magenta", "blue", "white")


class PictureError(Exception):
    """A picture cannot be written; the message says why."""


def terminal_plot(places: Sequence[PlaceCosts]) -> str:
    """Milliseconds of a round over K at the least depth, a line for each batch width.

    plotille itself leaves colours out where standard output is no terminal.
    """
    figure = plotille.Figure()
    figure.color_mode = "names"
    figure.x_label, figure.y_label = "K", "ms"
    shown = _shallow(places)
    draft_width_step, ticks = _axis(max(k for place in shown for k in place.round_ms), _MOST_TICKS)
    ms_step, lines = _axis(max(ms for place in shown for ms in place.round_ms.values()), _MOST_LINES)
    # Half a tick and a line of room, so that the outermost markers are inside.
    figure.width, figure.height = _TICK_COLUMNS * ticks + _TICK_COLUMNS // 2, lines + 1
    figure.set_x_limits(0, draft_width_step * (ticks + 0.5))
    figure.set_y_limits(0, ms_step * (lines + 1))
    figure.register_label_formatter(float, _tick)
    for place, colour, letter in zip(shown, itertools.cycle(_COLOURS), itertools.cycle(string.ascii_lowercase)):
        marker = str(place.width) if place.width < 10 else letter
        label = f"batch {place.width}"
        figure.plot(list(place.round_ms), list(place.round_ms.values()), lc=colour, marker=marker, label=label)
    return str(figure.show(legend=True))


def check_picture(path: Path) -> None:
    """Refuses a path that a picture cannot be written to, before anything is measured. Raises `PictureError`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PictureError("a picture needs the plot extra: pip install 'burstgate[plot]'") from None
    formats = sorted(Figure().canvas.get_supported_filetypes())
    if path.suffix.lower().lstrip(".") not in formats:
        raise PictureError(f"{path} must end in one of {', '.join(formats)}")
    if path.is_dir() or not path.parent.is_dir():
        raise PictureError(f"{path} is a folder" if path.is_dir() else f"the folder {path.parent} does not exist")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PictureError(f"{path} cannot be written")


def save_picture(places: Sequence[PlaceCosts], title: str, path: Path) -> None:
    """Writes both plots beside each other, in the format that the name ends in. Raises `PictureError`.

    On the left milliseconds of a round over K; on the right the tokens it must yield, with what it yields at
    some rates of acceptance: where a line lies below one of those, speculation pays.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    figure.suptitle(title, fontsize=10)
    costs, pays = figure.subplots(1, 2)
    for place in places:
        steps = {k: value for k in place.round_ms if (value := place.plain_steps(k)) is not None}
        style = {"linestyle": "-" if place in _shallow(places) else "--", "marker": "o", "markersize": 4}
        label = f"batch {place.width}, depth {place.depth_tokens}"
        costs.plot(list(place.round_ms), list(place.round_ms.values()), label=label, **style)
        pays.plot(list(steps), list(steps.values()), label=label, **style)
    every_width = sorted({draft_width for place in places for draft_width in place.round_ms})
    for acceptance in ACCEPTANCES:
        yields = [expected_tokens(acceptance, draft_width) for draft_width in every_width]
        pays.plot(every_width, yields, color="black", linewidth=1, linestyle=":")
        pays.annotate(f"yield at {acceptance:.0%}", (every_width[-1], yields[-1]), ha="right", va="bottom", fontsize=8)
    costs.set(xlabel="K, rows of the verify", ylabel="ms of a round", title="What a round costs")
    pays.set(xlabel="K, rows of the verify", ylabel="tokens a sequence", title="What it must yield to pay")
    for axes in (costs, pays):
        axes.set_ylim(bottom=0)
        axes.set_xticks(every_width)
        axes.grid(alpha=0.3)
    costs.legend(fontsize=8)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise PictureError(f"{path} cannot be written: {error.strerror or error}") from error


def _shallow(places: Sequence[PlaceCosts]) -> list[PlaceCosts]:
    least = min(place.depth_tokens for place in places)
    return [place for place in places if place.depth_tokens == least]


def _axis(highest: float, most: int) -> tuple[float, int]:
    """A round step, and how many of them reach `highest`; at most so many."""
    power = 10.0 ** math.floor(math.log10(highest / most))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit * most >= highest)
    return step, math.ceil(highest / step)


def _tick(value: float, chars: int, delta: float, left: bool = False) -> str:
    """A label of an axis; `delta`, the axis's length, changes nothing, since every label is a multiple of its step."""
    text = f"{value:g}"
    return text.ljust(chars) if left else text.rjust(chars)

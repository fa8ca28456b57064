"""`burstgate models calibrate`: what rounds of a pairing cost on this machine, as a table and a plot.

Loads the pairing in this process and needs the decode extra, which is imported late.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from burstgate.cli import models
from burstgate.cli._cost_tables import ACCEPTANCES, costs_screen
from burstgate.cli._costs import PlaceCosts, places
from burstgate.cli._terminal import EXIT_INTERRUPTED, EXIT_USAGE, AsJson, errors, fail
from burstgate.serving import CostCell

if TYPE_CHECKING:
    from burstgate_decode.calibrate import Calibration

_DEFAULT_TARGET = "default"


def calibrate(
    target: Annotated[
        str, typer.Option(envvar="BURSTGATE_TARGET", help="Folder or hub repository of the target.")
    ] = _DEFAULT_TARGET,
    drafter: Annotated[
        str | None,
        typer.Option(
            envvar="BURSTGATE_DRAFTER", help="Folder or hub repository of the drafter; the default target has its own."
        ),
    ] = None,
    draft_width: Annotated[
        int | None, typer.Option(envvar="BURSTGATE_DRAFT_WIDTH", help="Widest verify, in rows.")
    ] = None,
    max_active_rows: Annotated[
        int | None, typer.Option(envvar="BURSTGATE_MAX_ACTIVE_ROWS", help="Widest batch, in answers.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure whatever is stored.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw a picture, such as costs.png or costs.svg.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what rounds of a pairing cost here, or read what a server stored of it.

    A server started with the same settings on this machine uses the same table. Nothing else should use the
    machine meanwhile.
    """
    if any(importlib.util.find_spec(name) is None for name in ("mlx", "structlog", "plotille")):
        fail(models.NEEDS_DECODE)
    from burstgate.cli import _cost_plots

    try:
        if plot is not None:
            _cost_plots.check_picture(plot)
        found = _obtain(target, drafter, draft_width, max_active_rows, fresh=fresh)
        costs = places(CostCell(**dataclasses.asdict(cell)) for cell in found.table)
        if plot is not None:
            _cost_plots.save_picture(costs, found.key.display, plot)
    except _cost_plots.PictureError as error:
        fail(f"--plot: {error}", EXIT_USAGE)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        typer.echo(json.dumps(_document(found, costs)))
        return
    console = Console(highlight=False)
    console.print(Text(found.key.display, style="bold"))
    console.print(f"{_origin(found)}, {_when(found.measured_at)}", style="dim")
    console.print(costs_screen(costs))
    console.print(Text("\nmilliseconds of a round over K", style="bold"))
    typer.echo(_cost_plots.terminal_plot(costs))


def _obtain(
    target: str, drafter: str | None, draft_width: int | None, max_active_rows: int | None, *, fresh: bool
) -> Calibration:
    from burstgate_decode.calibrate import SettingsError, calibrate, read_settings
    from burstgate_decode.models.errors import ModelError

    try:
        settings = read_settings(
            target=target, drafter=drafter, draft_width=draft_width, max_active_rows=max_active_rows
        )
        if target == _DEFAULT_TARGET:
            models.prepare_default_pair(settings.cache_dir)
        what = "Loading the models, then measuring for up to 5 s"
        with errors.status(what) if errors.is_terminal else nullcontext():
            return calibrate(settings, fresh=fresh)
    except SettingsError as error:
        fail(str(error), EXIT_USAGE)
    except ModelError as error:
        fail(f"{error} ({error.reason})")


def _document(found: Calibration, costs: list[PlaceCosts]) -> dict[str, object]:
    return {
        "key": {**dataclasses.asdict(found.key), "hash": found.key.hash},
        "stored": found.stored,
        "measured_at": datetime.fromtimestamp(found.measured_at, UTC).isoformat(timespec="seconds"),
        "cells": [dataclasses.asdict(cell) for cell in found.table],
        "places": [_place(place) for place in costs],
    }


def _place(place: PlaceCosts) -> dict[str, object]:
    best = {f"{acceptance:.1f}": place.best(acceptance) for acceptance in ACCEPTANCES}
    return {
        "width": place.width,
        "depth_tokens": place.depth_tokens,
        "round_ms": place.round_ms,
        "tokens_to_pay": {draft_width: place.plain_steps(draft_width) for draft_width in place.round_ms},
        "best_at_acceptance": {rate: dataclasses.asdict(one) for rate, one in best.items() if one is not None},
    }


def _origin(found: Calibration) -> str:
    return "stored, and two cells of it checked just now" if found.stored else "measured just now"


def _when(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M}"

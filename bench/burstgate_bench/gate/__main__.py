"""Scores the gate on simulated workloads: `python -m burstgate_bench.gate`.

The last line of the output is one JSON object. Exit code 2 says that an option was wrong.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from burstgate_bench.gate.arms import ARMS
from burstgate_bench.gate.families import FAMILIES
from burstgate_bench.gate.report import show
from burstgate_bench.gate.summary import line_of
from burstgate_bench.gate.tournament import Options, tournament

# Of a table that goes to a file: nothing is cut off.
_WIDTH = 140


def main(
    workloads: Annotated[int, typer.Option(min=1, help="Random workloads of each family.")] = 200,
    families: Annotated[str, typer.Option(help="Families to play, separated by commas; all if empty.")] = "",
    arms: Annotated[str, typer.Option(help="Policies to play, separated by commas; all if empty.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Of all chance; the same seed gives the same numbers.")] = 1,
    steps: Annotated[int, typer.Option(min=128, help="Steps that the best fixed mode needs at least.")] = 4064,
    out: Annotated[Path | None, typer.Option(help="Also write the record and the plot to this folder.")] = None,
    processes: Annotated[int, typer.Option(min=1, help="Worlds played at the same time.")] = os.cpu_count() or 1,
) -> None:
    """Plays the default policy, the plain gate, simple rules and every fixed mode on simulated workloads."""
    options = Options(
        workloads, _chosen("families", families, FAMILIES), _chosen("arms", arms, ARMS), seed, steps, processes
    )
    console = Console(width=_WIDTH) if not sys.stdout.isatty() else Console()
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("workloads", total=workloads * len(options.families))
        matches = tournament(options, lambda _match: progress.advance(task))
    show(console, matches)
    print(json.dumps(line_of(matches)), flush=True)


def _chosen(option: str, text: str, known: Mapping[str, object]) -> tuple[str, ...]:
    names = tuple(name for name in (part.strip() for part in text.split(",")) if name) or tuple(known)
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint=f"--{option}")
    return names


if __name__ == "__main__":
    typer.run(main)

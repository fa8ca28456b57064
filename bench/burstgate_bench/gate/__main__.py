"""Scores the gate on simulated workloads: `python -m burstgate_bench.gate`.

The last line of the output is one JSON object. Exit code 2 says that an option or a trace was wrong.
"""

import json
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from burstgate_bench.gate.arms import ARMS
from burstgate_bench.gate.families import FAMILIES
from burstgate_bench.gate.record import record_of, text_of
from burstgate_bench.gate.report import show
from burstgate_bench.gate.summary import line_of
from burstgate_bench.gate.tournament import Options, tournament
from burstgate_bench.gate.traces import TraceError, read_trace
from burstgate_bench.noise import usable_cores

# Of a table that goes to a file: nothing is cut off.
_WIDTH = 160


def main(
    workloads: Annotated[int, typer.Option(min=1, help="Random workloads of each family.")] = 200,
    families: Annotated[str, typer.Option(help="Families to play, separated by commas; 'none' for none.")] = "all",
    arms: Annotated[str, typer.Option(help="Policies to play, separated by commas.")] = "all",
    seed: Annotated[int, typer.Option(min=0, help="Of all chance; the same seed gives the same numbers.")] = 1,
    steps: Annotated[int, typer.Option(min=128, help="Steps that the best fixed mode needs at least.")] = 4064,
    trace: Annotated[list[Path] | None, typer.Option(help="Also play this recorded run; may be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the record and the plot to this folder.")] = None,
    processes: Annotated[int, typer.Option(min=1, help="Worlds played at the same time.")] = usable_cores(),
) -> None:
    """Plays the default policy, the plain gate, simple rules and every fixed mode on simulated workloads."""
    traces = _readable(trace or ())
    chosen = () if families == "none" and traces else _chosen("families", families, FAMILIES)
    options = Options(workloads, chosen, _chosen("arms", arms, ARMS), seed, steps, processes, traces)
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    start = time.monotonic()
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("workloads", total=workloads * (len(options.families) + len(traces)))
        matches = tournament(options, lambda _match: progress.advance(task))
    show(console, matches)
    if out is not None:
        # Only here: it takes longer to import than a small run to play, and so would every process.
        from burstgate_bench.gate.plot import save_plot

        now = datetime.now(UTC)
        record, plot = out / f"gate-{now:%Y-%m-%d}.json", out / f"gate-{now:%Y-%m-%d}.svg"
        out.mkdir(parents=True, exist_ok=True)
        record.write_text(text_of(record_of(matches, options, now, time.monotonic() - start)), encoding="utf-8")
        save_plot(matches, plot)
        console.print(f"The record is in {record}, the plot in {plot}.", markup=False, soft_wrap=True)
    print(json.dumps(line_of(matches)), flush=True)


def _chosen(option: str, text: str, known: Mapping[str, object]) -> tuple[str, ...]:
    if text == "all":
        return tuple(known)
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint=f"--{option}")
    return names


def _readable(traces: list[Path] | tuple[Path, ...]) -> tuple[Path, ...]:
    """The traces, each read once before anything is played."""
    try:
        for file in traces:
            read_trace(file)
    except TraceError as error:
        raise typer.BadParameter(str(error), param_hint="--trace") from error
    return tuple(traces)


if __name__ == "__main__":
    typer.run(main)

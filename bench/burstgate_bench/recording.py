"""Records a real run as a trace for the simulator: `python -m burstgate_bench.recording --out FILE`.

Each prompt is answered with rounds of the widest verify, which tells what its drafts are worth, and once more with
every width in turn, which tells what those cost. Exit code 2 says that nothing could be recorded. The BLAS is put
in place before anything imports mlx, so the work is imported late.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from burstgate_bench.command import prepared


def main(
    out: Annotated[Path, typer.Option(help="The trace, as JSON lines.")],
    tokens: Annotated[int, typer.Option(min=24, max=2000, help="Tokens of every answer that is recorded.")] = 160,
) -> None:
    """Records the standard prompts. `python -m burstgate_bench.gate --trace FILE` plays what was recorded.

    BURSTGATE_ variables choose the pairing, the BLAS and the exactness, as for the decode service.
    """
    console = Console()
    with prepared("recording") as blas:
        from burstgate_bench.gate.traces import trace_lines
        from burstgate_bench.noise import load_average, noise_warnings, usable_cores
        from burstgate_bench.recording_run import record

        load_before = load_average()
        recording = record(blas, tokens, lambda line: console.print(line, markup=False, soft_wrap=True))
        for warning in noise_warnings(load_before, load_average(), usable_cores(), {}):
            console.print(f"[yellow]warning:[/] {warning}", soft_wrap=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("\n".join(trace_lines(recording.lane, recording.steps)) + "\n", encoding="utf-8")
    console.print(f"{len(recording.steps)} steps are in {out}.", markup=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)

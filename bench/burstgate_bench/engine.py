"""Measures the engine against mlx-lm and against itself in a few minutes: `python -m burstgate_bench.engine`.

The last line of the output is one JSON object. Exit codes: 0, 1 if an answer's tokens depended on what ran beside
it or on speculation, 2 if nothing could be measured. The BLAS is put in place before anything imports mlx, so the
work is imported late.
"""

import json
from typing import Annotated

import typer
from rich.console import Console

from burstgate_bench.command import prepared
from burstgate_bench.engine_parts import Part


def main(
    tokens: Annotated[
        int, typer.Option(min=16, max=2000, help="Tokens of every answer; through gRPC half as many.")
    ] = 80,
    blocks: Annotated[
        int, typer.Option(min=1, max=50, help="ABBA blocks; each gives two samples a side, or more.")
    ] = 1,
    openblas: Annotated[
        bool, typer.Option("--openblas", help="Let mlx-lm run on OpenBLAS's products instead of the shim's.")
    ] = False,
    part: Annotated[
        list[Part] | None, typer.Option(help="Measure this part alone; may be given several times.")
    ] = None,
) -> None:
    """Compares single streams, batches, speculation in batches and gRPC, each with what it must not be slower than.

    BURSTGATE_ variables choose the pairing, the BLAS and the exactness, as for the decode service.
    """
    console = Console()
    with prepared("engine") as blas:
        from burstgate_bench.engine_run import EngineOptions, run_engine
        from burstgate_bench.lab import open_lab
        from burstgate_bench.machine import describe
        from burstgate_bench.noise import load_average
        from burstgate_bench.quick_report import show_machine

        load_before = load_average()
        with open_lab(blas) as lab:
            show_machine(console, describe(lab.serving), load_before)
            options = EngineOptions(tokens, blocks, openblas, part or tuple(Part))
            result = run_engine(lab, options, lambda line: console.print(line, markup=False, soft_wrap=True))
    print(json.dumps(result.line), flush=True)
    raise typer.Exit(1 if result.differing else 0)


if __name__ == "__main__":
    typer.run(main)

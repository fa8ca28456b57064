"""Measures what speculation is worth on this machine in a few minutes: `python -m burstgate_bench.quick`.

The last line of the output is one JSON object. Exit codes: 0, 1 if two arms gave different tokens, 2 if
nothing could be measured. The BLAS is put in place before anything imports mlx, so the work is imported late.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from burstgate_bench.command import prepared


def main(
    tokens: Annotated[int, typer.Option(min=24, max=2000, help="Tokens of every answer.")] = 36,
    blocks: Annotated[int, typer.Option(min=1, max=50, help="ABBA blocks; each gives two samples a cell.")] = 2,
    openblas: Annotated[
        bool, typer.Option("--openblas", help="Also measure mlx_lm on OpenBLAS's products instead of the shim's.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the full record to this JSON file.")] = None,
) -> None:
    """Compares mlx_lm, plain decoding, fixed draft widths and AUTO on three kinds of text.

    BURSTGATE_ variables choose the pairing, the BLAS and the exactness, as for the decode service.
    """
    console = Console()
    with prepared("quick") as blas:
        from burstgate_bench.lab import open_lab
        from burstgate_bench.machine import describe
        from burstgate_bench.noise import load_average
        from burstgate_bench.quick_report import record_of, show_machine, show_result
        from burstgate_bench.quick_run import QuickOptions, run_quick

        load_before = load_average()
        options = QuickOptions(tokens, blocks, openblas)
        with open_lab(blas) as lab:
            show_machine(console, describe(lab.serving), load_before)
            result = run_quick(
                lab, options, load_before, lambda line: console.print(line, markup=False, soft_wrap=True)
            )
        show_result(console, result)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(record_of(result, datetime.now(UTC)), indent=1) + "\n", encoding="utf-8")
            console.print(f"The full record is in {out}.", markup=False, soft_wrap=True)
    print(json.dumps(result.line), flush=True)
    raise typer.Exit(1 if result.divergences else 0)


if __name__ == "__main__":
    typer.run(main)

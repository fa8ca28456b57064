"""Measures what it is worth to stop drafting early: `python -m burstgate_bench.stopping`.

The last line of the output is one JSON object. Exit codes: 0, 1 if two arms gave different tokens, 2 if nothing could
be measured. The BLAS is put in place before anything imports mlx, so the work is imported late.
"""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from burstgate_bench.command import prepared


def main(
    tokens: Annotated[int, typer.Option(min=24, max=2000, help="Tokens of every answer.")] = 48,
    blocks: Annotated[int, typer.Option(min=1, max=50, help="ABBA blocks; each gives two samples a cell.")] = 1,
) -> None:
    """Compares rounds that stop early with rounds of fixed width, on prompts of eight kinds in turn.

    BURSTGATE_ variables choose the pairing, the BLAS and the exactness, as for the decode service.
    """
    console = Console()
    with prepared("stopping") as blas:
        from burstgate_bench.lab import open_lab
        from burstgate_bench.machine import describe
        from burstgate_bench.noise import load_average, noise_warnings
        from burstgate_bench.stopping_run import MIX, STOPPING, run_stopping

        load_before = load_average()
        with open_lab(blas, draft_stopping=True) as lab:
            cores = describe(lab.serving).cores
            result = run_stopping(lab, tokens, blocks, lambda line: console.print(line, markup=False))
        cells, quiet = result.cells, result.quiet_rates
        table = Table("arm", *cells[STOPPING], title="tok/s (spread); as on a quiet machine", title_justify="left")
        for arm, by_kind in cells.items():
            shown = [
                f"{cell.tokens_per_second:.2f} ({cell.spread:.0%}); {quiet[arm][kind]:.2f}"
                for kind, cell in by_kind.items()
            ]
            table.add_row(arm.label, *shown)
        console.print(table)
        measured = {
            arm: {kind: cell.tokens_per_second for kind, cell in by_kind.items()} for arm, by_kind in cells.items()
        }
        for name, rates in (("measured", measured), ("as on a quiet machine", quiet)):
            for kind, stopping in rates[STOPPING].items():
                fixed = {arm: by_kind[kind] for arm, by_kind in rates.items() if arm != STOPPING}
                best = max(fixed, key=fixed.__getitem__)
                console.print(f"{name}, {kind}: {stopping / fixed[best]:.3f} x the best fixed width, {best.label}")
        spreads = {f"{arm.label} on {MIX}": by_kind[MIX].spread for arm, by_kind in cells.items()}
        for warning in noise_warnings(load_before, load_average(), cores, spreads):
            console.print(f"[yellow]warning:[/] {warning}", soft_wrap=True)
        for arm, place in result.different:
            console.print(f"DIFFERENT: {arm.label} on prompt {place}", style="red", markup=False)
    line = {
        name: {arm.label: {kind: round(rate, 2) for kind, rate in by_kind.items()} for arm, by_kind in rates.items()}
        for name, rates in (("measured", measured), ("quiet", quiet))
    }
    print(json.dumps(line), flush=True)
    raise typer.Exit(1 if result.different else 0)


if __name__ == "__main__":
    typer.run(main)

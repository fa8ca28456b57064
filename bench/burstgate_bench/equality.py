"""Checks on sixty prompts that no token depends on how it was decoded: `python -m burstgate_bench.equality`.

The last line of the output is one JSON object. Exit codes: 0, 1 if any answer differs, 2 if nothing could be
compared. The BLAS is put in place before anything imports mlx, so the work is imported late.
"""

import json
from typing import Annotated

import typer

from burstgate_bench.command import prepared
from burstgate_bench.prompts import EQUALITY, EQUALITY_GROUP, even_sample


def main(
    sample: Annotated[
        int, typer.Option(min=1, max=len(EQUALITY), help="How many of the prompts, spread evenly.")
    ] = len(EQUALITY),
    tokens: Annotated[int, typer.Option(min=1, max=8192, help="Most tokens of every answer.")] = 200,
    alone: Annotated[
        int,
        typer.Option(
            min=0, max=EQUALITY_GROUP, help="Of each eight prompts, those whose plain answer runs alone first."
        ),
    ] = EQUALITY_GROUP,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Let every answer run to its length.")] = False,
    group: Annotated[
        int, typer.Option(min=0, help="Compare only this group of eight of them, from 1; 0 compares all.")
    ] = 0,
) -> None:
    """Compares plain answers, alone and together, with fixed-width and AUTO answers to prompts of mixed kind.

    BURSTGATE_ variables choose the pairing, the BLAS and the exactness, as for the decode service.
    """
    cases = even_sample(EQUALITY, sample)
    if group:
        cases = cases[(group - 1) * EQUALITY_GROUP : group * EQUALITY_GROUP]
        if not cases:
            raise typer.BadParameter(f"{sample} prompts have no group {group}", param_hint="--group")
    with prepared("equality") as blas:
        from burstgate_bench.equality_run import EqualityOptions, run_equality
        from burstgate_bench.lab import open_lab

        with open_lab(blas) as lab:
            print(f"{lab.serving.hardware.label}, {lab.serving.blas.name or lab.serving.hardware.backend};", end=" ")
            print(lab.serving.exactness.explanation, flush=True)
            options = EqualityOptions(tokens, alone, ignore_eos)
            result = run_equality(lab, cases, options, lambda line: print(line, flush=True))
    print(json.dumps(result.line), flush=True)
    raise typer.Exit(1 if result.divergences else 0)


if __name__ == "__main__":
    typer.run(main)

"""Measures AUTO against every mode held to the end, on real text: `python -m burstgate_bench.hindsight`.

The last line of the output is one JSON object. Exit codes: 0, 1 if an answer's tokens depended on how it was
decoded, 2 if nothing could be measured. The BLAS is put in place before anything imports mlx, so the work is
imported late.
"""

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from burstgate_bench.command import prepared
from burstgate_bench.hindsight_plan import TEXTS, HindsightOptions, whole_numbers


def main(
    texts: Annotated[str, typer.Option(help="Kinds of text, separated by commas.")] = ",".join(TEXTS),
    tokens: Annotated[int, typer.Option(min=24, max=2000, help="Tokens of a stretch of one kind.")] = 200,
    streams: Annotated[str, typer.Option(help="Streams at once, separated by commas.")] = "1",
    widths: Annotated[str, typer.Option(help="Draft widths held to the end, separated by commas.")] = "2,3,4,6,8",
    blocks: Annotated[int, typer.Option(min=1, max=50, help="ABBA blocks; each gives two samples a mode.")] = 1,
    damaged: Annotated[bool, typer.Option("--damaged", help="Draft with random weights.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the record to this JSON file.")] = None,
) -> None:
    """Decodes the same texts plainly, at each draft width, and as the policy decides.

    BURSTGATE_ variables choose the pairing, the BLAS and the exactness, as for the decode service.
    """
    console = Console()
    options = HindsightOptions(
        texts=tuple(texts.split(",")),
        tokens=tokens,
        streams=whole_numbers("--streams", streams, least=1),
        widths=whole_numbers("--widths", widths, least=2) if widths else (),
        blocks=blocks,
    )
    unknown = sorted({*options.texts} - {*TEXTS})
    if unknown:
        raise typer.BadParameter(f"--texts: {', '.join(unknown)} is none of {', '.join(TEXTS)}")
    with prepared("hindsight") as blas, tempfile.TemporaryDirectory(prefix="burstgate-hindsight-") as folder:
        from burstgate_bench.damage import damaged_drafter
        from burstgate_bench.hindsight_run import run_hindsight
        from burstgate_bench.lab import open_lab
        from burstgate_bench.machine import describe
        from burstgate_bench.noise import load_average
        from burstgate_bench.quick_report import show_machine

        load_before = load_average()
        chosen: dict[str, Any] = {"drafter": str(damaged_drafter(Path(folder)))} if damaged else {}
        with open_lab(blas, **chosen) as lab:
            machine = describe(lab.serving)
            show_machine(console, machine, load_before)
            result = run_hindsight(lab, options, lambda line: console.print(line, markup=False, soft_wrap=True))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result.record(machine, load_before, damaged=damaged), indent=1) + "\n", "utf-8")
    print(json.dumps(result.line), flush=True)
    raise typer.Exit(1 if result.differing else 0)


if __name__ == "__main__":
    typer.run(main)

"""Shows a quick result to a person, and turns it into a record for a file."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from burstgate_bench.answers import Cell
from burstgate_bench.arms import Arm, ArmKind
from burstgate_bench.machine import Machine
from burstgate_bench.noise import noise_warnings
from burstgate_bench.quick_run import QuickResult

_CLASSIC = Arm(ArmKind.CLASSIC)
_MLX_LM = Arm(ArmKind.MLX_LM)
_AUTO = Arm(ArmKind.AUTO)


def show_machine(console: Console, machine: Machine, load_before: float) -> None:
    """Prints what the measurement runs on."""
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    console.print(f"{machine.hardware}, {machine.cores} cores, load {load_before:.2f} before the start", soft_wrap=True)
    console.print(f"{versions}; float32 products on {machine.blas}", soft_wrap=True)
    console.print(f"{machine.rows}", soft_wrap=True)
    products = "the same products" if machine.exact_rows else "the same BLAS"
    console.print(f"mlx_lm runs in this process, so on {products} as the other arms", soft_wrap=True)


def show_result(console: Console, result: QuickResult) -> None:
    """Prints the tables, the ratios, what differs and what makes the figures doubtful."""
    cells = result.cells
    for kind in cells[_CLASSIC]:
        console.print(_table(kind, {arm: by_kind[kind] for arm, by_kind in cells.items()}))
    for kind in cells[_CLASSIC]:
        console.print(_ratios(kind, {arm: by_kind[kind] for arm, by_kind in cells.items()}), soft_wrap=True)
    console.print(
        f"AUTO's grants: {result.grants.policy} from the policy service, {result.grants.fallback} fallbacks;"
        f" load {result.load_after:.2f} at the end",
        soft_wrap=True,
    )
    for warning in warnings_of(result):
        console.print(f"[yellow]warning:[/] {warning}", soft_wrap=True)
    if not result.divergences:
        console.print("Every arm gave the same tokens.")
    for divergence in result.divergences:
        console.print(f"DIFFERENT: {divergence}", style="red", markup=False, soft_wrap=True)


def warnings_of(result: QuickResult) -> list[str]:
    """Why the figures may be wrong."""
    spreads = {
        f"{arm.label} on {kind}": cell.spread for arm, by_kind in result.cells.items() for kind, cell in by_kind.items()
    }
    warnings = noise_warnings(result.load_before, result.load_after, result.machine.cores, spreads)
    if not result.settled:
        warnings.append("the policy was still profiling when measuring began, so AUTO's figures contain its probes")
    if result.grants.fallback:
        warnings.append(f"{result.grants.fallback} of AUTO's bursts ran without the policy service's grant")
    return warnings


def record_of(result: QuickResult, now: datetime) -> dict[str, Any]:
    """Everything that was measured, for a file."""
    return {
        "date": now.isoformat(timespec="seconds"),
        "options": asdict(result.options),
        "machine": asdict(result.machine),
        "load": {"before": result.load_before, "after": result.load_after},
        "policy": {
            "state": result.verdict.state.value,
            "verdict": result.verdict.verdict.value,
            "speedup": result.verdict.speedup,
            "explanation": result.verdict.explanation,
            "warm_up_tokens": result.warm_up_tokens,
            "grants": asdict(result.grants),
        },
        "tokens_per_second": result.line,
        "samples": [
            {
                "arm": arm.label,
                "kind": kind,
                "tokens_per_second": round(answer.tokens_per_second, 3),
                **asdict(replace(answer, steps=())),
            }
            for arm, by_kind in result.answers.items()
            for kind, answers in by_kind.items()
            for answer in answers
        ],
        "divergences": [asdict(divergence) for divergence in result.divergences],
        "warnings": warnings_of(result),
    }


def _table(kind: str, cells: Mapping[Arm, Cell]) -> Table:
    table = Table(title=kind, title_justify="left")
    table.add_column("arm")
    for column in ("tok/s", "spread", "x classic", "accepted/round"):
        table.add_column(column, justify="right")
    classic = cells[_CLASSIC].tokens_per_second
    for arm, cell in cells.items():
        accepted = cell.accepted_per_round
        table.add_row(
            arm.label,
            f"{cell.tokens_per_second:.1f}",
            f"{cell.spread:.1%}",
            f"{cell.tokens_per_second / classic:.2f}",
            "-" if accepted is None else f"{accepted:.2f}",
        )
    return table


def _ratios(kind: str, cells: Mapping[Arm, Cell]) -> str:
    classic = cells[_CLASSIC].tokens_per_second
    rivals = {
        arm: cell.tokens_per_second for arm, cell in cells.items() if arm.kind in (ArmKind.CLASSIC, ArmKind.FIXED)
    }
    best = max(rivals, key=rivals.__getitem__)
    return (
        f"{kind}: classic is {classic / cells[_MLX_LM].tokens_per_second:.2f} x mlx_lm;"
        f" AUTO is {cells[_AUTO].tokens_per_second / rivals[best]:.2f} x the engine's best other arm ({best.label})"
    )

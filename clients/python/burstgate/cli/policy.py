"""`burstgate policy`: what the policy service has found out, readable.

Owns the tables of verdicts and lanes. Eighty columns must be enough.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from burstgate.cli._terminal import POLICY_ADDRESS, AsJson, PolicyAddress, reported
from burstgate.client import PolicyClient
from burstgate.verdicts import Answer, Lane, PolicyState, Verdict

# Ids are longer than eighty columns allow; their beginnings tell lanes apart.
_LANE_COLUMNS = 12

app = typer.Typer(help="Reads the policy service's verdicts.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `show` a subcommand while it is the only one."""


@app.command("show")
def show(
    key_hash: Annotated[str | None, typer.Argument(help="Show only this pairing, by its key.")] = None,
    address: PolicyAddress = POLICY_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Show what is known of each pairing, and what its lanes are doing."""
    with reported(address), PolicyClient(address) as client:
        verdicts = list(client.verdicts()) if key_hash is None else [client.verdict(key_hash)]
    if as_json:
        typer.echo(json.dumps({"verdicts": [dataclasses.asdict(verdict) for verdict in verdicts]}))
    elif verdicts:
        Console(highlight=False).print(screen(verdicts))
    else:
        typer.echo("No pairing has been seen yet. A verdict appears once a decode service asks for grants.")


def screen(verdicts: list[Verdict]) -> RenderableType:
    """One table of verdicts, then each pairing's sentence and lanes."""
    return Group(_verdict_table(verdicts), *map(_verdict_details, verdicts))


def _verdict_table(verdicts: list[Verdict]) -> Table:
    table = Table(header_style="bold", pad_edge=False, box=None)
    table.add_column("key", no_wrap=True)
    table.add_column("target, drafter", ratio=1, overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("speed-up", justify="right", no_wrap=True)
    table.add_column("accepted", justify="right", no_wrap=True)
    table.add_column("bursts", justify="right", no_wrap=True)
    for verdict in verdicts:
        table.add_row(
            verdict.key_hash,
            f"{verdict.key.target}\n{verdict.key.drafter or 'no drafter'}",
            _state(verdict),
            "-" if verdict.speedup is None else f"{verdict.speedup:.2f}x",
            "-" if verdict.acceptance_rate is None else f"{verdict.acceptance_rate:.0%}",
            f"{verdict.samples}/{verdict.samples_required}",
        )
    return table


def _state(verdict: Verdict) -> Text:
    if verdict.state is PolicyState.SETTLED:
        style = "green" if verdict.verdict is Answer.ENABLE else "yellow"
        return Text(verdict.verdict.value.lower(), style=style)
    return Text(verdict.state.value.lower(), style="cyan")


def _verdict_details(verdict: Verdict) -> RenderableType:
    key = verdict.key
    machine = [key.hardware, key.backend, key.blas, f"mlx {key.mlx_version}", key.dtype]
    machine += [f"K up to {key.draft_width}", "read from a hint" if verdict.from_hint else ""]
    parts: list[RenderableType] = [
        Text.assemble("\n", (verdict.key_hash, "bold"), f"  {verdict.explanation}"),
        Text(", ".join(filter(None, machine)), style="dim"),
    ]
    if verdict.lanes:
        parts.append(Padding(_lane_table(verdict.lanes), (0, 0, 0, 2)))
        parts += [_lane_reason(lane) for lane in verdict.lanes]
    return Group(*parts)


def _lane_table(lanes: tuple[Lane, ...]) -> Table:
    table = Table(header_style="bold", pad_edge=False, box=None)
    table.add_column("lane", no_wrap=True)
    table.add_column("mode", no_wrap=True)
    table.add_column("K", justify="right", no_wrap=True)
    for name in ("plain tok/s", "spec. tok/s", "steps", "lost"):
        table.add_column(name, justify="right", no_wrap=True)
    for lane in lanes:
        grant = lane.last_grant
        table.add_row(
            lane.lane_id[:_LANE_COLUMNS],
            grant.mode.value.lower().replace("_", " ") if grant else "-",
            str(grant.draft_width) if grant else "-",
            _rate(lane.plain_tokens_per_second),
            _rate(lane.speculative_tokens_per_second),
            str(lane.steps),
            str(lane.dropped_steps),
        )
    return table


def _lane_reason(lane: Lane) -> RenderableType:
    sentence = lane.last_grant.explanation if lane.last_grant else "no grant yet"
    text = f"{lane.lane_id[:_LANE_COLUMNS]} of {lane.instance_id}: {sentence}"
    return Padding(Text(text, style="dim"), (0, 0, 0, 2))


def _rate(tokens_per_second: float | None) -> str:
    return "-" if tokens_per_second is None else f"{tokens_per_second:.1f}"

"""`burstgate policy`: asks the policy service what it has found out, and overrules it.

Owns the commands; what they print is `_policy_tables`'s. Every command prints one JSON object with --json,
but for `watch`, which prints one a line.
"""

from __future__ import annotations

import dataclasses
import getpass
import json
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

from burstgate.cli import _policy_tables as tables
from burstgate.cli._terminal import EXIT_USAGE, POLICY_ADDRESS, AsJson, PolicyAddress, fail, reported
from burstgate.client import PolicyClient
from burstgate.verdicts import Answer, PolicyState, Situation, Verdict, VerdictFilter

app = typer.Typer(help="Reads, questions and overrules the policy service's verdicts.", no_args_is_help=True)

KeyHash = Annotated[str, typer.Argument(help="The pairing's key, as `list` shows it.")]
Target = Annotated[str, typer.Option(help="Only targets whose name has this in it.")]
Drafter = Annotated[str, typer.Option(help="Only drafters whose name has this in it.")]
Hardware = Annotated[str, typer.Option(help="Only hardware labels that have this in them.")]
State = Annotated[str, typer.Option(help="Only this state: forced, profiling, settled or static.")]
Verdicts = Annotated[str, typer.Option("--verdict", help="Only this verdict: enable or decline.")]
Pinned = Annotated[bool, typer.Option("--pinned", help="Only what a person has pinned.")]

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_SECONDS = (86_400, 3600, 60, 1)


@app.command("show")
def show(
    key_hash: Annotated[str | None, typer.Argument(help="Show only this pairing, by its key.")] = None,
    address: PolicyAddress = POLICY_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Show what is known of each pairing, on what evidence, and what its lanes are doing."""
    with reported(address), PolicyClient(address) as client:
        verdicts = list(client.verdicts()) if key_hash is None else [client.verdict(key_hash)]
    _print_verdicts(verdicts, as_json, tables.verdicts_screen(verdicts))


@app.command("list")
def list_verdicts(
    target: Target = "",
    drafter: Drafter = "",
    hardware: Hardware = "",
    state: State = "",
    verdict: Verdicts = "",
    pinned: Pinned = False,
    address: PolicyAddress = POLICY_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """List the verdicts, a line or two each."""
    wanted = _filter(target, drafter, hardware, state, verdict, pinned)
    with reported(address), PolicyClient(address) as client:
        verdicts = list(client.verdicts(wanted))
    _print_verdicts(verdicts, as_json, tables.verdict_table(verdicts), selected=wanted != VerdictFilter())


@app.command("watch")
def watch(
    target: Target = "",
    drafter: Drafter = "",
    hardware: Hardware = "",
    state: State = "",
    verdict: Verdicts = "",
    pinned: Pinned = False,
    resume: Annotated[str, typer.Option(help="Go on after this resume token.")] = "",
    address: PolicyAddress = POLICY_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Print every change of a verdict until interrupted."""
    wanted = _filter(target, drafter, hardware, state, verdict, pinned)
    console = _console()
    with reported(address), PolicyClient(address) as client:
        try:
            for change in client.watch(wanted, resume_token=resume):
                if as_json:
                    typer.echo(_json(change))
                else:
                    console.print(tables.change_line(change), soft_wrap=True)
        except KeyboardInterrupt:
            return


@app.command("pin")
def pin(
    key_hash: KeyHash,
    speculate: Annotated[str, typer.Argument(metavar="on|off", help="What is pinned.")],
    reason: Annotated[str, typer.Option(help="Why, for whoever reads it next.")],
    author: Annotated[str, typer.Option(help="Who.", show_default="the user's name")] = "",
    duration: Annotated[str, typer.Option("--for", help="How long, such as 1h or 2d12h; else until unpinned.")] = "",
    address: PolicyAddress = POLICY_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Turn speculation on or off for a pairing, above every measurement."""
    if speculate not in ("on", "off"):
        fail(f"{speculate}: must be on or off", EXIT_USAGE)
    ttl_s = _seconds(duration) if duration else None
    with reported(address), PolicyClient(address) as client:
        verdict = client.pin(
            key_hash,
            speculate=speculate == "on",
            reason=reason,
            author=author or getpass.getuser(),
            ttl_s=ttl_s,
        )
    _print_verdicts([verdict], as_json, tables.verdicts_screen([verdict]))


@app.command("unpin")
def unpin(key_hash: KeyHash, address: PolicyAddress = POLICY_ADDRESS, as_json: AsJson = False) -> None:
    """Take a pin back."""
    with reported(address), PolicyClient(address) as client:
        verdict = client.unpin(key_hash)
    _print_verdicts([verdict], as_json, tables.verdicts_screen([verdict]))


@app.command("reset")
def reset(key_hash: KeyHash, address: PolicyAddress = POLICY_ADDRESS, as_json: AsJson = False) -> None:
    """Forget what was measured of a pairing: it is profiled again."""
    with reported(address), PolicyClient(address) as client:
        verdict = client.reset(key_hash)
    _print_verdicts([verdict], as_json, tables.verdicts_screen([verdict]))


@app.command("export")
def export(
    file: Annotated[Path | None, typer.Argument(help="Where to; else standard output.")] = None,
    target: Target = "",
    drafter: Drafter = "",
    hardware: Hardware = "",
    state: State = "",
    verdict: Verdicts = "",
    pinned: Pinned = False,
    address: PolicyAddress = POLICY_ADDRESS,
) -> None:
    """Write what is remembered as one JSON object, for `import` on another service."""
    wanted = _filter(target, drafter, hardware, state, verdict, pinned)
    with reported(address), PolicyClient(address) as client:
        hints = client.export_hints(wanted)
    text = json.dumps({"hints": [json.loads(hint) for hint in hints]}, indent=2)
    if file is None:
        typer.echo(text)
        return
    try:
        file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        fail(f"{file} cannot be written: {error.strerror}")
    _console().print(f"{len(hints)} hints written to {file}", markup=False)


@app.command("import")
def import_hints(
    file: Annotated[Path, typer.Argument(help="What `export` wrote; - for standard input.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Also replace newer evidence.")] = False,
    address: PolicyAddress = POLICY_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Store hints that `export` wrote; exits with 1 if any of them was not stored."""
    hints = _read_hints(file)
    with reported(address), PolicyClient(address) as client:
        results = client.import_hints(hints, overwrite=overwrite)
    if as_json:
        typer.echo(_json({"results": results}))
    else:
        _console().print(tables.import_table(results))
    if not all(result.stored for result in results):
        raise typer.Exit(1)


@app.command("explain")
def explain(
    lane: Annotated[str, typer.Argument(help="The lane's id, or the beginning of it that `show` prints.")],
    width: Annotated[int | None, typer.Option(help="Explain a situation instead: this many active rows.")] = None,
    depth: Annotated[int, typer.Option(help="Context length of the deepest row, in tokens.")] = 0,
    emitted: Annotated[int, typer.Option(help="Fewest answer tokens a row has emitted.")] = 0,
    ineligible: Annotated[bool, typer.Option("--ineligible", help="A row may not speculate.")] = False,
    address: PolicyAddress = POLICY_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Say which rules were consulted for a lane's last grant, what each saw and what it said."""
    situation = None
    if width is not None:
        situation = Situation(width, depth_tokens=depth, min_emitted_tokens=emitted, eligible=not ineligible)
    with reported(address), PolicyClient(address) as client:
        explained = client.explain(_lane_id(client, lane), situation)
    if as_json:
        typer.echo(_json(explained))
    else:
        _console().print(tables.explanation_screen(explained))


@app.command("replay")
def replay(
    file: Annotated[Path, typer.Argument(help="A ReplayTraceRequest as JSON; - for standard input.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another setting, such as GATE_REFRESH_STEPS=512."),
    ] = None,
    steps: Annotated[bool, typer.Option("--steps", help="Print every step.")] = False,
    address: PolicyAddress = POLICY_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Feed a recorded trace to the decision core: what would it have decided, and what would that have cost."""
    changed: dict[str, str] = {}
    for setting in settings or ():
        name, equals, value = setting.partition("=")
        if not equals:
            fail(f"--set {setting}: must be NAME=VALUE", EXIT_USAGE)
        changed[name] = value
    with reported(address), PolicyClient(address) as client:
        result = client.replay(_read(file), changed)
    if as_json:
        typer.echo(_json(result))
    else:
        _console().print(tables.replay_screen(result, every_step=steps))


def _print_verdicts(verdicts: list[Verdict], as_json: bool, screen: RenderableType, *, selected: bool = False) -> None:
    if as_json:
        typer.echo(_json({"verdicts": verdicts}))
    elif verdicts:
        _console().print(screen)
    elif selected:
        typer.echo("No pairing matches.")
    else:
        typer.echo("No pairing has been seen yet. A verdict appears once a decode service asks for grants.")


def _filter(target: str, drafter: str, hardware: str, state: str, verdict: str, pinned: bool) -> VerdictFilter:
    return VerdictFilter(
        target=target,
        drafter=drafter,
        hardware=hardware,
        state=PolicyState(_member("--state", state, PolicyState)),
        verdict=Answer(_member("--verdict", verdict, Answer)),
        pinned=pinned,
    )


def _member(option: str, value: str, kind: type[PolicyState | Answer]) -> str:
    if not value:
        return "UNSPECIFIED"
    known = [member.value.lower() for member in kind if member.value != "UNSPECIFIED"]
    if value.lower() not in known:
        fail(f"{option} {value}: must be one of {', '.join(known)}", EXIT_USAGE)
    return value.upper()


def _seconds(duration: str) -> float:
    match = _DURATION.fullmatch(duration)
    if match is None or not duration:
        fail(f"--for {duration}: must be a duration such as 90s, 30m, 1h or 2d12h", EXIT_USAGE)
    return float(sum(int(count) * unit for count, unit in zip(match.groups(default="0"), _SECONDS, strict=True)))


def _lane_id(client: PolicyClient, beginning: str) -> str:
    """The whole id of a lane that is open; what names none is left for the service to refuse."""
    ids = [
        lane.lane_id for verdict in client.verdicts() for lane in verdict.lanes if lane.lane_id.startswith(beginning)
    ]
    if len(ids) > 1:
        fail(f"{beginning} is the beginning of {len(ids)} lanes: {', '.join(ids)}", EXIT_USAGE)
    return ids[0] if ids else beginning


def _read_hints(file: Path) -> list[str]:
    try:
        hints = json.loads(_read(file))["hints"]
        return [hint if isinstance(hint, str) else json.dumps(hint) for hint in hints]
    except (ValueError, KeyError, TypeError):
        fail(f"{file} does not hold what `burstgate policy export` writes: a JSON object with a list of hints")


def _read(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{file} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}")


def _console() -> Console:
    return Console(highlight=False)


def _json(value: Any) -> str:
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    """What JSON has no form for: our values become objects and times become text."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return value.isoformat() if isinstance(value, datetime) else dict(value)

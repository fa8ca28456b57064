"""What `burstgate policy` prints: verdicts, lanes, the rules behind a grant, a replay.

Owns the tables. Eighty columns must be enough, and times are the reader's own.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from burstgate.verdicts import (
    Answer,
    Evidence,
    Explanation,
    ImportedHint,
    Lane,
    Pin,
    PolicyState,
    Regret,
    Replay,
    Verdict,
    VerdictChange,
)

# Ids are longer than eighty columns allow; their beginnings tell lanes apart.
LANE_COLUMNS = 12


def verdicts_screen(verdicts: list[Verdict]) -> RenderableType:
    """One table of verdicts, then each pairing's sentence, evidence and lanes."""
    return Group(verdict_table(verdicts), *map(_verdict_details, verdicts))


def verdict_table(verdicts: list[Verdict]) -> Table:
    """A line or two for each verdict."""
    table = _table()
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


def change_line(change: VerdictChange) -> Text:
    """One line for a change that a watch told."""
    if change.restarted:
        return Text("the resume token was too old: everything follows", style="dim")
    verdict = change.verdict
    if verdict is None:
        return Text.assemble((change.key_hash, "bold"), "  forgotten")
    return Text.assemble((change.key_hash, "bold"), "  ", _state(verdict), f"  {verdict.explanation}")


def explanation_screen(explained: Explanation) -> RenderableType:
    """A grant and the rules behind it."""
    grant = explained.grant
    table = _table()
    table.add_column("", no_wrap=True)
    table.add_column("rule", no_wrap=True)
    table.add_column("what it said, and the numbers it saw", ratio=1, overflow="fold")
    for rule in explained.rules:
        numbers = ", ".join(f"{name} {value:.6g}" for name, value in sorted(rule.numbers.items()))
        said = Group(Text(rule.answer), Text(numbers, style="dim")) if numbers else Text(rule.answer)
        style = "bold" if rule.decided else ""
        table.add_row(Text(">" if rule.decided else "", style="green"), Text(rule.rule, style=style), said)
    given = f"{_words(grant.mode.value)}, K={grant.draft_width}, at most {grant.max_steps} steps"
    return Group(Text.assemble((given, "bold"), f": {grant.explanation}"), table)


def replay_screen(replay: Replay, *, every_step: bool) -> RenderableType:
    """What a replay would have cost, how often it decided otherwise, and on request every step."""
    recorded, replayed = replay.recorded_ms, replay.replayed_ms
    ratio = f"{recorded / replayed:.2f} times as fast" if replayed > 0 else "no time was recorded"
    differing = sum(step.mode != step.recorded_mode for step in replay.steps)
    parts: list[RenderableType] = [
        Text.assemble(
            (f"{replay.tokens} tokens: recorded {recorded:.1f} ms, replayed {replayed:.1f} ms (estimated)", "bold"),
            f", {ratio}; {differing} of {len(replay.steps)} steps ran in another mode",
        ),
        Text(replay.verdict.explanation),
    ]
    table = _table()
    if every_step:
        for name in ("step", "recorded", "K", "replayed", "K", "reason"):
            table.add_column(name, justify="right" if name in ("step", "K") else "left", no_wrap=True)
        for number, step in enumerate(replay.steps, start=1):
            table.add_row(
                str(number),
                _words(step.recorded_mode.value),
                str(step.recorded_draft_width),
                _words(step.mode.value),
                str(step.draft_width),
                _words(step.reason.value),
            )
    else:
        for name in ("steps", "mode", "K", "reason"):
            table.add_column(name, justify="right" if name in ("steps", "K") else "left", no_wrap=True)
        counts = Counter((step.mode, step.draft_width, step.reason) for step in replay.steps)
        for (mode, draft_width, reason), count in counts.most_common():
            table.add_row(str(count), _words(mode.value), str(draft_width), _words(reason.value))
    return Group(*parts, table)


def import_table(results: tuple[ImportedHint, ...]) -> Table:
    """What became of each hint."""
    table = _table()
    table.add_column("key", no_wrap=True)
    table.add_column("stored", no_wrap=True)
    table.add_column("why not", ratio=1, overflow="fold")
    for result in results:
        table.add_row(result.key_hash or "-", "yes" if result.stored else "no", result.why_not)
    return table


def _verdict_details(verdict: Verdict) -> RenderableType:
    key = verdict.key
    machine = [key.hardware, key.backend, key.blas, f"mlx {key.mlx_version}", key.dtype]
    machine += [f"K up to {key.draft_width}", "read from a hint" if verdict.from_hint else ""]
    parts: list[RenderableType] = [
        Text.assemble("\n", (verdict.key_hash, "bold"), f"  {verdict.explanation}"),
        Text(", ".join(filter(None, machine)), style="dim"),
    ]
    if verdict.pin is not None:
        parts.append(Text(_pin(verdict.pin), style="magenta"))
    if verdict.evidence is not None:
        parts.append(Text(_evidence(verdict.evidence), style="dim"))
    if verdict.expires_at is not None:
        again = f", challenged {_time(verdict.rechallenge_at)}" if verdict.rechallenge_at else ""
        parts.append(Text(f"holds until {_time(verdict.expires_at)}{again}", style="dim"))
    if verdict.starved_because:
        parts.append(Text(f"profiling does not progress: {verdict.starved_because}", style="yellow"))
    if verdict.lanes:
        parts.append(_indented(_lane_table(verdict.lanes)))
    if verdict.regret is not None:
        parts.append(_indented(_regret_table(verdict.lanes, verdict.regret)))
    parts += [_lane_reason(lane) for lane in verdict.lanes]
    return Group(*parts)


def _evidence(evidence: Evidence) -> str:
    kinds = "1 kind" if evidence.traffic_kinds == 1 else f"{evidence.traffic_kinds} kinds"
    return (
        f"{evidence.rounds} rounds of {evidence.round_ms:.1f} ms and {evidence.plain_steps} plain steps of "
        f"{evidence.plain_step_ms:.1f} ms on {kinds} of traffic: {evidence.speedup:.2f}x "
        f"({evidence.speedup_low:.2f} to {evidence.speedup_high:.2f} at {evidence.confidence:.0%}), "
        f"seen {_time(evidence.first_seen_at)} to {_time(evidence.last_seen_at)}"
    )


def _pin(pin: Pin) -> str:
    until = f"until {_time(pin.expires_at)}" if pin.expires_at else "until it is unpinned"
    return (
        f"pinned {'on' if pin.speculate else 'off'} by {pin.author} since {_time(pin.pinned_at)}, {until}: {pin.reason}"
    )


def _lane_table(lanes: tuple[Lane, ...]) -> Table:
    table = _table()
    table.add_column("lane", no_wrap=True)
    table.add_column("mode", no_wrap=True)
    table.add_column("K", justify="right", no_wrap=True)
    for name in ("plain tok/s", "spec. tok/s", "steps"):
        table.add_column(name, justify="right", no_wrap=True)
    for lane in lanes:
        grant = lane.last_grant
        table.add_row(
            lane.lane_id[:LANE_COLUMNS],
            _words(grant.mode.value) if grant else "-",
            str(grant.draft_width) if grant else "-",
            _rate(lane.plain_tokens_per_second),
            _rate(lane.speculative_tokens_per_second),
            str(lane.steps),
        )
    return table


def _regret_table(lanes: tuple[Lane, ...], whole: Regret) -> Table:
    """Time that ran and was lost, of each lane and of the pairing, whose lanes that are gone count too."""
    table = _table()
    table.add_column("time", no_wrap=True)
    for name in ("ran", "lost", "share", "best alone", "recently", "best alone"):
        table.add_column(name, justify="right", no_wrap=True)
    accounts = [(lane.lane_id[:LANE_COLUMNS], lane.regret) for lane in lanes]
    for name, regret in [*accounts, ("the pairing", whole)]:
        if regret is not None:
            table.add_row(
                name,
                _duration(regret.actual_ms),
                _duration(regret.lost_ms),
                f"{regret.share:.1%}",
                _mode(regret.best_draft_width),
                f"{regret.recent_share:.1%}" if regret.recent_best_draft_width else "-",
                _mode(regret.recent_best_draft_width),
            )
    return table


def _lane_reason(lane: Lane) -> RenderableType:
    name, regret = lane.lane_id[:LANE_COLUMNS], lane.regret
    sentence = lane.last_grant.explanation if lane.last_grant else "no grant yet"
    lines = [Text(f"{name} of {lane.instance_id}: {sentence}", style="dim")]
    if regret is not None and regret.holding:
        lost = f"{regret.recent_share:.1%} of the recent time was lost against {_mode(regret.recent_best_draft_width)}"
        lines.append(Text(f"{name} explores nothing for now: {lost} alone", style="yellow"))
    if lane.dropped_steps:
        lines.append(Text(f"{name} was not told of {lane.dropped_steps} steps: its instance dropped them"))
    return _indented(Group(*lines))


def _indented(part: RenderableType) -> RenderableType:
    return Padding(part, (0, 0, 0, 2))


def _mode(draft_width: int) -> str:
    """A single mode; nothing was priced before there is one."""
    if draft_width == 0:
        return "-"
    return "plain" if draft_width == 1 else f"K={draft_width}"


def _state(verdict: Verdict) -> Text:
    if verdict.pin is not None and verdict.state is not PolicyState.FORCED:
        return Text(f"pinned {'on' if verdict.pin.speculate else 'off'}", style="magenta")
    if verdict.state is PolicyState.SETTLED:
        style = "green" if verdict.verdict is Answer.ENABLE else "yellow"
        return Text(_words(verdict.verdict.value), style=style)
    return Text(_words(verdict.state.value), style="cyan")


def _table() -> Table:
    return Table(header_style="bold", pad_edge=False, box=None)


def _words(name: str) -> str:
    return name.lower().replace("_", " ")


def _rate(tokens_per_second: float | None) -> str:
    return "-" if tokens_per_second is None else f"{tokens_per_second:.1f}"


def _duration(milliseconds: float) -> str:
    for unit, unit_ms in (("h", 3_600_000), ("min", 60_000)):
        if abs(milliseconds) >= 2 * unit_ms:
            return f"{milliseconds / unit_ms:.1f} {unit}"
    return f"{milliseconds / 1000:.2f} s"


def _time(moment: datetime) -> str:
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"

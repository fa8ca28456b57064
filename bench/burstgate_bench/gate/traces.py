"""Worlds from recorded runs: a file of steps that a real lane ran becomes texts and a machine.

The file holds JSON lines. The first describes the lane: `{"hardware": ..., "draft_width": ..., "cells": [...]}`;
every other is a step of one answer, in order: `{"stream": ..., "step": {...}}`, with the fields of `StepRecord`
and of `CostCell`. A step whose stream is empty belongs to no answer and only tells what such a step takes. Only
steps of one row can be read: a wider one does not say which row kept what. `burstgate_bench.recording` writes such
a file.

What another policy would have met is counted as follows. A round that is verified at K, recorded at K or more,
emits 1 + min(accepted, K-1); drafts that were never recorded are not credited. A plain step emits one token and
uses up no more of the text than that. Where the record holds a plain step nobody drafted, so nothing is credited:
record with every step a round of the widest verify. Every policy gets the same text.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from burstgate_bench.gate.costs import WIDEST_VERIFY, StepCosts
from burstgate_bench.gate.machine import Machine
from burstgate_bench.gate.texts import Kind, Random
from burstgate_bench.gate.world import Text, World
from burstgate_policy.core.types import CostCell, StepRecord


class TraceError(Exception):
    """A trace cannot be read. The text names the file, the line and what is wrong."""


class LaneLine(BaseModel):
    """The first line of a trace."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hardware: str
    draft_width: Annotated[int, Field(ge=2, le=WIDEST_VERIFY)]
    cells: tuple[CostCell, ...]


class StepLine(BaseModel):
    """A step of one answer, or of none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stream: str
    step: StepRecord


@dataclass(frozen=True)
class Trace:
    """A recorded run."""

    name: str
    lane: LaneLine
    streams: Mapping[str, tuple[StepRecord, ...]]
    """By answer; those of none under the empty name."""

    @property
    def answers(self) -> list[tuple[StepRecord, ...]]:
        """The steps of each answer."""
        return [steps for stream, steps in self.streams.items() if stream]


_LANE: TypeAdapter[LaneLine] = TypeAdapter(LaneLine)
_STEP: TypeAdapter[StepLine] = TypeAdapter(StepLine)


def read_trace(file: Path) -> Trace:
    """Reads a trace; raises `TraceError`."""
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{file}: {error}") from error
    if not lines:
        raise TraceError(f"{file}: the first line must describe the lane, and there is none")
    lane = _parsed(_LANE, lines[0], file, 1)
    streams: dict[str, list[StepRecord]] = {}
    for number, line in enumerate(lines[1:], start=2):
        one = _parsed(_STEP, line, file, number)
        if one.step.width != 1:
            raise TraceError(f"{file}, line {number}: width must be 1, not {one.step.width}")
        streams.setdefault(one.stream, []).append(one.step)
    trace = Trace(file.stem, lane, {name: tuple(steps) for name, steps in streams.items()})
    if not any(step.proposed for steps in trace.answers for step in steps):
        raise TraceError(f"{file}: no answer has a round, so nothing is known of what drafts are worth")
    return trace


def trace_lines(lane: LaneLine, steps: Iterable[tuple[str, StepRecord]]) -> Iterator[str]:
    """A run as the lines of a file; each step with the name of its answer."""
    yield lane.model_dump_json()
    for stream, step in steps:
        yield StepLine(stream=stream, step=step).model_dump_json()


def world_of(trace: Trace, random: Random, tokens: int) -> World:
    """A world whose answers are those of the trace in random order, again and again until there are `tokens`."""
    answers = [_text(steps) for steps in trace.answers]
    texts: list[Text] = []
    while sum(map(len, texts)) < tokens:
        texts.extend(answers[int(at)] for at in random.permutation(len(answers)))
    cap = trace.lane.draft_width
    return World(
        name=trace.name,
        kinds=(Kind("recorded", 0.0, 1.0),),
        texts=tuple(texts),
        slots=1,
        visitors=(),
        machine=_machine(trace),
        cells=trace.lane.cells,
        cap=cap,
    )


def _text(steps: Iterable[StepRecord]) -> Text:
    """The positions of one answer. Within a round each kept draft was also a position with one draft less to keep."""
    accepted = bytearray()
    context = 0
    for step in steps:
        if not accepted:
            context = step.depth_tokens
        kept = min(sum(step.accepted_by_position), step.proposed)
        accepted.extend(range(kept, -1, -1))
    return Text(context, bytes(accepted), bytes(len(accepted)))


def _machine(trace: Trace) -> Machine:
    """Medians by K as costs, and what each step missed its own by as noise, answer by answer in the order they ran.

    Where steps of no answer ran at a K, they alone are its cost: they ran in turn with the other Ks, so a neighbour
    on the machine slowed all of them alike.
    """
    steps = {
        stream: [step for step in some if not step.excluded and step.wall_ms > 0.0]
        for stream, some in trace.streams.items()
    }
    wall_ms = {
        **_medians_ms(step for some in steps.values() for step in some),
        **_medians_ms(steps.get("", ())),
    }
    noise = [step.wall_ms / wall_ms[_k(step)] for some in steps.values() for step in some]
    whole = _every_k(wall_ms, {cell.draft_width: cell.verify_ms + cell.draft_ms for cell in _narrow(trace)})
    costs = StepCosts("recorded", verify=lambda _width, k: whole[k], draft_ms=0.0, overhead_ms=0.0)
    return Machine(costs, noise)


def _k(step: StepRecord) -> int:
    return step.draft_width if step.mode.speculates else 1


def _medians_ms(steps: Iterable[StepRecord]) -> dict[int, float]:
    by_k: dict[int, list[float]] = {}
    for step in steps:
        by_k.setdefault(_k(step), []).append(step.wall_ms)
    return {k: statistics.median(walls) for k, walls in by_k.items()}


def _every_k(measured: Mapping[int, float], table: Mapping[int, float]) -> dict[int, float]:
    """A cost for every K: as measured, else the table's corrected by the median factor it missed the others by."""
    factors = [ms / table[k] for k, ms in measured.items() if k in table]
    factor = statistics.median(factors) if factors else 1.0
    known = {**{k: ms * factor for k, ms in table.items()}, **measured}
    ks = sorted(known)
    return {k: float(np.interp(k, ks, [known[at] for at in ks])) for k in range(1, WIDEST_VERIFY + 1)}


def _narrow(trace: Trace) -> Iterator[CostCell]:
    return (cell for cell in trace.lane.cells if cell.width == 1)


def _parsed(adapter: TypeAdapter[Any], line: str, file: Path, number: int) -> Any:
    try:
        return adapter.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the line"
        raise TraceError(f"{file}, line {number}: {where}: {first['msg']}") from error

"""The outcomes of bursts, checked and translated in one pass: the part of a request that has bulk.

A burst brings up to dozens of step records of twelve fields, and reading a field of a message costs as
much as using it. So each is read once, and what is found wrong is put into words only then. Must hold:
either every record is translated or the request is refused whole and nothing of it was taken.
"""

from collections.abc import Sequence
from typing import Any

from burstgate.policy.v1 import policy_pb2
from burstgate_policy.core.types import BurstOutcome, Mode, StepRecord
from burstgate_policy.validation import (
    HIGHEST_MODE,
    INFINITY,
    LIMITS,
    check_count,
    check_ms,
    check_range,
    check_string,
    full,
    refuse,
)
from burstgate_runtime.faults import Violation

_MODES = tuple(Mode)
_MAX_WIDTH, _MAX_DRAFT_WIDTH = LIMITS.width, LIMITS.draft_width


class _OpenStep:
    """A step record while its fields are set: the constructor of a frozen record costs five times as much."""

    __slots__ = StepRecord.__slots__  # the same layout, so that an instance can become a record

    mode: Mode
    draft_width: int
    width: int
    depth_tokens: int
    emitted: int
    proposed: int
    accepted_by_position: tuple[int, ...]
    draft_ms: float
    verify_ms: float
    overhead_ms: float
    wall_ms: float
    excluded: bool


def read_outcomes(outcomes: Sequence[policy_pb2.BurstOutcome], *, most: int = LIMITS.outcomes) -> list[BurstOutcome]:
    """The outcomes of a request; raises a fault that names each field that cannot be taken."""
    found: list[Violation] = []
    check_count("outcomes", len(outcomes), most, found)
    read: list[BurstOutcome] = []
    for i, outcome in enumerate(outcomes):
        grant_id, sequence, steps = outcome.grant_id, outcome.sequence, outcome.steps
        if not sequence:
            found.append(Violation(f"outcomes[{i}].sequence", "must be 1 or more, got 0"))
        check_string(f"outcomes[{i}].grant_id", grant_id, found)
        check_count(f"outcomes[{i}].steps", len(steps), LIMITS.steps, found)
        if full(found):
            break
        read.append(BurstOutcome(grant_id, sequence, tuple(_read_steps(i, steps, found)), outcome.dropped_steps))
    refuse(found)
    return read


def _read_steps(i: int, steps: Sequence[policy_pb2.StepRecord], found: list[Violation]) -> list[StepRecord]:
    read: list[Any] = []
    new = object.__new__
    for j, step in enumerate(steps):
        mode, width, draft_width = step.mode, step.width, step.draft_width
        accepted = tuple(step.accepted_by_position[:])
        draft_ms, verify_ms, overhead_ms, wall_ms = step.draft_ms, step.verify_ms, step.overhead_ms, step.wall_ms
        if not (
            0 < mode <= HIGHEST_MODE
            and 0 < width <= _MAX_WIDTH
            and 0 < draft_width <= _MAX_DRAFT_WIDTH
            and len(accepted) <= _MAX_DRAFT_WIDTH
            and 0.0 <= draft_ms < INFINITY
            and 0.0 <= verify_ms < INFINITY
            and 0.0 <= overhead_ms < INFINITY
            and 0.0 <= wall_ms < INFINITY
        ):
            _say_what_is_wrong(f"outcomes[{i}].steps[{j}]", step, found)
            if full(found):
                break
            continue
        record = new(_OpenStep)
        record.mode = _MODES[mode]
        record.draft_width = draft_width
        record.width = width
        record.depth_tokens = step.depth_tokens
        record.emitted = step.emitted
        record.proposed = step.proposed
        record.accepted_by_position = accepted
        record.draft_ms = draft_ms
        record.verify_ms = verify_ms
        record.overhead_ms = overhead_ms
        record.wall_ms = wall_ms
        record.excluded = step.excluded
        record.__class__ = StepRecord  # type: ignore[assignment]
        read.append(record)
    return read


def _say_what_is_wrong(path: str, step: policy_pb2.StepRecord, found: list[Violation]) -> None:
    check_range(f"{path}.mode", step.mode, 1, HIGHEST_MODE, found)
    check_range(f"{path}.width", step.width, 1, LIMITS.width, found)
    check_range(f"{path}.draft_width", step.draft_width, 1, LIMITS.draft_width, found)
    check_count(f"{path}.accepted_by_position", len(step.accepted_by_position), LIMITS.draft_width, found)
    for name in ("draft_ms", "verify_ms", "overhead_ms", "wall_ms"):
        check_ms(f"{path}.{name}", getattr(step, name), found)

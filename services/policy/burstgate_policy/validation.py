"""What the fields of a policy request may hold.

Written out by hand because it runs before every burst: no reflection over descriptors, one pass over
the steps, and nothing is built while all is well. Each check names the field by its path from the
request. Values are only looked at here; translating them is `convert`'s job.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from burstgate.policy.v1 import admin_pb2, policy_pb2
from burstgate_policy.core.types import Mode
from burstgate_runtime.faults import Violation, invalid


@dataclasses.dataclass(frozen=True)
class RequestLimits:
    """Most that a field may hold."""

    # Names, fingerprints and ids are short; they end up in listings, logs and file contents.
    string_bytes: int = 256
    # No drafter is run with more; also the most positions a step can have accepted.
    draft_width: int = 64
    # Rows of the largest batch anybody serves on one device.
    width: int = 4096
    # A grant covers far fewer steps; outcomes that waited for a lost service may be merged.
    steps: int = 1024
    # Outcomes that an instance keeps while the service is away.
    outcomes: int = 64
    # Batch widths times draft widths times depths of a thorough calibration.
    costs: int = 4096
    page_size: int = 1000
    # Reported at once: a status has room for no more.
    violations: int = 8


LIMITS = RequestLimits()
_HIGHEST_MODE = max(Mode)
_INFINITY = float("inf")


def check_open_lane(request: policy_pb2.OpenLaneRequest) -> None:
    """Refuses a lane that cannot be opened."""
    found: list[Violation] = []
    if request.HasField("key"):
        _check_key(request.key, found)
    else:
        found.append(_missing("key"))
    if request.HasField("capabilities"):
        _check_capabilities(request.capabilities, found)
    else:
        found.append(_missing("capabilities"))
    _check_string("instance_id", request.instance_id, found)
    _check_costs(request.costs, found)
    _refuse(found)


def check_decide(request: policy_pb2.DecideBurstRequest | policy_pb2.StreamBurstsRequest) -> None:
    """Refuses a question that cannot be answered."""
    found: list[Violation] = []
    _check_lane_id(request.lane_id, found)
    if request.HasField("situation"):
        _check_situation(request.situation, found)
    else:
        found.append(_missing("situation"))
    _check_outcomes(request.outcomes, found)
    _refuse(found)


def check_report(request: policy_pb2.ReportBurstRequest) -> None:
    """Refuses a report that cannot be taken."""
    found: list[Violation] = []
    _check_lane_id(request.lane_id, found)
    _check_outcomes(request.outcomes, found)
    _refuse(found)


def check_get_verdict(request: admin_pb2.GetVerdictRequest) -> None:
    """Refuses a key hash that names nothing."""
    found: list[Violation] = []
    _check_string("key_hash", request.key_hash, found, required=True)
    _refuse(found)


def check_list_verdicts(request: admin_pb2.ListVerdictsRequest) -> None:
    """Refuses a page that cannot be made."""
    found: list[Violation] = []
    _check_range("page_size", request.page_size, 0, LIMITS.page_size, found)
    _check_string("page_token", request.page_token, found)
    _refuse(found)


def _check_key(key: policy_pb2.PolicyKey, found: list[Violation]) -> None:
    _check_string("key.target", key.target, found, required=True)
    for name, value in (
        ("drafter", key.drafter),
        ("hardware", key.hardware),
        ("target_fingerprint", key.target_fingerprint),
        ("drafter_fingerprint", key.drafter_fingerprint),
        ("dtype", key.dtype),
        ("backend", key.backend),
        ("blas", key.blas),
        ("mlx_version", key.mlx_version),
    ):
        _check_string(f"key.{name}", value, found)
    _check_range("key.draft_width", key.draft_width, 1, LIMITS.draft_width, found)


def _check_capabilities(capabilities: policy_pb2.LaneCapabilities, found: list[Violation]) -> None:
    _check_range("capabilities.max_width", capabilities.max_width, 1, LIMITS.width, found)
    _check_string("capabilities.drafter_kind", capabilities.drafter_kind, found)


def _check_costs(costs: Sequence[policy_pb2.CostCell], found: list[Violation]) -> None:
    _check_count("costs", len(costs), LIMITS.costs, found)
    for i, cell in enumerate(costs):
        if _full(found):
            return
        _check_range(f"costs[{i}].width", cell.width, 1, LIMITS.width, found)
        _check_range(f"costs[{i}].draft_width", cell.draft_width, 1, LIMITS.draft_width, found)
        _check_ms(f"costs[{i}].verify_ms", cell.verify_ms, found)
        _check_ms(f"costs[{i}].draft_ms", cell.draft_ms, found)


def _check_lane_id(lane_id: str, found: list[Violation]) -> None:
    _check_string("lane_id", lane_id, found, required=True)


def _check_situation(situation: policy_pb2.Situation, found: list[Violation]) -> None:
    _check_range("situation.width", situation.width, 1, LIMITS.width, found)
    _check_range("situation.max_draft_width", situation.max_draft_width, 0, LIMITS.draft_width, found)


def _check_outcomes(outcomes: Sequence[policy_pb2.BurstOutcome], found: list[Violation]) -> None:
    _check_count("outcomes", len(outcomes), LIMITS.outcomes, found)
    for i, outcome in enumerate(outcomes):
        if _full(found):
            return
        if not outcome.sequence:
            found.append(Violation(f"outcomes[{i}].sequence", "must be 1 or more, got 0"))
        _check_string(f"outcomes[{i}].grant_id", outcome.grant_id, found)
        _check_count(f"outcomes[{i}].steps", len(outcome.steps), LIMITS.steps, found)
        if not _full(found):
            _check_steps(i, outcome.steps, found)


def _check_steps(i: int, steps: Iterable[policy_pb2.StepRecord], found: list[Violation]) -> None:
    for j, step in enumerate(steps):
        # The usual case is decided by plain comparisons; paths and texts are made only for a bad step.
        if (
            0 < step.mode <= _HIGHEST_MODE
            and 1 <= step.width <= LIMITS.width
            and 1 <= step.draft_width <= LIMITS.draft_width
            and len(step.accepted_by_position) <= LIMITS.draft_width
            and 0.0 <= step.draft_ms < _INFINITY
            and 0.0 <= step.verify_ms < _INFINITY
            and 0.0 <= step.overhead_ms < _INFINITY
            and 0.0 <= step.wall_ms < _INFINITY
        ):
            continue
        path = f"outcomes[{i}].steps[{j}]"
        _check_range(f"{path}.mode", step.mode, 1, _HIGHEST_MODE, found)
        _check_range(f"{path}.width", step.width, 1, LIMITS.width, found)
        _check_range(f"{path}.draft_width", step.draft_width, 1, LIMITS.draft_width, found)
        positions = len(step.accepted_by_position)
        _check_count(f"{path}.accepted_by_position", positions, LIMITS.draft_width, found)
        _check_ms(f"{path}.draft_ms", step.draft_ms, found)
        _check_ms(f"{path}.verify_ms", step.verify_ms, found)
        _check_ms(f"{path}.overhead_ms", step.overhead_ms, found)
        _check_ms(f"{path}.wall_ms", step.wall_ms, found)
        if _full(found):
            return


def _check_string(field: str, value: str, found: list[Violation], *, required: bool = False) -> None:
    if required and not value:
        found.append(Violation(field, "must not be empty"))
    # A character takes at most 4 bytes, so that short texts need no encoding to be measured.
    elif len(value) * 4 > LIMITS.string_bytes and len(value.encode()) > LIMITS.string_bytes:
        found.append(Violation(field, f"must have at most {LIMITS.string_bytes} bytes, has {len(value.encode())}"))


def _check_range(field: str, value: int, least: int, most: int, found: list[Violation]) -> None:
    if not least <= value <= most:
        found.append(Violation(field, f"must be from {least} to {most}, got {int(value)}"))


def _check_count(field: str, count: int, most: int, found: list[Violation]) -> None:
    if count > most:
        found.append(Violation(field, f"must have at most {most} entries, has {count}"))


def _check_ms(field: str, value: float, found: list[Violation]) -> None:
    if not 0.0 <= value < _INFINITY:
        found.append(Violation(field, f"must be a finite number of milliseconds, 0 or more, got {value}"))


def _missing(field: str) -> Violation:
    return Violation(field, "must be set")


def _full(found: list[Violation]) -> bool:
    return len(found) >= LIMITS.violations


def _refuse(found: list[Violation]) -> None:
    if found:
        raise invalid(*found[: LIMITS.violations])

"""What the fields of a policy request may hold.

Written out by hand because some of it runs before every burst: no reflection over descriptors, and
nothing is built while all is well. Each check names the field by its path from the request. Values are
only looked at here; translating them is `convert`'s job, but for the records of steps: see `steps`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

from burstgate.policy.v1 import policy_pb2
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
    # A person's words, as long as the contract says.
    reason_characters: int = 500
    author_characters: int = 100
    # A pin for longer is one without an end.
    pin_ttl_s: int = 10 * 365 * 86_400
    # Hints of a fleet in one call, and far more than one takes.
    hints: int = 1000
    hint_bytes: int = 64 * 1024
    # A replay of these takes about a quarter of a second.
    replay_steps: int = 10_000
    replay_settings: int = 64
    # Reported at once: a status has room for no more.
    violations: int = 8


LIMITS = RequestLimits()
HIGHEST_MODE: Final = int(max(Mode))
INFINITY: Final = float("inf")


def check_open_lane(request: policy_pb2.OpenLaneRequest) -> None:
    """Refuses a lane that cannot be opened."""
    found: list[Violation] = []
    if request.HasField("key"):
        check_key(request.key, found)
    else:
        found.append(missing("key"))
    if request.HasField("capabilities"):
        check_capabilities(request.capabilities, found)
    else:
        found.append(missing("capabilities"))
    check_string("instance_id", request.instance_id, found)
    check_costs(request.costs, found)
    refuse(found)


def check_decide(request: policy_pb2.DecideBurstRequest | policy_pb2.StreamBurstsRequest) -> None:
    """Refuses a question that cannot be answered, but for its outcomes, which `steps` checks as it reads."""
    lane_id, situation = request.lane_id, request.situation
    # A character takes at most 4 bytes, so that short texts need no encoding to be measured.
    if (
        0 < len(lane_id) * 4 <= LIMITS.string_bytes
        and 1 <= situation.width <= LIMITS.width
        and situation.max_draft_width <= LIMITS.draft_width
        and situation.steps_in_flight <= LIMITS.steps
    ):
        return
    found: list[Violation] = []
    check_string("lane_id", lane_id, found, required=True)
    if request.HasField("situation"):
        check_situation(situation, found)
    else:
        found.append(missing("situation"))
    refuse(found)


def check_lane_id(lane_id: str) -> None:
    """Refuses an id that names no lane."""
    found: list[Violation] = []
    check_string("lane_id", lane_id, found, required=True)
    refuse(found)


def check_key(key: policy_pb2.PolicyKey, found: list[Violation]) -> None:
    """Finds what a key may not hold."""
    check_string("key.target", key.target, found, required=True)
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
        check_string(f"key.{name}", value, found)
    check_range("key.draft_width", key.draft_width, 1, LIMITS.draft_width, found)


def check_capabilities(capabilities: policy_pb2.LaneCapabilities, found: list[Violation]) -> None:
    """Finds what capabilities may not hold."""
    check_range("capabilities.max_width", capabilities.max_width, 1, LIMITS.width, found)
    check_string("capabilities.drafter_kind", capabilities.drafter_kind, found)


def check_costs(costs: Sequence[policy_pb2.CostCell], found: list[Violation]) -> None:
    """Finds what a cost table may not hold."""
    check_count("costs", len(costs), LIMITS.costs, found)
    for i, cell in enumerate(costs):
        if full(found):
            return
        check_range(f"costs[{i}].width", cell.width, 1, LIMITS.width, found)
        check_range(f"costs[{i}].draft_width", cell.draft_width, 1, LIMITS.draft_width, found)
        check_ms(f"costs[{i}].verify_ms", cell.verify_ms, found)
        check_ms(f"costs[{i}].draft_ms", cell.draft_ms, found)


def check_situation(situation: policy_pb2.Situation, found: list[Violation]) -> None:
    """Finds what a situation may not hold."""
    check_range("situation.width", situation.width, 1, LIMITS.width, found)
    check_range("situation.max_draft_width", situation.max_draft_width, 0, LIMITS.draft_width, found)
    check_range("situation.steps_in_flight", situation.steps_in_flight, 0, LIMITS.steps, found)


def check_string(field: str, value: str, found: list[Violation], *, required: bool = False) -> None:
    """Finds a text that is too long, or missing."""
    if required and not value:
        found.append(Violation(field, "must not be empty"))
    # A character takes at most 4 bytes, so that short texts need no encoding to be measured.
    elif len(value) * 4 > LIMITS.string_bytes and len(value.encode()) > LIMITS.string_bytes:
        found.append(Violation(field, f"must have at most {LIMITS.string_bytes} bytes, has {len(value.encode())}"))


def check_range(field: str, value: int, least: int, most: int, found: list[Violation]) -> None:
    """Finds a number out of its range."""
    if not least <= value <= most:
        found.append(Violation(field, f"must be from {least} to {most}, got {int(value)}"))


def check_count(field: str, count: int, most: int, found: list[Violation]) -> None:
    """Finds too many entries."""
    if count > most:
        found.append(Violation(field, f"must have at most {most} entries, has {count}"))


def check_ms(field: str, value: float, found: list[Violation]) -> None:
    """Finds a time that no clock gives."""
    if not 0.0 <= value < INFINITY:
        found.append(Violation(field, f"must be a finite number of milliseconds, 0 or more, got {value}"))


def missing(field: str) -> Violation:
    """A field that has to be set."""
    return Violation(field, "must be set")


def full(found: list[Violation]) -> bool:
    """Whether enough was found."""
    return len(found) >= LIMITS.violations


def refuse(found: list[Violation]) -> None:
    """Refuses the request if anything was found."""
    if found:
        raise invalid(*found[: LIMITS.violations])

"""Errors that a caller is meant to read, in words that know no transport.

A fault always says which field or resource is at fault and what is allowed. Its reason is a stable
UPPER_SNAKE word that programs may match on; its message is for people and may change. How a fault
travels is `status`'s concern.
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType


class FaultKind(enum.Enum):
    """What a caller can do about a fault."""

    INVALID_ARGUMENT = "invalid_argument"
    """The request is wrong whatever the state of the server: mend it."""
    NOT_FOUND = "not_found"
    """The named thing does not exist (any more)."""
    FAILED_PRECONDITION = "failed_precondition"
    """The server's state forbids it until somebody changes that state."""
    RESOURCE_EXHAUSTED = "resource_exhausted"
    """A limit is reached: come back later or ask for less."""
    UNAVAILABLE = "unavailable"
    """The server cannot answer now: try again, here or elsewhere."""
    UNIMPLEMENTED = "unimplemented"
    """The server does not offer this."""
    DEADLINE_EXCEEDED = "deadline_exceeded"
    """The caller's time ran out."""
    INTERNAL = "internal"
    """A defect of the server."""


@dataclasses.dataclass(frozen=True, slots=True)
class Violation:
    """One field of a request and what is allowed there."""

    field: str
    """Path of the field from the request, such as "outcomes[2].steps[0].width"."""
    description: str
    """What is allowed, and what was given, as a phrase: "must be from 1 to 64, got 65"."""


class Fault(Exception):  # noqa: N818  (not every fault is an error: a full server is a state)
    """An error that reaches the caller as it is."""

    def __init__(
        self,
        kind: FaultKind,
        reason: str,
        message: str,
        *,
        violations: Sequence[Violation] = (),
        metadata: Mapping[str, str] | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.reason = reason
        self.message = message
        self.violations = tuple(violations)
        self.metadata: Mapping[str, str] = MappingProxyType(dict(metadata or {}))
        self.retry_after_ms = retry_after_ms


def invalid(*violations: Violation) -> Fault:
    """Refuses a request for the fields named; the message names each field and its limit."""
    message = "; ".join(f"{violation.field} {violation.description}" for violation in violations)
    return Fault(FaultKind.INVALID_ARGUMENT, "INVALID_FIELD", message, violations=violations)

"""Faults as google.rpc.Status.

Every status carries one ErrorInfo, and BadRequest and RetryInfo where the fault has them. Statuses
travel as response headers, which clients refuse as a whole above 8 KiB, so that every text is cut to
a length that keeps the largest status below that.
"""

import dataclasses

import grpc
from google.protobuf import duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from burstgate_runtime.faults import Fault, FaultKind

DOMAIN = "burstgate.dev"

CODES: dict[FaultKind, grpc.StatusCode] = {
    FaultKind.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    FaultKind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    FaultKind.FAILED_PRECONDITION: grpc.StatusCode.FAILED_PRECONDITION,
    FaultKind.RESOURCE_EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    FaultKind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    FaultKind.UNIMPLEMENTED: grpc.StatusCode.UNIMPLEMENTED,
    FaultKind.DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    FaultKind.INTERNAL: grpc.StatusCode.INTERNAL,
}


@dataclasses.dataclass(frozen=True)
class StatusLimits:
    """Longest texts of a status, in bytes of UTF-8; further violations are left out."""

    # The message travels twice (as grpc-message and inside the status), percent-encoded the first time.
    message_bytes: int = 512
    # A person mends a handful of fields at a time.
    violations: int = 8
    field_bytes: int = 96
    description_bytes: int = 160
    metadata_entries: int = 8
    metadata_bytes: int = 96


LIMITS = StatusLimits()


def to_status(fault: Fault) -> status_pb2.Status:
    """Builds the status of a fault."""
    details: list[Message] = [
        error_details_pb2.ErrorInfo(
            reason=fault.reason,
            domain=DOMAIN,
            metadata={
                _cut(key, LIMITS.metadata_bytes): _cut(value, LIMITS.metadata_bytes)
                for key, value in list(fault.metadata.items())[: LIMITS.metadata_entries]
            },
        )
    ]
    if fault.violations:
        details.append(
            error_details_pb2.BadRequest(
                field_violations=[
                    error_details_pb2.BadRequest.FieldViolation(
                        field=_cut(violation.field, LIMITS.field_bytes),
                        description=_cut(violation.description, LIMITS.description_bytes),
                    )
                    for violation in fault.violations[: LIMITS.violations]
                ]
            )
        )
    if fault.retry_after_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(fault.retry_after_ms)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=CODES[fault.kind].value[0], message=_cut(fault.message, LIMITS.message_bytes))
    for detail in details:
        status.details.add().Pack(detail)
    return status


def _cut(text: str, most_bytes: int) -> str:
    # Lone surrogates cannot be encoded; whatever the text quotes must not break the error itself.
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= most_bytes:
        return encoded.decode()
    mark = "…"
    return encoded[: most_bytes - len(mark.encode())].decode("utf-8", "ignore") + mark

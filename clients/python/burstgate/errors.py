"""The one family of errors this library raises for a call, with what the server said in typed attributes.

Owns the table from status codes to error classes and the reading of google.rpc details. No grpc.RpcError may
leave the library: every call runs inside one of the two converters at the end of this module.
"""

# ruff: noqa: N818 - the classes read as what happened, as the status names do

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

REQUEST_ID_KEY = "x-request-id"


@dataclass(frozen=True, slots=True)
class Violation:
    """One field that cannot be honoured."""

    field: str
    description: str


class BurstgateError(Exception):
    """Base of every error of a call. Raised itself for a status that has no class of its own."""

    code = "UNKNOWN"
    """The gRPC status name, such as "INVALID_ARGUMENT"."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        request_id: str = "",
        violations: Sequence[Violation] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        self.reason = reason
        """The server's machine-readable reason, such as "INVALID_FIELD"; empty when it gave none."""
        self.metadata: Mapping[str, str] = dict(metadata or {})
        """What the message names, as data."""
        self.request_id = request_id
        """Names the call in the server's log."""
        self.violations: tuple[Violation, ...] = tuple(violations)
        """The fields that cannot be honoured; empty for most errors."""
        self.retry_after_s = retry_after_s
        """How long the server asks to wait before the next try; None when it said nothing."""


class InvalidRequest(BurstgateError):
    """A field cannot be honoured; sending the same request again cannot help."""

    code = "INVALID_ARGUMENT"


class NotFound(BurstgateError):
    """No such model or verdict."""

    code = "NOT_FOUND"


class FailedPrecondition(BurstgateError):
    """The server is not in a state to do this, such as speculating without a drafter."""

    code = "FAILED_PRECONDITION"


class Overloaded(BurstgateError):
    """The server is full, or the message is larger than allowed."""

    code = "RESOURCE_EXHAUSTED"


class Unavailable(BurstgateError):
    """Nobody answers at the address, or the server is stopping. Worth a retry."""

    code = "UNAVAILABLE"


class DeadlineExceeded(BurstgateError):
    """The call's timeout passed."""

    code = "DEADLINE_EXCEEDED"


class Cancelled(BurstgateError):
    """The call was cancelled, here or by the server."""

    code = "CANCELLED"


class Internal(BurstgateError):
    """The server failed; its log says why under the request id."""

    code = "INTERNAL"


class Unimplemented(BurstgateError):
    """The server does not know this call or option."""

    code = "UNIMPLEMENTED"


_CLASSES: Mapping[grpc.StatusCode, type[BurstgateError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.INTERNAL: Internal,
    grpc.StatusCode.UNKNOWN: Internal,
    grpc.StatusCode.DATA_LOSS: Internal,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
}


def refused(field: str, description: str) -> InvalidRequest:
    """A request this library cannot even put on the wire, in the server's own words for such a thing."""
    return InvalidRequest(f"{field}: {description}", reason="INVALID_FIELD", violations=[Violation(field, description)])


@contextmanager
def converted(request_id: str) -> Iterator[None]:
    """Turns the transport's errors into this module's."""
    try:
        yield
    except grpc.RpcError as error:
        raise _from_call(cast("_FailedCall", error), request_id) from None


@contextmanager
def converted_aio(request_id: str) -> Iterator[None]:
    """The same for asyncio, where a call cancelled through its stream surfaces as CancelledError.

    The cancellation of the caller's own task must pass: swallowing it would break timeouts and task groups.
    """
    try:
        with converted(request_id):
            yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise Cancelled("The call was cancelled.", request_id=request_id) from None


class _FailedCall(Protocol):
    """What an RpcError offers besides being an exception, in both of gRPC's Python stacks."""

    def code(self) -> grpc.StatusCode: ...

    def details(self) -> str | None: ...

    def trailing_metadata(self) -> Sequence[tuple[str, str | bytes]] | None: ...


def _from_call(call: _FailedCall, request_id: str) -> BurstgateError:
    code = call.code()
    details = _details(call)
    info = _detail(details, error_details_pb2.ErrorInfo)
    bad_request = _detail(details, error_details_pb2.BadRequest)
    retry = _detail(details, error_details_pb2.RetryInfo)
    answered_id = next((value for key, value in call.trailing_metadata() or () if key == REQUEST_ID_KEY), request_id)
    return _CLASSES.get(code, BurstgateError)(
        call.details() or code.name,
        code=code.name,
        reason=info.reason if info else "",
        metadata=dict(info.metadata) if info else {},
        request_id=str(answered_id),
        violations=[Violation(v.field, v.description) for v in bad_request.field_violations] if bad_request else (),
        retry_after_s=retry.retry_delay.ToTimedelta().total_seconds() if retry else None,
    )


def _details(call: _FailedCall) -> status_pb2.Status:
    """The rich status; empty when the server sent none, or one that contradicts the plain status."""
    try:
        status = rpc_status.from_call(call)
    except (ValueError, DecodeError):
        status = None
    return status or status_pb2.Status()


_M = TypeVar("_M", bound=Message)


def _detail(status: status_pb2.Status, kind: type[_M]) -> _M | None:
    found = kind()
    for packed in status.details:
        if packed.Is(kind.DESCRIPTOR) and packed.Unpack(found):
            return found
    return None

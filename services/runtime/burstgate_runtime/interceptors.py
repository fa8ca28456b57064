"""The one layer around every call: errors, request ids, metrics and the line that says how it ended.

What must always hold: a caller never sees the text of an unexpected exception; a request that cannot
be decoded never reaches a handler; a fault reaches the caller whole; cancellation passes through. One
call is one task, so that what is bound to the context of a call stays there.

Handlers that take a stream of requests must read it from the iterator they are given, not from the
context, because decoding errors are raised there.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final, TypeAlias

import grpc
import structlog
from google.rpc import status_pb2
from grpc_status import rpc_status

from burstgate_runtime.faults import Fault, FaultKind
from burstgate_runtime.metrics import MethodMetrics
from burstgate_runtime.status import to_status

REQUEST_ID_HEADER: Final = "x-request-id"

_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Codes that say the server, not the caller, is at fault.
_SERVER_FAULTS = frozenset({"INTERNAL", "UNKNOWN", "DATA_LOSS", "UNAVAILABLE"})

# Generic for the type checker only, hence the quotes.
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Behavior: TypeAlias = "Callable[[Any, _Context], Any]"


class Calls:
    """Counts the running calls of some services, so that a drain can wait for exactly those."""

    def __init__(self) -> None:
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """Calls that have begun and not ended."""
        return self._running

    async def wait_idle(self) -> None:
        """Returns once no call is running."""
        await self._idle.wait()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Counts a call while the block runs."""
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler of a server; counts the calls of the named services in `calls`."""

    def __init__(self, services: frozenset[str]) -> None:
        self.calls = Calls()
        self._others = Calls()
        self._services = services
        self._guarded: dict[str, _Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Answers with the guarded handler of the method; of an unknown method, with nothing."""
        name = handler_call_details.method
        guarded = self._guarded.get(name)
        if guarded is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            service = name.rpartition("/")[0].lstrip("/")
            calls = self.calls if service in self._services else self._others
            guarded = self._guarded[name] = _Guard(name, handler, calls).handler()
        return guarded


class _Undecodable:
    """Stands for a message that could not be decoded, until code of ours may raise about it."""


class _CountedWrites:
    """A call's context, for handlers that write their responses themselves."""

    def __init__(self, context: _Context, metrics: MethodMetrics) -> None:
        self._context = context
        self._metrics = metrics

    async def write(self, response: Any) -> None:
        """Sends a response."""
        await self._context.write(response)
        self._metrics.sent.inc()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class _Guard:
    """The guarded form of one method."""

    def __init__(self, name: str, inner: _Handler, calls: Calls) -> None:
        self._name = name
        self._inner = inner
        self._calls = calls
        service, _, method = name.lstrip("/").rpartition("/")
        self._metrics = MethodMetrics.of(_type_name(inner), service, method)
        self._log = structlog.get_logger()

    def handler(self) -> _Handler:
        """Builds the handler that a server is given in place of the inner one."""
        inner = self._inner
        kind = "_".join(
            "stream" if streaming else "unary" for streaming in (inner.request_streaming, inner.response_streaming)
        )
        behavior: _Behavior = getattr(inner, kind)
        wrap = self._generator if inspect.isasyncgenfunction(behavior) else self._coroutine
        make: Callable[..., _Handler] = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            wrap(behavior),
            request_deserializer=self._decode if inner.request_deserializer else None,
            response_serializer=inner.response_serializer,
        )

    def _coroutine(self, behavior: _Behavior) -> _Behavior:
        async def call(request: Any, context: _Context) -> Any:
            async with self._watched(context):
                streams = self._inner.response_streaming
                counted: Any = _CountedWrites(context, self._metrics) if streams else context
                response = await behavior(self._received(request), counted)
                if response is not None:
                    self._metrics.sent.inc()
                elif not self._inner.response_streaming:
                    raise TypeError(f"{self._name} returned no response")
                return response

        return call

    def _generator(self, behavior: _Behavior) -> _Behavior:
        async def call(request: Any, context: _Context) -> AsyncIterator[Any]:
            async with (
                self._watched(context),
                contextlib.aclosing(behavior(self._received(request), context)) as it,
            ):
                async for response in it:
                    self._metrics.sent.inc()
                    yield response

        return call

    def _decode(self, data: bytes) -> Any:
        decode = self._inner.request_deserializer
        assert decode is not None  # noqa: S101  (only installed where there is one)
        try:
            return decode(data)
        except Exception:  # noqa: BLE001  (whatever a decoder raises, the message is at fault)
            # Raised from here it would reach the caller as UNKNOWN with the decoder's text.
            return _Undecodable()

    def _received(self, request: Any) -> Any:
        return self._each_received(request) if self._inner.request_streaming else self._one_received(request)

    async def _each_received(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            yield self._one_received(request)

    def _one_received(self, request: Any) -> Any:
        if isinstance(request, _Undecodable):
            raise Fault(
                FaultKind.INVALID_ARGUMENT,
                "UNDECODABLE_REQUEST",
                f"the request is not a valid message of {self._name}",
            )
        self._metrics.received.inc()
        return request

    @contextlib.asynccontextmanager
    async def _watched(self, context: _Context) -> AsyncIterator[None]:
        started = time.perf_counter()
        request_id = _request_id(context)
        structlog.contextvars.bind_contextvars(request_id=request_id, rpc=self._name)
        context.set_trailing_metadata(((REQUEST_ID_HEADER, request_id),))
        self._metrics.started.inc()
        code = "OK"
        with self._calls.one():
            try:
                yield
                code = _code_name(context)
            except grpc.aio.AbortError:
                code = _code_name(context)
                raise
            except (asyncio.CancelledError, GeneratorExit):
                left_s = context.time_remaining()
                code = "DEADLINE_EXCEEDED" if left_s is not None and left_s <= 0 else "CANCELLED"
                raise
            except Fault as fault:
                status = to_status(fault)
                code = fault.kind.name
                await _abort(context, status, request_id)
            except Exception:  # noqa: BLE001  (the boundary: whatever a handler raises ends here)
                code = "INTERNAL"
                self._log.exception("a handler failed")
                await _abort(context, to_status(_defect(request_id)), request_id)
            finally:
                wall_s = time.perf_counter() - started
                self._metrics.handled(code).inc()
                self._metrics.seconds.observe(wall_s)
                say = self._log.info if code in _SERVER_FAULTS else self._log.debug
                say("call ended", code=code, wall_ms=round(wall_s * 1e3, 3))


def _defect(request_id: str) -> Fault:
    return Fault(
        FaultKind.INTERNAL,
        "INTERNAL_ERROR",
        f"internal error; the server's log has the cause under request id {request_id}",
        metadata={"request_id": request_id},
    )


async def _abort(context: _Context, status: status_pb2.Status, request_id: str) -> None:
    # abort() replaces the trailing metadata that was set before, so that all of it is given here.
    rich = rpc_status.to_status(status)
    await context.abort(rich.code, rich.details, (*rich.trailing_metadata, (REQUEST_ID_HEADER, request_id)))


def _request_id(context: _Context) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID_HEADER and isinstance(value, str) and _SANE_REQUEST_ID.fullmatch(value):
            return value
    return uuid.uuid4().hex


def _code_name(context: _Context) -> str:
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else "OK"


def _type_name(handler: _Handler) -> str:
    match bool(handler.request_streaming), bool(handler.response_streaming):
        case (False, False):
            return "unary"
        case (False, True):
            return "server_stream"
        case (True, False):
            return "client_stream"
        case _:
            return "bidi_stream"

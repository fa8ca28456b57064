"""The layer around every call, on a real server and a real socket; the handlers are the test's own."""

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import grpc
import prometheus_client
import pytest
import structlog
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from burstgate.policy.v1 import policy_pb2
from burstgate_runtime.faults import Fault, FaultKind, Violation, invalid
from burstgate_runtime.interceptors import CallInterceptor
from burstgate_runtime.logs import configure_logs

SERVICE = "test.v1.TestService"
SECRET = "the password is 1234"


class Handlers:
    """One handler a behaviour; `cleaned_up` is set by the stream that is left early."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.cleaned_up = asyncio.Event()
        self.bound: dict[str, Any] = {}

    async def echo(self, request: policy_pb2.PolicyKey, context: Any) -> policy_pb2.PolicyKey:
        self.bound = structlog.contextvars.get_contextvars()
        return request

    async def fault(self, request: policy_pb2.PolicyKey, context: Any) -> policy_pb2.PolicyKey:
        raise invalid(Violation("width", "must be from 1 to 4096, got 0"))

    async def busy(self, request: policy_pb2.PolicyKey, context: Any) -> policy_pb2.PolicyKey:
        raise Fault(FaultKind.RESOURCE_EXHAUSTED, "FULL", "full", metadata={"limit": "3"}, retry_after_ms=1500)

    async def crash(self, request: policy_pb2.PolicyKey, context: Any) -> policy_pb2.PolicyKey:
        raise RuntimeError(SECRET)

    async def nothing(self, request: policy_pb2.PolicyKey, context: Any) -> None:
        return None

    async def abort(self, request: policy_pb2.PolicyKey, context: Any) -> policy_pb2.PolicyKey:
        await context.abort(grpc.StatusCode.ABORTED, "by hand")
        raise AssertionError

    async def hang(self, request: policy_pb2.PolicyKey, context: Any) -> policy_pb2.PolicyKey:
        self.began.set()
        try:
            await asyncio.sleep(60)
        finally:
            self.cleaned_up.set()
        return request

    async def crash_midway(self, request: policy_pb2.PolicyKey, context: Any) -> AsyncIterator[policy_pb2.PolicyKey]:
        yield request
        raise RuntimeError(SECRET)

    async def endless(self, request: policy_pb2.PolicyKey, context: Any) -> AsyncIterator[policy_pb2.PolicyKey]:
        try:
            while True:
                yield request
                await asyncio.sleep(0.001)
        finally:
            self.cleaned_up.set()

    async def stalled(self, request: policy_pb2.PolicyKey, context: Any) -> AsyncIterator[policy_pb2.PolicyKey]:
        large = policy_pb2.PolicyKey(target="x" * 1_000_000)
        try:
            while True:
                yield large
        finally:
            # Whoever closes the generator has to wait for this.
            await asyncio.sleep(0.05)
            self.cleaned_up.set()

    async def each(
        self, requests: AsyncIterator[policy_pb2.PolicyKey], context: Any
    ) -> AsyncIterator[policy_pb2.PolicyKey]:
        async for request in requests:
            yield request

    async def written(self, request: policy_pb2.PolicyKey, context: Any) -> None:
        await context.write(request)
        raise Fault(FaultKind.UNAVAILABLE, "GONE", "gone")


class Bench:
    def __init__(self, channel: grpc.aio.Channel, handlers: Handlers, interceptor: CallInterceptor) -> None:
        self.handlers, self.interceptor, self._channel = handlers, interceptor, channel

    def unary(self, method: str) -> Any:
        return self._channel.unary_unary(f"/{SERVICE}/{method}")

    def stream(self, method: str) -> Any:
        return self._channel.unary_stream(f"/{SERVICE}/{method}")

    def bidi(self, method: str) -> Any:
        return self._channel.stream_stream(f"/{SERVICE}/{method}")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    handlers, interceptor = Handlers(), CallInterceptor(frozenset({SERVICE}))
    codec: Any = {
        "request_deserializer": policy_pb2.PolicyKey.FromString,
        "response_serializer": policy_pb2.PolicyKey.SerializeToString,
    }
    methods: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(getattr(handlers, name), **codec)
        for name in ("echo", "fault", "busy", "crash", "nothing", "abort", "hang")
    }
    for name in ("crash_midway", "endless", "stalled", "written"):
        methods[name] = grpc.unary_stream_rpc_method_handler(getattr(handlers, name), **codec)
    methods["each"] = grpc.stream_stream_rpc_method_handler(handlers.each, **codec)
    server = grpc.aio.server(interceptors=(interceptor,))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Bench(channel, handlers, interceptor)
    await server.stop(None)


REQUEST = policy_pb2.PolicyKey(target="t").SerializeToString()
# Field 1 (a string) holding a byte that is no UTF-8.
NOT_UTF8 = b"\x0a\x01\xff"


async def failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def stream_failure(call: Any) -> tuple[list[bytes], grpc.aio.AioRpcError]:
    got: list[bytes] = []
    try:
        async for message in call:
            got.append(message)  # noqa: PERF401  (a comprehension would lose what came before the error)
    except grpc.aio.AioRpcError as error:
        return got, error
    raise AssertionError("the stream ended well")


def details(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    status = rpc_status.from_call(error)
    assert status is not None
    found: dict[str, Any] = {}
    for packed in status.details:
        for kind in (
            error_details_pb2.ErrorInfo,
            error_details_pb2.BadRequest,
            error_details_pb2.RetryInfo,
        ):
            detail = kind()
            if packed.Unpack(detail):
                found[kind.__name__] = detail
    return found


async def test_a_fault_reaches_the_caller_with_reason_and_violation(bench: Bench) -> None:
    error = await failure(bench.unary("fault")(REQUEST))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "width must be from 1 to 4096, got 0"
    found = details(error)
    assert (found["ErrorInfo"].reason, found["ErrorInfo"].domain) == ("INVALID_FIELD", "burstgate.dev")
    (violation,) = found["BadRequest"].field_violations
    assert (violation.field, violation.description) == ("width", "must be from 1 to 4096, got 0")


async def test_a_full_server_says_when_to_come_back(bench: Bench) -> None:
    error = await failure(bench.unary("busy")(REQUEST))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert details(error)["RetryInfo"].retry_delay.ToMilliseconds() == 1500
    assert dict(details(error)["ErrorInfo"].metadata) == {"limit": "3"}


@pytest.mark.parametrize("method", ["crash", "nothing"])
async def test_an_unexpected_exception_is_internal_without_its_text(bench: Bench, method: str) -> None:
    error = await failure(bench.unary(method)(REQUEST, metadata=(("x-request-id", "abc"),)))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "internal error; the server's log has the cause under request id abc"
    assert SECRET not in str(error.trailing_metadata())


async def test_an_exception_in_mid_stream_is_internal_without_its_text(bench: Bench) -> None:
    got, error = await stream_failure(bench.stream("crash_midway")(REQUEST))
    assert got == [REQUEST]
    assert error.code() is grpc.StatusCode.INTERNAL
    assert SECRET not in str(error)


async def test_a_fault_after_a_written_message_ends_the_stream_with_its_status(bench: Bench) -> None:
    got, error = await stream_failure(bench.stream("written")(REQUEST))
    assert (got, error.code()) == ([REQUEST], grpc.StatusCode.UNAVAILABLE)
    assert details(error)["ErrorInfo"].reason == "GONE"


async def test_an_undecodable_request_never_reaches_a_unary_handler(bench: Bench) -> None:
    error = await failure(bench.unary("echo")(NOT_UTF8))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details(error)["ErrorInfo"].reason == "UNDECODABLE_REQUEST"
    assert bench.handlers.bound == {}


async def test_an_undecodable_message_ends_a_stream_after_the_good_ones(bench: Bench) -> None:
    got, error = await stream_failure(bench.bidi("each")(iter([REQUEST, NOT_UTF8, REQUEST])))
    assert got == [REQUEST]
    assert details(error)["ErrorInfo"].reason == "UNDECODABLE_REQUEST"


async def test_a_handlers_own_abort_passes_through(bench: Bench) -> None:
    error = await failure(bench.unary("abort")(REQUEST))
    assert (error.code(), error.details()) == (grpc.StatusCode.ABORTED, "by hand")


async def test_a_sane_request_id_is_kept_bound_and_returned(bench: Bench) -> None:
    call = bench.unary("echo")(REQUEST, metadata=(("x-request-id", "job-7.a_B"),))
    await call
    assert dict(await call.trailing_metadata())["x-request-id"] == "job-7.a_B"
    assert bench.handlers.bound["request_id"] == "job-7.a_B"


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "{}"])
async def test_any_other_request_id_is_replaced_by_a_fresh_one(bench: Bench, given: str) -> None:
    seen = set()
    for _ in range(2):
        call = bench.unary("echo")(REQUEST, metadata=(("x-request-id", given),))
        await call
        seen.add(dict(await call.trailing_metadata())["x-request-id"])
    assert len(seen) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", value) for value in seen)


async def test_cancelling_a_unary_call_runs_the_handlers_cleanup(bench: Bench) -> None:
    call = bench.unary("hang")(REQUEST)
    async with asyncio.timeout(2):
        await bench.handlers.began.wait()
    call.cancel()
    async with asyncio.timeout(2):
        await bench.handlers.cleaned_up.wait()
    async with asyncio.timeout(2):
        await bench.interceptor.calls.wait_idle()


async def test_leaving_a_stream_runs_the_generators_cleanup_before_the_call_counts_as_ended(
    bench: Bench,
) -> None:
    call = bench.stream("endless")(REQUEST)
    await call.read()
    assert bench.interceptor.calls.running == 1
    call.cancel()
    async with asyncio.timeout(2):
        await bench.interceptor.calls.wait_idle()
    assert bench.handlers.cleaned_up.is_set()


async def test_a_client_that_stops_reading_and_leaves_runs_the_generators_cleanup_too(bench: Bench) -> None:
    call = bench.stream("stalled")(REQUEST)
    await call.read()
    # Flow control now holds the server at a write, outside of the handler's own code.
    await asyncio.sleep(0.2)
    call.cancel()
    async with asyncio.timeout(2):
        await bench.interceptor.calls.wait_idle()
    assert bench.handlers.cleaned_up.is_set()


async def test_an_unknown_method_is_unimplemented_and_gets_no_metric(bench: Bench) -> None:
    error = await failure(bench.unary("no_such_method")(REQUEST))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert b"no_such_method" not in prometheus_client.generate_latest()


def sample(name: str, method: str, **labels: str) -> float:
    found = prometheus_client.REGISTRY.get_sample_value(
        name, {"grpc_service": SERVICE, "grpc_method": method, **labels}
    )
    return found or 0.0


@pytest.mark.parametrize(
    ("method", "code"),
    [("echo", "OK"), ("fault", "INVALID_ARGUMENT"), ("crash", "INTERNAL"), ("abort", "ABORTED")],
)
async def test_every_call_is_counted_once_under_the_code_it_ended_with(bench: Bench, method: str, code: str) -> None:
    def handled() -> float:
        return sample("grpc_server_handled_total", method, grpc_type="unary", grpc_code=code)

    before = handled()
    await asyncio.gather(bench.unary(method)(REQUEST), return_exceptions=True)
    await bench.interceptor.calls.wait_idle()
    assert handled() == before + 1


async def test_an_expired_call_is_counted_as_deadline_exceeded(bench: Bench) -> None:
    error = await failure(bench.unary("hang")(REQUEST, timeout=0.05))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(2):
        await bench.interceptor.calls.wait_idle()
    assert sample("grpc_server_handled_total", "hang", grpc_type="unary", grpc_code="DEADLINE_EXCEEDED") >= 1


async def test_stream_messages_are_counted_in_both_directions(bench: Bench) -> None:
    def count(direction: str) -> float:
        return sample(f"grpc_server_msg_{direction}_total", "each", grpc_type="bidi_stream")

    before = count("received"), count("sent")
    assert [m async for m in bench.bidi("each")(iter([REQUEST] * 3))] == [REQUEST] * 3
    assert (count("received"), count("sent")) == (before[0] + 3, before[1] + 3)


async def test_messages_a_handler_writes_itself_are_counted(bench: Bench) -> None:
    before = sample("grpc_server_msg_sent_total", "written", grpc_type="server_stream")
    got, _ = await stream_failure(bench.stream("written")(REQUEST))
    after = sample("grpc_server_msg_sent_total", "written", grpc_type="server_stream")
    assert after - before == len(got) > 0


async def test_a_crash_is_logged_with_its_traceback_and_request_id(bench: Bench) -> None:
    written = io.StringIO()
    configure_logs("info", "json", written)
    await failure(bench.unary("crash")(REQUEST, metadata=(("x-request-id", "r1"),)))
    # The caller has its answer before the server has said its last word about it.
    await bench.interceptor.calls.wait_idle()
    crash, ended = (json.loads(line) for line in written.getvalue().splitlines())
    assert (crash["event"], crash["level"], crash["request_id"]) == ("a handler failed", "error", "r1")
    assert crash["exception"][0]["exc_value"] == SECRET
    assert (ended["event"], ended["code"], ended["level"]) == ("call ended", "INTERNAL", "info")


async def test_a_callers_mistake_is_not_logged_at_info(bench: Bench) -> None:
    written = io.StringIO()
    configure_logs("info", "json", written)
    await failure(bench.unary("fault")(REQUEST))
    await bench.interceptor.calls.wait_idle()
    assert written.getvalue() == ""

"""A real gRPC server in this process whose answers a test scripts, and which records what it was asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import Default
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from burstgate.decode.v1 import decode_pb2, decode_pb2_grpc
from burstgate.policy.v1 import admin_pb2, admin_pb2_grpc, policy_pb2

Context = grpc.aio.ServicerContext
Script = Callable[[decode_pb2.GenerateRequest, Context], AsyncIterator[decode_pb2.GenerateResponse]]

_START_STOP_S = 20


@dataclass(frozen=True)
class Asked:
    """One call as the server saw it."""

    method: str
    request: Any
    metadata: dict[str, str]
    time_remaining_s: float | None


def delta(index: int = 0, text: str = "", token_ids: tuple[int, ...] = (), **fields: Any) -> Any:
    return decode_pb2.GenerateResponse(
        delta=decode_pb2.GenerateDelta(index=index, text=text, token_ids=token_ids, **fields)
    )


def completion(index: int = 0, **fields: Any) -> Any:
    return decode_pb2.GenerateResponse(completion=decode_pb2.GenerateCompletion(index=index, **fields))


async def two_words(
    request: decode_pb2.GenerateRequest, context: Context
) -> AsyncIterator[decode_pb2.GenerateResponse]:
    """The answer the server gives when a test scripts none."""
    for index in range(max(request.n, 1)):
        yield delta(index, "Hello", (11,), drafted=[False], round=1, draft_width=1, mode=1, reason=18)
        yield delta(index, " world", (12, 13), drafted=[True, False], round=2, draft_width=2, mode=2, reason=6)
        yield completion(
            index,
            finish_reason=decode_pb2.FINISH_REASON_EOS,
            usage=decode_pb2.Usage(prompt_tokens=5, completion_tokens=3, cached_prompt_tokens=2),
            seed=index,
        )


@dataclass
class Server:
    """What a test scripts and reads."""

    address: str = ""
    generate: Script = two_words
    verdicts: list[Any] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)
    """Set when a generation's handler ends before its script did."""

    def note(self, method: str, request: Any, context: Context) -> None:
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        self.asked.append(Asked(method, request, metadata, context.time_remaining()))


class _Decode(decode_pb2_grpc.DecodeServiceServicer):
    def __init__(self, server: Server) -> None:
        self._server = server

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self._server.note("Generate", request, context)
        finished = False
        try:
            async for message in self._server.generate(request, context):
                yield message
            finished = True
        finally:
            if not finished:
                self._server.left.set()

    async def CountTokens(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._server.note("CountTokens", request, context)
        return decode_pb2.CountTokensResponse(prompt_tokens=2, ids=[7, 8] if request.return_ids else [])

    async def GetModel(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._server.note("GetModel", request, context)
        return decode_pb2.GetModelResponse(
            target=decode_pb2.ModelInfo(name="small", eos_token_ids=[2]),
            hardware="cpu-2c",
            backend="cpu",
            costs=[policy_pb2.CostCell(width=1, draft_width=4, depth_tokens=64, verify_ms=78.0, draft_ms=3.0)],
        )

    async def GetServerInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._server.note("GetServerInfo", request, context)
        response = decode_pb2.GetServerInfoResponse(version="1.2.3", max_active_rows=8)
        response.started_at.FromSeconds(1_700_000_000)
        return response


class _Admin(admin_pb2_grpc.PolicyAdminServiceServicer):
    def __init__(self, server: Server) -> None:
        self._server = server

    async def GetVerdict(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._server.note("GetVerdict", request, context)
        for verdict in self._server.verdicts:
            if verdict.snapshot.key_hash == request.key_hash:
                return admin_pb2.GetVerdictResponse(verdict=verdict)
        return await context.abort(grpc.StatusCode.NOT_FOUND, "no such verdict")

    async def ListVerdicts(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._server.note("ListVerdicts", request, context)
        begin = int(request.page_token or 0)
        end = begin + request.page_size
        return admin_pb2.ListVerdictsResponse(
            verdicts=self._server.verdicts[begin:end],
            next_page_token=str(end) if end < len(self._server.verdicts) else "",
        )

    async def WatchVerdicts(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self._server.note("WatchVerdicts", request, context)
        try:
            for number, verdict in enumerate(self._server.verdicts, start=1):
                yield admin_pb2.WatchVerdictsResponse(verdict=verdict, resume_token=f"e.{number}")
            await asyncio.Event().wait()
        finally:
            self._server.left.set()

    async def PinVerdict(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._server.note("PinVerdict", request, context)
        pin = policy_pb2.Pin(speculate=request.speculate, reason=request.reason, author=request.author)
        pin.pinned_at.FromSeconds(1_700_000_000)
        if request.HasField("ttl"):
            pin.expires_at.FromSeconds(1_700_000_000 + request.ttl.seconds)
        snapshot = policy_pb2.PolicySnapshot(key_hash=request.key_hash, pin=pin)
        return admin_pb2.PinVerdictResponse(verdict=admin_pb2.VerdictView(snapshot=snapshot))

    async def UnpinVerdict(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._server.note("UnpinVerdict", request, context)
        snapshot = policy_pb2.PolicySnapshot(key_hash=request.key_hash)
        return admin_pb2.UnpinVerdictResponse(verdict=admin_pb2.VerdictView(snapshot=snapshot))

    async def ResetVerdict(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._server.note("ResetVerdict", request, context)
        snapshot = policy_pb2.PolicySnapshot(key_hash=request.key_hash, state=policy_pb2.POLICY_STATE_PROFILING)
        return admin_pb2.ResetVerdictResponse(verdict=admin_pb2.VerdictView(snapshot=snapshot))

    async def ExportHints(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._server.note("ExportHints", request, context)
        return admin_pb2.ExportHintsResponse(hints=['{"version": 4}'])

    async def ImportHints(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._server.note("ImportHints", request, context)
        return admin_pb2.ImportHintsResponse(
            results=[admin_pb2.ImportedHint(key_hash=hint, stored=request.overwrite) for hint in request.hints]
        )

    async def ExplainGrant(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._server.note("ExplainGrant", request, context)
        rule = admin_pb2.RuleAnswer(rule="gate", decided=True, numbers={"plain": 2.0}, answer="it pays")
        return admin_pb2.ExplainGrantResponse(grant=policy_pb2.BurstGrant(draft_width=4), rules=[rule])

    async def ReplayTrace(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._server.note("ReplayTrace", request, context)
        step = admin_pb2.ReplayedStep(recorded_mode=1, recorded_draft_width=1, mode=2, draft_width=4, reason=6)
        return admin_pb2.ReplayTraceResponse(steps=[step], recorded_ms=20.0, replayed_ms=10.0, tokens=3)


@pytest.fixture
def server() -> Iterator[Server]:
    """Runs on a thread of its own, so that blocking clients can be tested against it."""
    scripted = Server()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="scripted-server")
    thread.start()

    async def start() -> grpc.aio.Server:
        grpc_server = grpc.aio.server()
        decode_pb2_grpc.add_DecodeServiceServicer_to_server(_Decode(scripted), grpc_server)
        admin_pb2_grpc.add_PolicyAdminServiceServicer_to_server(_Admin(scripted), grpc_server)
        servicer = health.aio.HealthServicer()
        await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        await servicer.set("asleep", health_pb2.HealthCheckResponse.NOT_SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, grpc_server)
        scripted.address = f"127.0.0.1:{grpc_server.add_insecure_port('127.0.0.1:0')}"
        await grpc_server.start()
        return grpc_server

    grpc_server = _on(loop, start())
    try:
        yield scripted
    finally:
        _on(loop, grpc_server.stop(None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_START_STOP_S)
        loop.close()


@pytest.fixture
def abort_with() -> Callable[..., Awaitable[None]]:
    """Ends a call with a rich status."""

    async def abort(context: Context, code: int, message: str, *details: Any) -> None:
        status = status_pb2.Status(code=code, message=message)
        for detail in details:
            status.details.add().Pack(detail)
        await context.abort_with_status(rpc_status.to_status(status))

    return abort


@pytest.fixture
def rpc_methods() -> Callable[[str], set[str]]:
    """Names of the RPCs of a service of the contract."""

    def names(service: str) -> set[str]:
        return {method.name for method in Default().FindServiceByName(service).methods}

    return names


@pytest.fixture
def details() -> Any:
    """Detail messages of google.rpc."""
    return error_details_pb2


@pytest.fixture
def codes() -> Any:
    """Status numbers of google.rpc."""
    return code_pb2


@pytest.fixture
def messages() -> Any:
    """Builders of stream messages."""

    class Builders:
        delta = staticmethod(delta)
        completion = staticmethod(completion)

    return Builders


def _on(loop: asyncio.AbstractEventLoop, work: Any) -> Any:
    future: Future[Any] = asyncio.run_coroutine_threadsafe(work, loop)
    return future.result(_START_STOP_S)

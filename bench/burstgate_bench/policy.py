"""What a decision costs: `python -m burstgate_bench.policy`.

Four questions, each answered by its own numbers in one run:

* the time of `DecideBurst` inside the service, with the replay of 16 steps: from the bytes of the request
  to the bytes of the answer, in this process, with no network;
* what the whole call costs against an empty call on the same channel, over TCP and a Unix socket, unary
  and on a stream; the two are asked in turn, so that whatever else the machine does slows both;
* how many decisions a second one core gives;
* whether memory grows with the number of decisions.

The empty call is served by the same server through the same interceptors and answers with an empty
message. `unary_ratio_*` and `stream_ratio_*` divide by an empty *unary* call: what an instance would
pay for asking anything at all. `stream_ratio_*_of_empty_stream` is the stricter comparison of a
question on the stream with an empty exchange on a stream. The last line is one JSON object. Times are
wall times unless a name says cpu.
"""

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc

from burstgate.policy.v1 import policy_pb2, policy_pb2_grpc

STEPS = 16
"""Steps of an outcome: twice what a grant covers, as when an outcome waited for the next call."""

_EMPTY = "burstgate.bench.v1.EmptyService"
_WARM_UP = 300


@dataclass(frozen=True, slots=True)
class Times:
    """Times of one kind of call, in microseconds."""

    p50_us: float
    p99_us: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Times":
        """Summarises measured times."""
        ordered = sorted(seconds)
        return cls(ordered[len(ordered) // 2] * 1e6, ordered[int(len(ordered) * 0.99)] * 1e6)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m burstgate_bench.policy", description="What a decision costs.")
    parser.add_argument("--decisions", type=int, default=20_000, help="decisions timed inside the service")
    parser.add_argument("--calls", type=int, default=2_000, help="calls of each kind over each transport")
    parser.add_argument("--memory-decisions", type=int, default=100_000, help="decisions watched for growth")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    print(f"load average {load_before:.2f} on {os.cpu_count()} cores before the run")

    inside = asyncio.run(_inside(options.decisions))
    print(
        f"inside, {STEPS} steps replayed: "
        f"wall p50 {inside['server_p50_us']:.0f} us, p99 {inside['server_p99_us']:.0f} us; "
        f"cpu p50 {inside['server_cpu_p50_us']:.0f} us, p99 {inside['server_cpu_p99_us']:.0f} us; "
        f"{inside['decisions_per_core_second']:.0f} decisions a second of one core"
    )
    growth = asyncio.run(_growth(options.memory_decisions))
    print(f"memory: {growth:.4f} bytes a decision over {options.memory_decisions} decisions")

    results: dict[str, float] = dict(inside)
    with _server() as addresses:
        for transport, address in addresses.items():
            times = asyncio.run(_calls(address, options.calls))
            for kind, measured in times.items():
                results[f"{kind}_p50_us_{transport}"] = measured.p50_us
                results[f"{kind}_p99_us_{transport}"] = measured.p99_us
            empty_us = times["empty_unary"].p50_us
            results[f"unary_ratio_{transport}"] = times["unary"].p50_us / empty_us
            results[f"stream_ratio_{transport}"] = times["stream"].p50_us / empty_us
            of_empty_stream = times["stream"].p50_us / times["empty_stream"].p50_us
            results[f"stream_ratio_{transport}_of_empty_stream"] = of_empty_stream
            measured_us = ", ".join(f"{kind} {one.p50_us:.0f} ({one.p99_us:.0f})" for kind, one in times.items())
            print(f"over {transport}, p50 (p99) in us: {measured_us}")
    results["bytes_per_decision"] = growth
    results["load_average_before"] = load_before
    results["load_average_after"] = os.getloadavg()[0]
    print(json.dumps({name: round(value, 4) for name, value in results.items()}))


# --- inside the service


async def _inside(decisions: int) -> dict[str, float]:
    """Times of the handler with decoding and encoding, as the server runs it."""
    decide, requests = await _handler()
    walls: list[float] = []
    cpus: list[float] = []
    gc.collect()
    for number in range(decisions + _WARM_UP):
        content = requests(number + 1)
        cpu, wall = time.thread_time(), time.perf_counter()
        request = policy_pb2.DecideBurstRequest.FromString(content)
        (await decide(request)).SerializeToString()
        wall_s, cpu_s = time.perf_counter() - wall, time.thread_time() - cpu
        if number >= _WARM_UP:
            walls.append(wall_s)
            cpus.append(cpu_s)
    wall_times, cpu_times = Times.of(walls), Times.of(cpus)
    return {
        "server_p50_us": wall_times.p50_us,
        "server_p99_us": wall_times.p99_us,
        "server_cpu_p50_us": cpu_times.p50_us,
        "server_cpu_p99_us": cpu_times.p99_us,
        "decisions_per_core_second": 1.0 / statistics.fmean(cpus),
    }


async def _growth(decisions: int) -> float:
    """Bytes that a decision leaves behind, on average over many."""
    decide, requests = await _handler()
    started_bytes = 0
    for number in range(decisions):
        if number == decisions // 5:
            # Caches and pools have their size by now.
            gc.collect()
            started_bytes = _rss_bytes()
        await decide(policy_pb2.DecideBurstRequest.FromString(requests(number + 1)))
    gc.collect()
    return max(_rss_bytes() - started_bytes, 0) / (decisions * 0.8)


Decide = Callable[[policy_pb2.DecideBurstRequest], Awaitable[policy_pb2.DecideBurstResponse]]


async def _handler() -> tuple[Decide, Callable[[int], bytes]]:
    """The service's handler with one open lane, and the bytes of its n-th request."""
    servicer = _servicer()
    opened = await servicer.OpenLane(_open_request(), None)
    template = _question(opened.lane_id)

    def content(sequence: int) -> bytes:
        template.outcomes[0].sequence = sequence
        return template.SerializeToString()

    return lambda request: servicer.DecideBurst(request, None), content


def _servicer() -> Any:
    # Imported late, so that the parent of the server process can set what the gRPC core reads first.
    from burstgate_policy.config import PolicySettings
    from burstgate_policy.hints.files import FileHintStore
    from burstgate_policy.hints.ledger import HintLedger
    from burstgate_policy.lane_directory import LaneDirectory
    from burstgate_policy.lanes import LaneTable
    from burstgate_policy.pairings import Pairings
    from burstgate_policy.servicer import PolicyServicer
    from burstgate_runtime.logs import configure_logs
    from burstgate_runtime.settings import load_settings

    configure_logs("warning", "json")
    settings = load_settings(PolicySettings)
    ids = itertools.count(1)
    lanes = LaneTable(clock=time.monotonic, new_id=lambda: f"{next(ids):032x}", max_lanes=256, ttl_s=900)
    ledger = HintLedger(FileHintStore(None), clock=time.time, refresh_s=5.0)
    pairings = Pairings(settings, lanes, ledger, clock=time.time)
    return PolicyServicer(settings, lanes, pairings, LaneDirectory(None, ttl_s=900), clock=time.time)


# --- over the wire


@contextlib.contextmanager
def _server() -> Iterator[dict[str, str]]:
    """A policy service with an empty service beside it, in a process of its own, on TCP and on a Unix socket."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        process = context.Process(target=_serve, args=(theirs, folder), daemon=True)
        process.start()
        try:
            yield ours.recv()
        finally:
            ours.send("stop")
            process.join(10)
            if process.is_alive():
                process.kill()


def _serve(pipe: Connection, folder: str) -> None:
    async def run() -> None:
        from burstgate_policy.config import PolicySettings
        from burstgate_runtime.listen import parse_listen
        from burstgate_runtime.serving import GrpcService
        from burstgate_runtime.settings import load_settings

        servicer = _servicer()

        def register(server: grpc.aio.Server) -> None:
            policy_pb2_grpc.add_PolicyServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_EMPTY, _empty_handlers()),))

        services = [
            GrpcService(
                settings=load_settings(PolicySettings),
                listen=parse_listen(listen),
                register=register,
                service_names=("burstgate.policy.v1.PolicyService", _EMPTY),
                name="bench",
                version="0",
            )
            for listen in ("127.0.0.1:0", f"unix:{Path(folder) / 'bench.sock'}")
        ]
        for service in services:
            await service.start()
        pipe.send(dict(zip(("tcp", "uds"), (service.bound_address for service in services), strict=True)))
        await asyncio.to_thread(pipe.recv)

    asyncio.run(run())
    os._exit(0)


def _empty_handlers() -> dict[str, Any]:
    async def call(request: policy_pb2.ReportBurstResponse, context: Any) -> policy_pb2.ReportBurstResponse:
        return _NOTHING

    async def stream(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[policy_pb2.ReportBurstResponse]:
        async for _ in requests:
            yield _NOTHING

    read, write = policy_pb2.ReportBurstResponse.FromString, policy_pb2.ReportBurstResponse.SerializeToString
    return {
        "Call": grpc.unary_unary_rpc_method_handler(call, read, write),
        "Stream": grpc.stream_stream_rpc_method_handler(stream, read, write),
    }


_NOTHING = policy_pb2.ReportBurstResponse()


async def _calls(address: str, calls: int) -> dict[str, Times]:
    """Times of the four kinds of call on one channel."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = policy_pb2_grpc.PolicyServiceStub(channel)  # type: ignore[no-untyped-call]
        empty: Any = channel.unary_unary(f"/{_EMPTY}/Call", _write_nothing, _read_nothing)
        # A lane for each kind: the number of an outcome counts on its lane.
        question = _question((await stub.OpenLane(_open_request())).lane_id)
        other = _question((await stub.OpenLane(_open_request())).lane_id)
        streamed = policy_pb2.StreamBurstsRequest(
            lane_id=other.lane_id, situation=other.situation, outcomes=other.outcomes
        )
        decisions: Any = stub.StreamBursts()
        nothings: Any = channel.stream_stream(f"/{_EMPTY}/Stream", _write_nothing, _read_nothing)()

        async def ask() -> None:
            await stub.DecideBurst(question, timeout=5)

        async def ask_nothing() -> None:
            await empty(_NOTHING, timeout=5)

        async def ask_on_stream() -> None:
            await decisions.write(streamed)
            await decisions.read()

        async def ask_nothing_on_stream() -> None:
            await nothings.write(_NOTHING)
            await nothings.read()

        kinds = {
            "empty_unary": ask_nothing,
            "unary": ask,
            "empty_stream": ask_nothing_on_stream,
            "stream": ask_on_stream,
        }
        times = await _in_turn(kinds, [question, streamed], calls)
        await decisions.done_writing()
        await nothings.done_writing()
        return times


async def _in_turn(
    kinds: Mapping[str, Callable[[], Awaitable[None]]], questions: Sequence[Any], calls: int
) -> dict[str, Times]:
    """Calls every kind in turn, in an order that moves on, so that none always follows the same one."""
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    order = list(kinds)
    for number in range(calls + _WARM_UP):
        for question in questions:
            question.outcomes[0].sequence = number + 1
        order.append(order.pop(0))
        for kind in order if number % 2 else reversed(order):
            started = time.perf_counter()
            await kinds[kind]()
            seconds[kind].append(time.perf_counter() - started)
    return {kind: Times.of(times[_WARM_UP:]) for kind, times in seconds.items()}


def _write_nothing(message: policy_pb2.ReportBurstResponse) -> bytes:
    return message.SerializeToString()


def _read_nothing(content: bytes) -> policy_pb2.ReportBurstResponse:
    return policy_pb2.ReportBurstResponse.FromString(content)


# --- what is asked


def _open_request() -> policy_pb2.OpenLaneRequest:
    costs = [
        policy_pb2.CostCell(width=1, draft_width=k, depth_tokens=64, verify_ms=68.0 + 3.0 * k, draft_ms=2.0 * (k - 1))
        for k in (1, 2, 4, 6, 8)
    ]
    return policy_pb2.OpenLaneRequest(
        key=policy_pb2.PolicyKey(target="target", drafter="drafter", hardware="bench", draft_width=8),
        capabilities=policy_pb2.LaneCapabilities(batchable=True, max_width=8, drafter_kind="mtp_head"),
        costs=costs,
        instance_id="bench",
    )


def _question(lane_id: str) -> policy_pb2.DecideBurstRequest:
    """A lane in the middle of a conversation, whose last burst ran rounds."""
    step = policy_pb2.StepRecord(
        mode=policy_pb2.BURST_MODE_SPECULATIVE,
        draft_width=4,
        width=1,
        depth_tokens=300,
        emitted=3,
        proposed=3,
        accepted_by_position=[1, 1],
        draft_ms=6.0,
        verify_ms=78.0,
        overhead_ms=1.0,
        wall_ms=85.0,
    )
    situation = policy_pb2.Situation(width=1, depth_tokens=316, min_emitted_tokens=100, eligible=True)
    outcome = policy_pb2.BurstOutcome(grant_id=f"{lane_id}:1", sequence=1, steps=[step] * STEPS)
    return policy_pb2.DecideBurstRequest(lane_id=lane_id, situation=situation, outcomes=[outcome])


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()

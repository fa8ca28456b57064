"""The life of a server: what is bound, how healthy it says it is, and the order it stops in."""

import asyncio
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from burstgate_runtime.listen import parse_listen
from burstgate_runtime.serving import GrpcService, ServeError
from burstgate_runtime.settings import ServiceSettings, load_settings

SERVICE = "test.v1.Slow"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Slow:
    """One call that runs for the seconds its request names, and says whether it was let finish."""

    def __init__(self) -> None:
        self.finished: list[bool] = []

    async def wait(self, request: bytes, context: Any) -> bytes:
        try:
            await asyncio.sleep(float(request))
        except asyncio.CancelledError:
            # What a handler gives back after it was cancelled takes a moment too.
            await asyncio.sleep(0.05)
            self.finished.append(False)
            raise
        self.finished.append(True)
        return b"done"

    def register(self, server: grpc.aio.Server) -> None:
        methods: dict[str, Any] = {"wait": grpc.unary_unary_rpc_method_handler(self.wait)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))


Make = Callable[..., GrpcService]


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
async def make(slow: Slow) -> AsyncIterator[Make]:
    made: list[GrpcService] = []

    def one(listen: str = "127.0.0.1:0", **settings: Any) -> GrpcService:
        service = GrpcService(
            settings=load_settings(ServiceSettings, **settings),
            listen=parse_listen(listen),
            register=slow.register,
            service_names=[SERVICE],
            name="test",
            version="1",
        )
        made.append(service)
        return service

    yield one
    for service in made:
        stop = asyncio.Event()
        stop.set()
        await service.run_until_stopped(stop)


def wait_call(channel: grpc.aio.Channel) -> Any:
    return channel.unary_unary(f"/{SERVICE}/wait")


async def status(channel: grpc.aio.Channel, service: str = "") -> int:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), wait_for_ready=True, timeout=5)
    return int(answer.status)


@pytest.mark.parametrize("kind", ["tcp", "tcp6", "unix"])
async def test_health_follows_the_service_over_every_kind_of_address(make: Make, tmp_path: Path, kind: str) -> None:
    service = make({"tcp": "127.0.0.1:0", "tcp6": "[::1]:0", "unix": f"unix:{tmp_path}/s"}[kind])
    await service.start()
    async with grpc.aio.insecure_channel(service.bound_address) as channel:
        assert [await status(channel), await status(channel, SERVICE)] == [NOT_SERVING, NOT_SERVING]
        await service.set_serving("", True)
        assert [await status(channel), await status(channel, SERVICE)] == [SERVING, SERVING]
        await service.set_serving(SERVICE, False)
        assert [await status(channel), await status(channel, SERVICE)] == [SERVING, NOT_SERVING]


async def test_a_port_in_use_is_refused_with_the_address_and_the_cause(make: Make) -> None:
    first = make()
    await first.start()
    with pytest.raises(ServeError, match=rf"^cannot listen on {first.bound_address}: Address already in use$"):
        await make(first.bound_address).start()


async def test_a_socket_in_use_is_refused_and_its_server_goes_on(make: Make, tmp_path: Path) -> None:
    first = make(f"unix:{tmp_path}/s")
    await first.start()
    with pytest.raises(ServeError, match="another process answers there"):
        await make(f"unix:{tmp_path}/s").start()
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/s") as channel:
        assert await status(channel) == NOT_SERVING


async def test_metrics_are_served_until_the_service_stops(make: Make, free_port: int) -> None:
    service = make(metrics_listen=f"127.0.0.1:{free_port}")
    await service.start()
    url = f"http://127.0.0.1:{free_port}/metrics"
    body = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=5).read())
    assert b"grpc_server_handling_seconds" in body
    with pytest.raises(ServeError, match=rf"^cannot serve metrics on 127.0.0.1:{free_port}: Address already"):
        await make(metrics_listen=f"127.0.0.1:{free_port}").start()
    stop = asyncio.Event()
    stop.set()
    await service.run_until_stopped(stop)
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(urllib.request.urlopen, url, timeout=5)


async def drain(service: GrpcService, seconds: str, **run: Any) -> tuple[Any, bool, float]:
    """Stops the service while a call of so many seconds runs; returns its end, the result, the wall time."""
    await service.start()
    await service.set_serving("", True)
    stop = asyncio.Event()
    running = asyncio.create_task(service.run_until_stopped(stop, **run))
    async with grpc.aio.insecure_channel(service.bound_address) as channel:
        call = wait_call(channel)(seconds.encode())
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        started = time.monotonic()
        stop.set()
        assert (await watch.read()).status == NOT_SERVING
        ends: Any = await asyncio.gather(call, return_exceptions=True)
        return ends[0], await running, time.monotonic() - started


async def test_a_running_call_finishes_and_a_health_watcher_does_not_hold_the_drain(make: Make, slow: Slow) -> None:
    end, complete, wall_s = await drain(make(drain_timeout_s=20), "0.3")
    assert (end, complete, slow.finished) == (b"done", True, [True])
    assert wall_s < 3


async def test_a_call_longer_than_the_drain_is_cut_off_and_its_cleanup_awaited(make: Make, slow: Slow) -> None:
    finished_before_drain_hook: list[bool] = []

    async def on_drain() -> None:
        finished_before_drain_hook.extend(slow.finished)

    end, complete, wall_s = await drain(make(drain_timeout_s=0.3), "30", on_drain=on_drain)
    assert isinstance(end, grpc.aio.AioRpcError)
    assert end.code() is grpc.StatusCode.UNAVAILABLE
    assert (complete, finished_before_drain_hook) == (True, [False])
    assert wall_s < 5


async def test_new_calls_are_refused_while_draining(make: Make) -> None:
    service = make(drain_timeout_s=5)
    await service.start()
    stop = asyncio.Event()
    running = asyncio.create_task(service.run_until_stopped(stop))
    async with (
        grpc.aio.insecure_channel(service.bound_address) as channel,
        grpc.aio.insecure_channel(service.bound_address, [("grpc.use_local_subchannel_pool", 1)]) as late,
    ):
        call = wait_call(channel)(b"0.5")
        await asyncio.sleep(0.1)
        stop.set()
        await asyncio.sleep(0.1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await wait_call(late)(b"0")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await call == b"done"
        await running


async def test_what_fails_in_the_drain_hook_is_not_swallowed(make: Make) -> None:
    async def on_drain() -> None:
        raise OSError("disk full")

    service = make()
    await service.start()
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(OSError, match="disk full"):
        await service.run_until_stopped(stop, on_drain)


async def test_a_call_beyond_the_concurrency_limit_is_refused_at_once(make: Make) -> None:
    service = make(max_concurrent_rpcs=1)
    await service.start()
    async with grpc.aio.insecure_channel(service.bound_address) as channel:
        wait = wait_call(channel)
        first = wait(b"0.5")
        await asyncio.sleep(0.1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await wait(b"0")
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await first == b"done"


async def test_a_message_over_the_limit_is_refused(make: Make) -> None:
    service = make(max_message_bytes=1024)
    await service.start()
    async with grpc.aio.insecure_channel(service.bound_address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await wait_call(channel)(b"0" * 2000)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

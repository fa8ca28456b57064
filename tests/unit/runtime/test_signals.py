"""Signals to a real process that serves a call which outlives any drain."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import grpc
import pytest

SERVICE = """
import asyncio, grpc, random, sys
from burstgate_runtime.listen import parse_listen
from burstgate_runtime.logs import configure_logs
from burstgate_runtime.serving import GrpcService
from burstgate_runtime.settings import ServiceSettings, load_settings

async def sleep(request, context):
    await asyncio.sleep(60)
    return b""

async def talk(request, context):
    while True:
        await context.write(b"word")
        await asyncio.sleep(random.random() * 0.01)

def register(server):
    methods = {"sleep": grpc.unary_unary_rpc_method_handler(sleep),
               "talk": grpc.unary_stream_rpc_method_handler(talk)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.v1.Sleepy", methods),))

def sleepy(settings):
    return GrpcService(settings=settings, listen=parse_listen("127.0.0.1:0"), register=register,
                       service_names=["test.v1.Sleepy"], name="sleepy", version="1")
"""

PROGRAM = f"""{SERVICE}
async def serve():
    service = sleepy(load_settings(ServiceSettings))
    await service.start()
    await service.set_serving("", True)
    return 0 if await service.run_until_stopped(asyncio.Event()) else 1

configure_logs("info", "json")
sys.exit(asyncio.run(serve()))
"""

CUT_OFF_40_TIMES = f"""{SERVICE}
async def cut_off():
    service = sleepy(load_settings(ServiceSettings, drain_timeout_s=0.05))
    await service.start()
    stop = asyncio.Event()
    running = asyncio.create_task(service.run_until_stopped(stop))
    async with grpc.aio.insecure_channel(service.bound_address) as channel:
        calls = [channel.unary_stream("/test.v1.Sleepy/talk")(b"") for _ in range(10)]
        asyncio.get_running_loop().call_later(0.1, stop.set)
        for call in calls:
            try:
                async for _ in call:
                    pass
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert await running

async def cut_all_off():
    for _ in range(40):
        await cut_off()

configure_logs("info", "json")
asyncio.run(cut_all_off())
"""


@pytest.fixture
def sleepy(start_process: Callable[..., Any]) -> Any:
    return start_process(["-c", PROGRAM], {"BURSTGATE_DRAIN_TIMEOUT_S": "30"})


def call(process: Any, channel: grpc.Channel) -> "Future[bytes]":
    """Starts the endless call and returns once the process runs it."""
    sleep: Any = channel.unary_unary("/test.v1.Sleepy/sleep")
    running: Any = sleep.future(b"", timeout=60)
    time.sleep(0.3)
    assert not running.done()
    return running  # type: ignore[no-any-return]


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)])
def test_a_second_signal_stops_at_once_and_is_not_a_clean_exit(sleepy: Any, numbers: tuple[int, int]) -> None:
    with grpc.insecure_channel(sleepy.address) as channel:
        running = call(sleepy, channel)
        sleepy.signal(numbers[0])
        assert sleepy.wait_event("draining")["calls"] == 1
        time.sleep(0.3)
        assert sleepy.running
        started = time.monotonic()
        sleepy.signal(numbers[1])
        assert sleepy.wait() == 1
        assert time.monotonic() - started < 3
        assert running.exception() is not None
    assert sleepy.events("stopped")[0]["drained"] is False


def test_a_cancelled_call_lets_the_drain_end_early(sleepy: Any) -> None:
    with grpc.insecure_channel(sleepy.address) as channel:
        running = call(sleepy, channel)
        sleepy.signal(signal.SIGTERM)
        sleepy.wait_event("draining")
        running.cancel()
        assert sleepy.wait(5) == 0


def test_a_call_that_outlives_the_drain_is_cut_off_cleanly(start_process: Callable[..., Any]) -> None:
    process = start_process(["-c", PROGRAM], {"BURSTGATE_DRAIN_TIMEOUT_S": "0.3"})
    with grpc.insecure_channel(process.address) as channel:
        running = call(process, channel)
        assert process.stop(5) == 0
        error = running.exception()
        assert isinstance(error, grpc.RpcError)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
    # Every line is still a log line: nothing printed a traceback on the way out.
    assert (process.lines[-1]["drained"], process.lines[-1]["cut_calls"]) == (False, 1)


def test_cutting_off_never_ends_the_process_itself() -> None:
    done = subprocess.run([sys.executable, "-c", CUT_OFF_40_TIMES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count('"cut_calls": 10') == 40

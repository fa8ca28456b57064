"""Signals to a real process that serves a call which outlives any drain."""

import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import grpc
import pytest

PROGRAM = """
import asyncio, grpc, sys
from burstgate_runtime.listen import parse_listen
from burstgate_runtime.logs import configure_logs
from burstgate_runtime.serving import GrpcService
from burstgate_runtime.settings import ServiceSettings, load_settings

async def sleep(request, context):
    await asyncio.sleep(60)
    return b""

def register(server):
    methods = {"sleep": grpc.unary_unary_rpc_method_handler(sleep)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.v1.Sleepy", methods),))

async def serve():
    settings = load_settings(ServiceSettings)
    service = GrpcService(settings=settings, listen=parse_listen("127.0.0.1:0"), register=register,
                          service_names=["test.v1.Sleepy"], name="sleepy", version="1")
    await service.start()
    await service.set_serving("", True)
    return 0 if await service.run_until_stopped(asyncio.Event()) else 1

configure_logs("info", "json")
sys.exit(asyncio.run(serve()))
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

"""The writing of a stream, on a real server and a real socket, without an engine behind it."""

import asyncio
import io
import json
import time
from typing import Any

import grpc
import pytest

from burstgate.decode.v1 import decode_pb2
from burstgate_decode.config import DecodeSettings
from burstgate_decode.engine.engine import Engine
from burstgate_decode.servicer import DecodeServicer, ServerFacts
from burstgate_runtime.interceptors import CallInterceptor
from burstgate_runtime.logs import configure_logs

SERVICE = "test.v1.TestService"
STREAMS = 30
# Whether a cut meets a write is chance: a fault that shows in three cuts of ten is found in nearly every run.
CUTS = 10


def never_loaded() -> Any:
    raise AssertionError


@pytest.mark.parametrize("_", range(CUTS))
async def test_streams_that_are_cut_off_in_the_middle_of_a_write_are_cancelled_and_no_defect(_: int) -> None:
    written = io.StringIO()
    configure_logs("info", "json", written)
    settings = DecodeSettings()
    servicer = DecodeServicer(
        settings, ServerFacts("1", 0.0), Engine(never_loaded, settings.engine_limits, time.perf_counter)
    )
    response = decode_pb2.GenerateResponse(delta=decode_pb2.GenerateDelta(text="word"))

    started = asyncio.Semaphore(0)

    async def endless(request: decode_pb2.GenerateRequest, context: Any) -> None:
        started.release()
        while True:
            await servicer._send(context, response)
            await asyncio.sleep(0)

    interceptor = CallInterceptor(frozenset({SERVICE}))
    server = grpc.aio.server(interceptors=(interceptor,))
    method = grpc.unary_stream_rpc_method_handler(
        endless,
        request_deserializer=decode_pb2.GenerateRequest.FromString,
        response_serializer=decode_pb2.GenerateResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Endless": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    async def read(channel: grpc.aio.Channel) -> grpc.StatusCode:
        try:
            async for _ in channel.unary_stream(f"/{SERVICE}/Endless")(b""):
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
        raise AssertionError("an endless stream ended")

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        reading = [asyncio.create_task(read(channel)) for _ in range(STREAMS)]
        async with asyncio.timeout(60):
            for _ in range(STREAMS):
                await started.acquire()
        # Into the middle of their writes.
        await asyncio.sleep(0.1)
        assert interceptor.calls.running == STREAMS
        await server.stop(None)
        assert set(await asyncio.gather(*reading)) == {grpc.StatusCode.UNAVAILABLE}
    async with asyncio.timeout(10):
        await interceptor.calls.wait_idle()
    said = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [line for line in said if line["level"] == "error" or line.get("code") == "INTERNAL"] == []

"""The life of the decode service: serve at once, load, become healthy, drain, end the MLX thread."""

import asyncio
import importlib.metadata
import sys
import time

import grpc
import structlog

from burstgate.decode.v1 import decode_pb2, decode_pb2_grpc
from burstgate_decode.config import DecodeSettings
from burstgate_decode.engine.engine import Engine, Pairing
from burstgate_decode.metrics import PREFIX_BYTES, watch_cache
from burstgate_decode.models.blas import BlasReport
from burstgate_decode.servicer import DecodeServicer, ServerFacts
from burstgate_decode.startup import Loaded, clock_ms, load_everything
from burstgate_runtime.serving import GrpcService

_log = structlog.get_logger(__name__)

_SERVICE = decode_pb2.DESCRIPTOR.services_by_name["DecodeService"].full_name
# The round loop's Python and the event loop share the interpreter: at the default of 5 ms a busy round loop
# holds up every call for that long.
SWITCH_INTERVAL_S = 0.0005


async def serve(settings: DecodeSettings, blas: BlasReport) -> bool:
    """Serves until a stop signal; returns whether the drain was completed. Raises ServeError or ModelError."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    version = importlib.metadata.version("burstgate")
    loaded: list[Loaded] = []

    def load() -> Pairing:
        loaded.append(load_everything(settings, blas))
        return loaded[0].pairing

    engine = Engine(load, settings.engine_limits, clock_ms)
    watch_cache(engine.cache_bytes)
    PREFIX_BYTES.set_function(engine.prefix_cache_bytes)
    servicer = DecodeServicer(settings, ServerFacts(version, time.time()), engine)

    def register(server: grpc.aio.Server) -> None:
        decode_pb2_grpc.add_DecodeServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]

    service = GrpcService(
        settings=settings,
        listen=settings.listen,
        register=register,
        service_names=(_SERVICE,),
        name="burstgate-decode",
        version=version,
    )
    await service.start()
    stop = asyncio.Event()

    async def follow_engine() -> None:
        try:
            await asyncio.to_thread(engine.wait_loaded)
            servicer.serving = loaded[0].serving
            if not stop.is_set():
                await service.set_serving("", True)
            await asyncio.to_thread(engine.wait_ended)
        finally:
            # Nothing can be served without the engine, whether it could not load or died of a defect.
            stop.set()

    engine.start()
    following = asyncio.create_task(follow_engine())
    try:
        drained = await service.run_until_stopped(stop)
    finally:
        # The thread may be inside a load or a step; it ends at the next pass.
        await asyncio.to_thread(engine.stop)
        for one in loaded:
            one.close()
    await following
    return drained

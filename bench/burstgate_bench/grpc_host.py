"""The engine of a lab behind the real gRPC service, on a Unix socket of this process.

Server and engine share a process and its interpreter, as in the decode service.
"""

import asyncio
import contextlib
import importlib.metadata
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import grpc

from burstgate.decode.v1 import decode_pb2, decode_pb2_grpc
from burstgate_decode.config import DecodeSettings
from burstgate_decode.engine.engine import Engine
from burstgate_decode.server import SWITCH_INTERVAL_S
from burstgate_decode.servicer import DecodeServicer, ServerFacts
from burstgate_decode.serving import Serving
from burstgate_runtime.interceptors import CallInterceptor
from burstgate_runtime.listen import parse_listen


@contextlib.contextmanager
def served(engine: Engine, serving: Serving, settings: DecodeSettings) -> Iterator[str]:
    """Serves the loaded engine for the length of the block; yields the address."""
    with tempfile.TemporaryDirectory(prefix="burstgate-bench-") as folder:
        listen = parse_listen(f"unix:{folder}/decode.sock")
        loop, started, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

        async def serve() -> None:
            name = decode_pb2.DESCRIPTOR.services_by_name["DecodeService"].full_name
            facts = ServerFacts(importlib.metadata.version("burstgate"), time.time())
            servicer = DecodeServicer(settings, facts, engine)
            servicer.serving = serving
            server = grpc.aio.server(interceptors=(CallInterceptor(frozenset({name})),))
            decode_pb2_grpc.add_DecodeServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
            server.add_insecure_port(listen.bind)
            await server.start()
            started.set()
            await stop.wait()
            await server.stop(None)

        switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="grpc-host")
        thread.start()
        try:
            started.wait()
            yield listen.target
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()
            sys.setswitchinterval(switch_interval_s)

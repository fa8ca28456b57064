"""A service process that answers health checks and nothing else, and misbehaves as its first argument says.

Stands in for a service whose start or end a test must shape; run by the supervisor as its child.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


def say(level: str, event: str, **fields: object) -> None:
    print(json.dumps({"level": level, "event": event, **fields}), file=sys.stderr, flush=True)


def note(journal: str, text: str) -> None:
    with Path(journal).open("a", encoding="utf-8") as notes:
        notes.write(f"{text}\n")


async def main() -> None:
    behaviour, address, journal = sys.argv[1:4]
    if behaviour == "broken":
        print("Traceback: no such model", file=sys.stderr, flush=True)
        sys.exit(3)
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note(journal, f"started {address} {os.getpid()} {os.getsid(0)}")
        await asyncio.sleep(600)
    stop = asyncio.Event()
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    await server.start()
    say("info", "serving", address=address)
    say("warning", "no hints", folder="/nowhere")
    note(journal, f"started {address} {os.getpid()} {os.getsid(0)}")
    await stop.wait()
    await server.stop(None)
    note(journal, f"stopped {address}")


asyncio.run(main())

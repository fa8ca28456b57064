"""Storing hints: never on the way of a grant, never lost on the way out."""

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from burstgate.policy.v1 import admin_pb2_grpc, policy_pb2_grpc
from burstgate_policy.admin import PolicyAdminServicer
from burstgate_policy.config import PolicySettings
from burstgate_policy.hints.document import HintDocument
from burstgate_policy.hints.files import FileHintStore
from burstgate_policy.hints.ledger import HintLedger
from burstgate_policy.lane_directory import LaneDirectory
from burstgate_policy.lanes import LaneTable
from burstgate_policy.pairings import Pairings
from burstgate_policy.servicer import PolicyServicer
from burstgate_policy.watch import VerdictFeed
from burstgate_runtime.settings import load_settings


class SlowDisk(FileHintStore):
    """A folder on a disk that takes its time: until `disk_is_free` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self.disk_is_free = threading.Event()

    def save(self, document: HintDocument, *, replaces: int) -> bool:
        assert self.disk_is_free.wait(10)
        return super().save(document, replaces=replaces)


class Service:
    def __init__(self, ledger: HintLedger, store: SlowDisk, address: str) -> None:
        self.ledger, self.store, self.address = ledger, store, address


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    ids = itertools.count(1)
    settings = load_settings(PolicySettings)
    lanes = LaneTable(clock=time.monotonic, new_id=lambda: str(next(ids)), max_lanes=4, ttl_s=60)
    store = SlowDisk(tmp_path)
    ledger = HintLedger(store, clock=time.time, refresh_s=5.0)
    pairings = Pairings(settings, lanes, ledger, clock=time.time)
    servicer = PolicyServicer(settings, lanes, pairings, LaneDirectory(None, ttl_s=60), clock=time.time)
    server = grpc.aio.server()
    policy_pb2_grpc.add_PolicyServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    feed = VerdictFeed(pairings, clock=time.monotonic, epoch="test")
    admin = PolicyAdminServicer(settings, lanes, pairings, feed, clock=time.time)
    admin_pb2_grpc.add_PolicyAdminServiceServicer_to_server(admin, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield Service(ledger, store, f"127.0.0.1:{port}")
    store.disk_is_free.set()
    await server.stop(None)


def settle(address: str, policy_lane: Any) -> int:
    """Settles a pairing and asks for more grants; returns how many were given."""
    with grpc.insecure_channel(address) as channel:
        lane = policy_lane(channel)
        lane.settle()
        return len([lane.burst() for _ in range(20)])


async def test_a_slow_disk_delays_no_grant(service: Service, policy_lane: Any) -> None:
    running = asyncio.create_task(service.ledger.run())
    assert await asyncio.to_thread(settle, service.address, policy_lane) == 20
    assert service.ledger.pending == 1
    running.cancel()


async def test_the_way_out_waits_for_hints_that_are_being_stored(service: Service, policy_lane: Any) -> None:
    await asyncio.to_thread(settle, service.address, policy_lane)
    finishing = asyncio.create_task(service.ledger.synchronise())
    await asyncio.sleep(0.05)
    assert not finishing.done()
    service.store.disk_is_free.set()
    async with asyncio.timeout(5):
        await finishing
    (load,) = FileHintStore(service.store.folder).changes().loads
    assert load.document is not None
    assert load.document.key.target == "target"

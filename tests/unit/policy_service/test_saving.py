"""Storing hints: never on the way of a grant, never lost on the way out."""

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from burstgate.policy.v1 import policy_pb2_grpc
from burstgate_policy.config import PolicySettings
from burstgate_policy.core.hint import Hint
from burstgate_policy.core.types import PolicyKey
from burstgate_policy.hints.store import HintLoad
from burstgate_policy.lanes import LaneTable
from burstgate_policy.servicer import PolicyServicer
from burstgate_runtime.settings import load_settings


class SlowStore:
    """A hint store on a disk that takes its time: until `disk_is_free` is set."""

    def __init__(self) -> None:
        self.disk_is_free = threading.Event()
        self.saved: list[Hint] = []

    def load(self, key: PolicyKey) -> HintLoad:
        return HintLoad(None, "nothing was saved yet")

    def save(self, hint: Hint) -> None:
        assert self.disk_is_free.wait(10)
        self.saved.append(hint)


class Service:
    def __init__(self, servicer: PolicyServicer, store: SlowStore, address: str) -> None:
        self.servicer, self.store, self.address = servicer, store, address


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    ids = itertools.count(1)
    lanes = LaneTable(clock=time.monotonic, new_id=lambda: str(next(ids)), max_lanes=4, ttl_s=60)
    store = SlowStore()
    servicer = PolicyServicer(load_settings(PolicySettings), store, lanes)
    server = grpc.aio.server()
    policy_pb2_grpc.add_PolicyServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield Service(servicer, store, f"127.0.0.1:{port}")
    store.disk_is_free.set()
    await server.stop(None)


def settle(address: str, policy_lane: Any) -> int:
    """Settles a pairing and asks for more grants; returns how many were given."""
    with grpc.insecure_channel(address) as channel:
        lane = policy_lane(channel)
        lane.settle()
        return len([lane.burst() for _ in range(20)])


async def test_a_slow_disk_delays_no_grant(service: Service, policy_lane: Any) -> None:
    assert await asyncio.to_thread(settle, service.address, policy_lane) == 20
    assert service.store.saved == []


async def test_the_way_out_waits_for_hints_that_are_being_stored(service: Service, policy_lane: Any) -> None:
    await asyncio.to_thread(settle, service.address, policy_lane)
    finishing = asyncio.create_task(service.servicer.finish_saves())
    await asyncio.sleep(0.05)
    assert not finishing.done()
    service.store.disk_is_free.set()
    await asyncio.wait_for(finishing, 5)
    (hint,) = service.store.saved
    assert hint.key.target == "target"

"""The life of the policy service: what it is made of, and the order in which it stops."""

import asyncio
import contextlib
import importlib.metadata
import sys
import time
import uuid

import grpc
import prometheus_client

from burstgate.policy.v1 import admin_pb2, admin_pb2_grpc, policy_pb2, policy_pb2_grpc
from burstgate_policy.admin import PolicyAdminServicer
from burstgate_policy.config import PolicySettings
from burstgate_policy.hints.files import FileHintStore
from burstgate_policy.hints.ledger import HintLedger
from burstgate_policy.hints.redis import RedisHintStore
from burstgate_policy.hints.store import HintStore
from burstgate_policy.lane_directory import LaneDirectory
from burstgate_policy.lanes import LaneTable
from burstgate_policy.pairings import Pairings
from burstgate_policy.regret_metrics import RegretCollector
from burstgate_policy.servicer import PolicyServicer
from burstgate_policy.watch import VerdictFeed
from burstgate_runtime.serving import GrpcService

_SERVICE_NAMES = (
    policy_pb2.DESCRIPTOR.services_by_name["PolicyService"].full_name,
    admin_pb2.DESCRIPTOR.services_by_name["PolicyAdminService"].full_name,
)

# A replay or a long import runs on a thread; a grant must not wait the default 5 ms for its turn.
_SWITCH_INTERVAL_S = 0.0005

# Lanes of vanished instances are looked for this often, besides when their table is read.
_EXPIRE_EVERY_S = 30.0


async def serve(settings: PolicySettings) -> bool:
    """Serves until a stop signal; returns whether the drain was completed. Raises ServeError."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    lanes = LaneTable(
        clock=time.monotonic,
        new_id=lambda: uuid.uuid4().hex,
        max_lanes=settings.max_lanes,
        ttl_s=settings.lane_ttl_s,
    )
    store = _hint_store(settings)
    ledger = HintLedger(store, clock=time.time, refresh_s=settings.hint_refresh_s)
    pairings = Pairings(settings, lanes, ledger, clock=time.time)
    shared = store if isinstance(store, RedisHintStore) else None
    directory = LaneDirectory(shared, ttl_s=settings.lane_ttl_s, away=lambda: ledger.down)
    policy = PolicyServicer(settings, lanes, pairings, directory, clock=time.time)
    feed = VerdictFeed(pairings, clock=time.monotonic, epoch=uuid.uuid4().hex[:8])
    admin = PolicyAdminServicer(settings, lanes, pairings, feed, clock=time.time)

    def register(server: grpc.aio.Server) -> None:
        policy_pb2_grpc.add_PolicyServiceServicer_to_server(policy, server)  # type: ignore[no-untyped-call]
        admin_pb2_grpc.add_PolicyAdminServiceServicer_to_server(admin, server)  # type: ignore[no-untyped-call]

    service = GrpcService(
        settings=settings,
        listen=settings.listen,
        register=register,
        service_names=_SERVICE_NAMES,
        name="burstgate-policy",
        version=importlib.metadata.version("burstgate"),
    )
    await service.start()
    # What is stored is known before the first lane opens, unless the store does not answer.
    await ledger.synchronise()
    await service.set_serving("", True)
    stop = asyncio.Event()

    async def end_streams() -> None:
        await stop.wait()
        policy.end_streams()
        admin.end_streams()

    tasks = [asyncio.create_task(work) for work in (end_streams(), ledger.run(), _expire_lanes(lanes))]
    regret_metrics = RegretCollector(lanes.accounts)
    prometheus_client.REGISTRY.register(regret_metrics)
    try:
        return await service.run_until_stopped(stop, on_drain=ledger.synchronise)
    finally:
        prometheus_client.REGISTRY.unregister(regret_metrics)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        store.close()


def _hint_store(settings: PolicySettings) -> HintStore:
    if settings.mtp_force is not None:
        # A forced service profiles nothing, reads nothing and stores nothing.
        return FileHintStore(None)
    if settings.hint_store == "files":
        return FileHintStore(settings.hint_dir)
    return RedisHintStore(settings.hint_store)


async def _expire_lanes(lanes: LaneTable) -> None:
    while True:
        await asyncio.sleep(_EXPIRE_EVERY_S)
        lanes.expire()

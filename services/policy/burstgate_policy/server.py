"""The life of the policy service: what it is made of, and the order in which it stops."""

import asyncio
import importlib.metadata
import time
import uuid

import grpc

from burstgate.policy.v1 import admin_pb2, admin_pb2_grpc, policy_pb2, policy_pb2_grpc
from burstgate_policy.config import PolicySettings
from burstgate_policy.hints.files import FileHintStore
from burstgate_policy.lanes import LaneTable
from burstgate_policy.servicer import PolicyAdminServicer, PolicyServicer
from burstgate_runtime.serving import GrpcService

_SERVICE_NAMES = (
    policy_pb2.DESCRIPTOR.services_by_name["PolicyService"].full_name,
    admin_pb2.DESCRIPTOR.services_by_name["PolicyAdminService"].full_name,
)


async def serve(settings: PolicySettings) -> bool:
    """Serves until a stop signal; returns whether the drain was completed. Raises ServeError."""
    lanes = LaneTable(
        clock=time.monotonic,
        new_id=lambda: uuid.uuid4().hex,
        max_lanes=settings.max_lanes,
        ttl_s=settings.lane_ttl_s,
    )
    policy = PolicyServicer(settings, FileHintStore(settings.hint_dir), lanes)
    admin = PolicyAdminServicer(settings, lanes)

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
    await service.set_serving("", True)
    stop = asyncio.Event()

    async def end_streams() -> None:
        await stop.wait()
        policy.end_streams()

    ending = asyncio.create_task(end_streams())
    try:
        return await service.run_until_stopped(stop, on_drain=policy.finish_saves)
    finally:
        ending.cancel()

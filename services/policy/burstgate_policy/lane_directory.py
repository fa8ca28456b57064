"""How the lanes of a fleet were opened, so that a replica can serve a lane that was opened on another.

A client that spreads single calls over replicas opens a lane on one and asks the next. With Redis the
opening (the pairing's key, what the lane can do and its costs; nothing of who opened it) is shared for
as long as a lane may idle, and the replica that is asked opens the same lane for itself. What a lane
learned is not shared, verdicts are. Without Redis, or while it is away, a lane is known where it was
opened and nowhere else.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from burstgate.policy.v1 import policy_pb2
from burstgate_policy.hints.store import HintStoreError


class SharedOpenings(Protocol):
    """Where openings are shared."""

    def put_lane(self, lane_id: str, opening: bytes, *, ttl_s: float) -> None:
        """Remembers how a lane was opened; raises HintStoreError."""
        ...

    def get_lane(self, lane_id: str) -> bytes | None:
        """How a lane was opened; raises HintStoreError."""
        ...


class LaneDirectory:
    """Openings by lane id; None shares nothing, and nothing is asked while the store is said to be away."""

    def __init__(
        self, shared: SharedOpenings | None, *, ttl_s: float, away: Callable[[], bool] = lambda: False
    ) -> None:
        self._shared = shared
        self._ttl_s = ttl_s
        self._away = away

    async def put(self, lane_id: str, request: policy_pb2.OpenLaneRequest) -> None:
        """Shares how a lane was opened; a lane that cannot be shared is served here all the same."""
        if self._shared is None or self._away():
            return
        opening = policy_pb2.OpenLaneRequest(key=request.key, capabilities=request.capabilities, costs=request.costs)
        try:
            await asyncio.to_thread(self._shared.put_lane, lane_id, opening.SerializeToString(), ttl_s=self._ttl_s)
        except HintStoreError:
            return  # the ledger notices the same within a refresh, and says so

    async def get(self, lane_id: str) -> policy_pb2.OpenLaneRequest | None:
        """How a lane was opened elsewhere; None if nobody knows."""
        if self._shared is None or self._away():
            return None
        try:
            opening = await asyncio.to_thread(self._shared.get_lane, lane_id)
        except HintStoreError:
            return None
        return None if opening is None else policy_pb2.OpenLaneRequest.FromString(opening)

"""The RPCs of the hot path: a message in, a decision of the core, a message out.

Nothing here decides. Between finding a lane and its grant there is no await, so that requests of one lane
are taken one after another, whatever streams or calls they come on. Storage is kept off that path: a
hint is looked up when a pairing is first opened, and what settles is handed on and not waited for.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import prometheus_client
import structlog

from burstgate.policy.v1 import policy_pb2, policy_pb2_grpc
from burstgate_policy import convert, validation
from burstgate_policy.config import PolicySettings
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.types import BurstOutcome, Mode, Reason
from burstgate_policy.lane_directory import LaneDirectory
from burstgate_policy.lanes import LaneEntry, LaneTable
from burstgate_policy.pairings import Pairings
from burstgate_policy.steps import read_outcomes
from burstgate_runtime.faults import Fault, FaultKind

# From a decision without steps to one that catches up on an outage.
_DECIDE_BUCKETS_S = (5e-5, 1e-4, 1.5e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.25)

_decide_seconds = prometheus_client.Histogram(
    "burstgate_policy_decide_seconds", "Time of one decision inside the service.", buckets=_DECIDE_BUCKETS_S
)
_grants = prometheus_client.Counter("burstgate_policy_grants", "Grants given.", ("mode", "reason"))
_steps = prometheus_client.Counter("burstgate_policy_steps", "Step records taken.")
_lanes_open = prometheus_client.Gauge("burstgate_policy_lanes", "Lanes open now.")


class PolicyServicer(policy_pb2_grpc.PolicyServiceServicer):
    """The hot path."""

    def __init__(
        self,
        settings: PolicySettings,
        lanes: LaneTable,
        pairings: Pairings,
        directory: LaneDirectory,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._fresh_ms = settings.grant_fresh_ms
        self._core_config = settings.core_config()
        self._lanes = lanes
        self._pairings = pairings
        self._directory = directory
        self._clock = clock
        self._log = structlog.get_logger()
        self._streams = _WaitingStreams()
        # Looking a labelled counter up costs more than counting.
        self._grants: dict[tuple[Mode, Reason], prometheus_client.Counter] = {}
        _lanes_open.set_function(lambda: len(lanes))

    async def OpenLane(  # noqa: N802
        self, request: policy_pb2.OpenLaneRequest, context: Any
    ) -> policy_pb2.OpenLaneResponse:
        """Registers a lane."""
        validation.check_open_lane(request)
        entry = await self._open(request)
        await self._directory.put(entry.lane_id, request)
        snapshot = entry.lane.policy.snapshot(self._clock())
        return policy_pb2.OpenLaneResponse(lane_id=entry.lane_id, snapshot=convert.snapshot_to_proto(snapshot))

    async def DecideBurst(  # noqa: N802
        self, request: policy_pb2.DecideBurstRequest, context: Any
    ) -> policy_pb2.DecideBurstResponse:
        """Takes outcomes and grants the next burst."""
        started = time.perf_counter()
        validation.check_decide(request)
        outcomes = read_outcomes(request.outcomes)
        entry = self._lanes.find(request.lane_id) or await self._find_elsewhere(request.lane_id)
        if entry is None:
            raise unknown_lane(request.lane_id)
        grant = self._decide(entry, request.situation, outcomes)
        _decide_seconds.observe(time.perf_counter() - started)
        return policy_pb2.DecideBurstResponse(grant=grant)

    async def ReportBurst(  # noqa: N802
        self, request: policy_pb2.ReportBurstRequest, context: Any
    ) -> policy_pb2.ReportBurstResponse:
        """Takes the outcomes of the end of a busy period."""
        validation.check_lane_id(request.lane_id)
        outcomes = read_outcomes(request.outcomes)
        entry = self._lanes.find(request.lane_id) or await self._find_elsewhere(request.lane_id)
        if entry is None:
            raise unknown_lane(request.lane_id)
        self._observe(entry.lane, outcomes, self._clock())
        return policy_pb2.ReportBurstResponse()

    async def StreamBursts(  # noqa: N802
        self, request_iterator: AsyncIterator[policy_pb2.StreamBurstsRequest], context: Any
    ) -> AsyncIterator[policy_pb2.StreamBurstsResponse]:
        """Answers each question of a stream, in order."""
        while (request := await self._streams.next_of(request_iterator)) is not None:
            started = time.perf_counter()
            validation.check_decide(request)
            outcomes = read_outcomes(request.outcomes)
            entry = self._lanes.find(request.lane_id) or await self._find_elsewhere(request.lane_id)
            if entry is None:
                yield policy_pb2.StreamBurstsResponse(sequence=request.sequence, unknown_lane=True)
                continue
            grant = self._decide(entry, request.situation, outcomes)
            _decide_seconds.observe(time.perf_counter() - started)
            yield policy_pb2.StreamBurstsResponse(sequence=request.sequence, grant=grant)

    def end_streams(self) -> None:
        """Ends every stream before its next question, so that a drain need not wait for its client."""
        self._streams.end()

    async def _open(self, request: policy_pb2.OpenLaneRequest, lane_id: str | None = None) -> LaneEntry:
        self._lanes.check_room()
        key = convert.key_from_proto(request.key)
        capabilities = convert.capabilities_from_proto(request.capabilities)
        costs = convert.costs_from_proto(request.costs)
        policy = await self._pairings.open(key, capabilities, costs)

        def make_lane(policy: MtpPolicy) -> Lane:
            return Lane(policy, capabilities, costs, self._core_config)

        # Another call may have opened the same lane meanwhile.
        entry = None if lane_id is None else self._lanes.find(lane_id)
        if entry is None:
            entry = self._lanes.open(policy, request.instance_id, make_lane, lane_id=lane_id)
            self._log.info("lane opened", lane_id=entry.lane_id, instance_id=entry.instance_id, pairing=key.display)
        return entry

    async def _find_elsewhere(self, lane_id: str) -> LaneEntry | None:
        """A lane that was opened on another replica, opened here too."""
        opening = await self._directory.get(lane_id)
        return None if opening is None else await self._open(opening, lane_id)

    def _decide(
        self, entry: LaneEntry, situation: policy_pb2.Situation, outcomes: Sequence[BurstOutcome]
    ) -> policy_pb2.BurstGrant:
        lane, now_s = entry.lane, self._clock()
        if outcomes:
            self._observe(lane, outcomes, now_s)
        grant = lane.decide(convert.situation_from_proto(situation), now_s)
        counter = self._grants.get((grant.mode, grant.reason))
        if counter is None:
            counter = _grants.labels(grant.mode.name.lower(), grant.reason.name.lower())
            self._grants[grant.mode, grant.reason] = counter
        counter.inc()
        return convert.grant_to_proto(grant, grant_id=entry.last_grant_id, fresh_ms=self._fresh_ms)

    def _observe(self, lane: Lane, outcomes: Sequence[BurstOutcome], now_s: float) -> None:
        steps_before = lane.steps
        for outcome in outcomes:
            lane.observe(outcome, now_s)
        _steps.inc(lane.steps - steps_before)
        hint = lane.policy.take_settled()
        if hint is not None:
            self._pairings.settled(lane.policy, hint)


def unknown_lane(lane_id: str) -> Fault:
    """The answer to an id that names no open lane."""
    return Fault(
        FaultKind.NOT_FOUND,
        "UNKNOWN_LANE",
        "the lane is not open (any more): open it again",
        metadata={"lane_id": lane_id},
    )


class _WaitingStreams:
    """Streams that wait for their client's next question, so that they can be woken and ended.

    Waking by cancellation costs nothing while questions come; waiting for two things at once would
    cost a task for each question.
    """

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[Any]] = set()
        self._woken: set[asyncio.Task[Any]] = set()
        self._ending = False

    async def next_of(
        self, requests: AsyncIterator[policy_pb2.StreamBurstsRequest]
    ) -> policy_pb2.StreamBurstsRequest | None:
        """The next question, or None at the client's end; raises a fault when the streams were ended."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (a handler always runs in a task)
        if self._ending:
            raise draining()
        self._waiting.add(task)
        try:
            return await anext(requests, None)
        except asyncio.CancelledError:
            if task not in self._woken:
                raise
            task.uncancel()
            raise draining() from None
        finally:
            self._waiting.discard(task)
            self._woken.discard(task)

    def end(self) -> None:
        self._ending = True
        for task in self._waiting:
            self._woken.add(task)
            task.cancel()


def draining() -> Fault:
    """The answer to a stream that a stopping service ends."""
    return Fault(FaultKind.UNAVAILABLE, "DRAINING", "the service is stopping: ask another one or come back")

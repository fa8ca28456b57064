"""The RPCs of the policy service: a message in, a decision of the core, a message out.

Nothing here decides. Between a request and its grant there is no await, so that requests of one lane
are taken one after another, whatever streams or calls they come on. Storage is kept off that path: a
hint is read when a pairing is first opened and written by a task of its own; if writing fails, the
verdict still holds in memory.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import prometheus_client
import structlog

from burstgate.policy.v1 import admin_pb2, admin_pb2_grpc, policy_pb2, policy_pb2_grpc
from burstgate_policy import convert, validation
from burstgate_policy.config import PolicySettings
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.hint import Hint
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.static_gate import static_gate
from burstgate_policy.core.types import CostCell, LaneCapabilities, PolicyKey
from burstgate_policy.hints.store import HintStore, HintStoreError
from burstgate_policy.lanes import LaneEntry, LaneTable
from burstgate_runtime.faults import Fault, FaultKind

_DEFAULT_PAGE_SIZE = 100
# From a decision without steps to one that catches up on an outage.
_DECIDE_BUCKETS_S = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.25)

_decide_seconds = prometheus_client.Histogram(
    "burstgate_policy_decide_seconds", "Time of one decision inside the service.", buckets=_DECIDE_BUCKETS_S
)
_grants = prometheus_client.Counter("burstgate_policy_grants", "Grants given.", ("mode", "reason"))
_steps = prometheus_client.Counter("burstgate_policy_steps", "Step records taken.")
_lanes_open = prometheus_client.Gauge("burstgate_policy_lanes", "Lanes open now.")
_verdicts = prometheus_client.Counter("burstgate_policy_verdicts", "Pairings settled here.", ("verdict",))
_save_failures = prometheus_client.Counter("burstgate_policy_hint_save_failures", "Hints not stored.")


class PolicyServicer(policy_pb2_grpc.PolicyServiceServicer):
    """The hot path."""

    def __init__(self, settings: PolicySettings, hints: HintStore, lanes: LaneTable) -> None:
        self._settings = settings
        self._core_config = settings.core_config()
        self._hints = hints
        self._lanes = lanes
        self._log = structlog.get_logger()
        self._saves: set[asyncio.Task[None]] = set()
        self._streams = _WaitingStreams()
        _lanes_open.set_function(lambda: len(lanes))

    async def OpenLane(  # noqa: N802
        self, request: policy_pb2.OpenLaneRequest, context: Any
    ) -> policy_pb2.OpenLaneResponse:
        """Registers a lane."""
        validation.check_open_lane(request)
        self._lanes.check_room()
        key = convert.key_from_proto(request.key)
        capabilities = convert.capabilities_from_proto(request.capabilities)
        costs = convert.costs_from_proto(request.costs)
        policy = self._lanes.policy(key.hash) or await self._start_policy(key, capabilities, costs)

        def make_lane(policy: MtpPolicy) -> Lane:
            return Lane(policy, capabilities, costs, self._core_config)

        entry = self._lanes.open(policy, request.instance_id, make_lane)
        self._log.info("lane opened", lane_id=entry.lane_id, instance_id=entry.instance_id, pairing=key.display)
        return policy_pb2.OpenLaneResponse(
            lane_id=entry.lane_id, snapshot=convert.snapshot_to_proto(entry.lane.policy.snapshot())
        )

    async def DecideBurst(  # noqa: N802
        self, request: policy_pb2.DecideBurstRequest, context: Any
    ) -> policy_pb2.DecideBurstResponse:
        """Takes outcomes and grants the next burst."""
        started = time.perf_counter()
        validation.check_decide(request)
        grant = self._decide(self._find(request.lane_id), request)
        _decide_seconds.observe(time.perf_counter() - started)
        return policy_pb2.DecideBurstResponse(grant=grant)

    async def ReportBurst(  # noqa: N802
        self, request: policy_pb2.ReportBurstRequest, context: Any
    ) -> policy_pb2.ReportBurstResponse:
        """Takes the outcomes of the end of a busy period."""
        validation.check_report(request)
        self._observe(self._find(request.lane_id), request.outcomes)
        return policy_pb2.ReportBurstResponse()

    async def StreamBursts(  # noqa: N802
        self, request_iterator: AsyncIterator[policy_pb2.StreamBurstsRequest], context: Any
    ) -> AsyncIterator[policy_pb2.StreamBurstsResponse]:
        """Answers each question of a stream, in order."""
        while (request := await self._streams.next_of(request_iterator)) is not None:
            started = time.perf_counter()
            validation.check_decide(request)
            entry = self._lanes.find(request.lane_id)
            if entry is None:
                yield policy_pb2.StreamBurstsResponse(sequence=request.sequence, unknown_lane=True)
                continue
            grant = self._decide(entry, request)
            _decide_seconds.observe(time.perf_counter() - started)
            yield policy_pb2.StreamBurstsResponse(sequence=request.sequence, grant=grant)

    def end_streams(self) -> None:
        """Ends every stream before its next question, so that a drain need not wait for its client."""
        self._streams.end()

    async def finish_saves(self) -> None:
        """Waits for the hints that are being stored."""
        await asyncio.gather(*self._saves)

    async def _start_policy(
        self, key: PolicyKey, capabilities: LaneCapabilities, costs: tuple[CostCell, ...]
    ) -> MtpPolicy:
        settings = self._settings
        hint = None
        if settings.mtp_force is None and settings.mtp_adaptive:
            loaded = await asyncio.to_thread(self._hints.load, key)
            hint = loaded.hint
            if hint is not None:
                self._log.info(
                    "hint loaded",
                    pairing=key.display,
                    key_hash=key.hash,
                    verdict=hint.verdict.name.lower(),
                    acceptance_rate=hint.acceptance_rate,
                    samples=hint.samples,
                )
            else:
                self._log.info("profiling", pairing=key.display, key_hash=key.hash, why=loaded.reason)
        return MtpPolicy.start(
            key,
            force=settings.mtp_force,
            adaptive=settings.mtp_adaptive,
            static_default=static_gate(capabilities, costs).enabled,
            hint=hint,
            config=self._core_config,
        )

    def _find(self, lane_id: str) -> LaneEntry:
        entry = self._lanes.find(lane_id)
        if entry is None:
            raise Fault(
                FaultKind.NOT_FOUND,
                "UNKNOWN_LANE",
                "the lane is not open (any more): open it again",
                metadata={"lane_id": lane_id},
            )
        return entry

    def _decide(
        self, entry: LaneEntry, request: policy_pb2.DecideBurstRequest | policy_pb2.StreamBurstsRequest
    ) -> policy_pb2.BurstGrant:
        if request.outcomes:
            self._observe(entry, request.outcomes)
        grant = entry.lane.decide(convert.situation_from_proto(request.situation))
        _grants.labels(grant.mode.name, grant.reason.name).inc()
        return convert.grant_to_proto(grant, grant_id=entry.last_grant_id, fresh_ms=self._settings.grant_fresh_ms)

    def _observe(self, entry: LaneEntry, outcomes: Iterable[policy_pb2.BurstOutcome]) -> None:
        lane = entry.lane
        steps_before = lane.steps
        for outcome in outcomes:
            lane.observe(convert.outcome_from_proto(outcome))
        _steps.inc(lane.steps - steps_before)
        hint = lane.policy.take_settled()
        if hint is not None:
            self._settled(lane.policy, hint)

    def _settled(self, policy: MtpPolicy, hint: Hint) -> None:
        snapshot = policy.snapshot()
        _verdicts.labels(snapshot.verdict.name).inc()
        self._log.info(
            "verdict settled",
            pairing=policy.key.display,
            key_hash=snapshot.key_hash,
            verdict=snapshot.verdict.name.lower(),
            why=snapshot.explanation,
        )
        save = asyncio.create_task(self._save(hint))
        self._saves.add(save)
        save.add_done_callback(self._saves.discard)

    async def _save(self, hint: Hint) -> None:
        try:
            await asyncio.to_thread(self._hints.save, hint)
        except HintStoreError as error:
            _save_failures.inc()
            self._log.warning("hint not stored", key_hash=hint.key.hash, why=str(error))
        else:
            self._log.info("hint stored", key_hash=hint.key.hash)


class PolicyAdminServicer(admin_pb2_grpc.PolicyAdminServiceServicer):
    """What a person asks."""

    def __init__(self, settings: PolicySettings, lanes: LaneTable) -> None:
        self._settings = settings
        self._lanes = lanes

    async def GetVerdict(  # noqa: N802
        self, request: admin_pb2.GetVerdictRequest, context: Any
    ) -> admin_pb2.GetVerdictResponse:
        """Reads one verdict."""
        validation.check_get_verdict(request)
        policy = self._lanes.policy(request.key_hash)
        if policy is None:
            raise Fault(
                FaultKind.NOT_FOUND,
                "UNKNOWN_VERDICT",
                "no pairing with this key hash was opened since the service started",
                metadata={"key_hash": request.key_hash},
            )
        return admin_pb2.GetVerdictResponse(verdict=self._view(policy))

    async def ListVerdicts(  # noqa: N802
        self, request: admin_pb2.ListVerdictsRequest, context: Any
    ) -> admin_pb2.ListVerdictsResponse:
        """Reads a page of verdicts; a page token is the last key hash of the page before."""
        validation.check_list_verdicts(request)
        size = request.page_size or _DEFAULT_PAGE_SIZE
        policies = [policy for policy in self._lanes.policies() if policy.key.hash > request.page_token]
        page = policies[:size]
        return admin_pb2.ListVerdictsResponse(
            verdicts=[self._view(policy) for policy in page],
            next_page_token=page[-1].key.hash if len(policies) > size else "",
        )

    def _view(self, policy: MtpPolicy) -> admin_pb2.VerdictView:
        fresh_ms = self._settings.grant_fresh_ms
        entries = self._lanes.lanes_of(policy.key.hash)
        return admin_pb2.VerdictView(
            snapshot=convert.snapshot_to_proto(policy.snapshot()),
            lanes=[convert.lane_to_proto(entry, fresh_ms=fresh_ms) for entry in entries],
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
            raise _draining()
        self._waiting.add(task)
        try:
            return await anext(requests, None)
        except asyncio.CancelledError:
            if task not in self._woken:
                raise
            task.uncancel()
            raise _draining() from None
        finally:
            self._waiting.discard(task)
            self._woken.discard(task)

    def end(self) -> None:
        self._ending = True
        for task in self._waiting:
            self._woken.add(task)
            task.cancel()


def _draining() -> Fault:
    return Fault(FaultKind.UNAVAILABLE, "DRAINING", "the service is stopping: ask another one or come back")

"""Grants from the policy service: asked for ahead of need, never waited for beyond a deadline.

The question for the next burst is sent while other work runs, the last step of a burst or the end of a prompt,
together with every outcome the service has not acknowledged; an outcome's sequence number makes a resend
harmless. A question that is not answered in time is answered here: by the last ordinary grant while it is
fresh, else by the static gate. After a few failures in a row a breaker stops asking for a while, so that a
frozen service costs nothing; a lane the service has lost is opened again without anything waiting for it.

Used from the engine's thread only. Calls run as futures of a synchronous channel, whose I/O is in the
core's own threads: the round loop never waits for the event loop, nor the event loop for a round.
"""

import contextlib
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import grpc
import prometheus_client
import structlog

from burstgate.policy.v1 import policy_pb2, policy_pb2_grpc
from burstgate_decode import policy_wire
from burstgate_decode.engine.grants import StaticGrants
from burstgate_decode.engine.request import Clock
from burstgate_decode.serving import LinkState
from burstgate_policy.core.types import (
    BurstOutcome,
    CostCell,
    Grant,
    LaneCapabilities,
    Mode,
    PolicyKey,
    Reason,
    Situation,
    StepRecord,
)

_log = structlog.get_logger(__name__)

_GRANTS = prometheus_client.Counter("burstgate_decode_grants", "Grants by where they came from.", ["source"])
_DROPPED = prometheus_client.Counter(
    "burstgate_decode_dropped_steps",
    "Step records dropped because the policy service took none for too long.",
)


@dataclass(frozen=True)
class PolicyClientConfig:
    """How the policy service is asked."""

    deadline_ms: float = 5.0
    """How long a grant is waited for once it is needed."""
    ahead_deadline_ms: float = 1000.0
    """How long a question that was sent ahead of need may live."""
    open_deadline_ms: float = 1000.0
    """How long opening a lane may take; nothing waits for it except start-up."""
    breaker_failures: int = 3
    """Failures in a row after which asking stops for a while."""
    breaker_first_pause_ms: float = 250.0
    """First pause; doubles while probes fail. About the channel's own reconnect time."""
    breaker_longest_pause_ms: float = 4000.0
    """So that a service that is back is noticed within seconds."""
    max_held_outcomes: int = 64
    """Outcomes kept for a service that takes none; the oldest is dropped, and counted, beyond this."""


_CHANNEL_OPTIONS = [
    # A restarted service is found again within half a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A peer that froze is given up; the core heeds the ping timeout, not the keepalive's.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
]


class _Call(Protocol):
    def result(self, timeout: float | None = None) -> Any: ...
    def done(self) -> bool: ...
    def cancel(self) -> bool: ...


@dataclass
class _Question:
    call: _Call
    last_sequence: int
    """Newest outcome the question carries."""


class PolicyGrants:
    """A `GrantSource` over one lane of the policy service."""

    def __init__(
        self,
        address: str,
        key: PolicyKey,
        capabilities: LaneCapabilities,
        costs: Sequence[CostCell],
        instance_id: str,
        clock: Clock,
        config: PolicyClientConfig = PolicyClientConfig(),
    ) -> None:
        """Starts opening the lane; does not wait for it."""
        self._address = address
        self._open_request = policy_wire.open_request(key, capabilities, tuple(costs), instance_id)
        self._static = StaticGrants(capabilities, costs, key.draft_width)
        self._clock = clock
        self._config = config
        self._channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._stub = policy_pb2_grpc.PolicyServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._breaker = _Breaker(config, clock)
        self._lane_id = ""
        self._opening: _Call | None = None
        self._question: _Question | None = None
        self._upcoming: Grant | None = None
        self._outcomes: deque[BurstOutcome] = deque()
        self._steps: list[StepRecord] = []
        self._grant_id = ""
        self._sequence = 0
        self._undelivered_drops = 0
        self._last: Grant | None = None
        self._last_until_ms = 0.0
        self._connected = False
        self._grants = 0
        self._fallbacks = 0
        self._dropped = 0
        self._open()

    def wait_open(self) -> None:
        """Gives the first lane its time to open, so that the first burst does not run on the fallback."""
        if self._opening is not None:
            with contextlib.suppress(grpc.RpcError, grpc.FutureTimeoutError, grpc.FutureCancelledError):
                self._opening.result(timeout=self._config.open_deadline_ms / 1e3)
        self._finish_opening()

    def link(self) -> LinkState:
        """How the service is seen from here. Any thread may call it."""
        return LinkState(self._connected, self._grants, self._fallbacks, self._dropped)

    def prefetch(self, situation: Situation) -> None:
        """Sends the question for the next burst."""
        self._upcoming = None
        if self._question is None:
            # Nothing waits for this one until it is needed, so that a busy machine has a whole step to answer.
            self._question = self._ask(situation, self._config.ahead_deadline_ms)

    def upcoming(self, wait_ms: float) -> Grant | None:
        """The prefetched grant, if it has come."""
        if self._upcoming is None and self._question is not None:
            try:
                response = self._question.call.result(timeout=wait_ms / 1e3)
            except (grpc.FutureTimeoutError, grpc.RpcError, grpc.FutureCancelledError):
                return None
            try:
                self._upcoming = policy_wire.grant_from_proto(response.grant)
            except ValueError:
                return None
        return self._upcoming

    def next(self, situation: Situation) -> Grant:
        """The service's grant, or the fallback's."""
        # What ran since the question was sent still belongs to the grant that ends here.
        self._seal()
        question = self._question or self._ask(situation, self._config.deadline_ms)
        self._question = self._upcoming = None
        grant = self._answer(question) if question is not None else None
        if grant is not None:
            self._grants += 1
            _GRANTS.labels("policy").inc()
            return grant
        self._fallbacks += 1
        _GRANTS.labels("fallback").inc()
        return self._fall_back(situation)

    def report(self, step: StepRecord) -> None:
        """Adds a step to the current burst's outcome."""
        self._steps.append(step)

    def idle(self) -> None:
        """Hands over what is left, without waiting."""
        self._seal()
        question, self._question = self._question, None
        # Nobody needs the grant any more: an answer that is late is no failure, and its outcomes are sent again.
        if question is not None and question.call.done():
            self._answer(question)
        if self._outcomes and self._may_ask():
            request = policy_pb2.ReportBurstRequest(lane_id=self._lane_id, outcomes=self._wire_outcomes())
            # Kept until a later answer acknowledges them: the service knows what it has seen.
            self._stub.ReportBurst.future(request, timeout=self._config.open_deadline_ms / 1e3)

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def _ask(self, situation: Situation, deadline_ms: float) -> _Question | None:
        self._seal()
        if not self._may_ask():
            return None
        request = policy_pb2.DecideBurstRequest(
            lane_id=self._lane_id,
            situation=policy_wire.situation_to_proto(situation),
            outcomes=self._wire_outcomes(),
        )
        call = self._stub.DecideBurst.future(request, timeout=deadline_ms / 1e3)
        return _Question(call, self._outcomes[-1].sequence if self._outcomes else 0)

    def _may_ask(self) -> bool:
        if not self._breaker.allows():
            return False
        self._finish_opening()
        return bool(self._lane_id)

    def _answer(self, question: _Question) -> Grant | None:
        try:
            response = question.call.result(timeout=self._config.deadline_ms / 1e3)
        except grpc.FutureTimeoutError:
            question.call.cancel()
            self._failed("DEADLINE_EXCEEDED")
            return None
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            code = _code_name(error)
            if code == "NOT_FOUND":
                # The service restarted or let the lane expire: it is healthy, only the lane is new.
                self._lane_id = ""
                self._open()
            else:
                if code == "INVALID_ARGUMENT":
                    # What it will not take now it will not take later: the same outcomes would fail every question.
                    self._drop_until(question.last_sequence)
                self._failed(code)
            return None
        try:
            grant = policy_wire.grant_from_proto(response.grant)
        except ValueError as error:
            self._failed(f"unusable grant: {error}")
            return None
        self._acknowledge(question.last_sequence)
        self._succeeded()
        self._grant_id = response.grant.grant_id
        if grant.mode in (Mode.PLAIN, Mode.SPECULATIVE):
            self._last = grant
            self._last_until_ms = self._clock() + response.grant.fresh_ms
        return grant

    def _fall_back(self, situation: Situation) -> Grant:
        self._grant_id = ""
        if self._last is None or self._clock() >= self._last_until_ms:
            return self._static.next(situation)
        return replace(
            self._last,
            reason=Reason.FALLBACK_LAST_GRANT,
            explanation=f"the policy service does not answer; its last grant still holds: {self._last.explanation}",
        )

    def _seal(self) -> None:
        """Turns the steps run since the last question into an outcome."""
        if not self._steps:
            return
        self._sequence += 1
        self._outcomes.append(BurstOutcome(self._grant_id, self._sequence, tuple(self._steps), self._undelivered_drops))
        self._steps = []
        self._undelivered_drops = 0
        while len(self._outcomes) > self._config.max_held_outcomes:
            self._drop_oldest()

    def _drop_until(self, sequence: int) -> None:
        while self._outcomes and self._outcomes[0].sequence <= sequence:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        lost = self._outcomes.popleft()
        count = len(lost.steps)
        self._dropped += count
        self._undelivered_drops += count + lost.dropped_steps
        _DROPPED.inc(count)

    def _wire_outcomes(self) -> list[policy_pb2.BurstOutcome]:
        return [policy_wire.outcome_to_proto(outcome) for outcome in self._outcomes]

    def _acknowledge(self, sequence: int) -> None:
        while self._outcomes and self._outcomes[0].sequence <= sequence:
            self._outcomes.popleft()

    def _open(self) -> None:
        self._opening = self._stub.OpenLane.future(self._open_request, timeout=self._config.open_deadline_ms / 1e3)

    def _finish_opening(self) -> None:
        """Takes the answer to OpenLane if it has come; opens again if it failed."""
        if self._lane_id:
            return
        if self._opening is None:
            self._open()
        elif self._opening.done():
            opening, self._opening = self._opening, None
            try:
                self._lane_id = opening.result().lane_id
            except (grpc.RpcError, grpc.FutureCancelledError) as error:
                self._failed(_code_name(error))
                return
            if not self._lane_id:
                self._failed("a lane without an id")
                return
            _log.info("lane_opened", lane_id=self._lane_id, policy=self._address)

    def _failed(self, why: str) -> None:
        if self._connected:
            _log.warning("policy_unanswered", policy=self._address, why=why)
        self._connected = False
        self._breaker.failed()

    def _succeeded(self) -> None:
        if not self._connected:
            _log.info("policy_answers", policy=self._address)
        self._connected = True
        self._breaker.succeeded()


class _Breaker:
    """Stops asking after failures in a row, and lets one question through after each pause."""

    def __init__(self, config: PolicyClientConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._failures = 0
        self._pause_ms = config.breaker_first_pause_ms
        self._closed_until_ms = 0.0

    def allows(self) -> bool:
        return self._clock() >= self._closed_until_ms

    def failed(self) -> None:
        self._failures += 1
        if self._failures >= self._config.breaker_failures:
            # Spread, so that many instances do not return to a struggling service at one moment.
            self._closed_until_ms = self._clock() + self._pause_ms * random.uniform(0.8, 1.2)  # noqa: S311
            self._pause_ms = min(2 * self._pause_ms, self._config.breaker_longest_pause_ms)

    def succeeded(self) -> None:
        self._failures = 0
        self._pause_ms = self._config.breaker_first_pause_ms


def _code_name(error: BaseException) -> str:
    return str(error.code().name) if isinstance(error, grpc.Call) else "CANCELLED"

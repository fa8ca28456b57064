"""Grants from a real policy service, and what is done without one."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from burstgate.policy.v1 import policy_pb2, policy_pb2_grpc
from burstgate_decode.policy_client import PolicyClientConfig, PolicyGrants
from burstgate_policy.core.types import (
    CostCell,
    Grant,
    LaneCapabilities,
    Mode,
    PolicyKey,
    Reason,
    Situation,
    StepRecord,
)

Start = Callable[..., Any]

KEY = PolicyKey("t", "d", "h", 8, "tf", "df", "float32", "cpu", "openblas", "1")
CAPABILITIES = LaneCapabilities(batchable=True, max_width=8, drafter_kind="mtp_head", apple_gpu_generation=0)
COSTS = tuple(CostCell(1, width, 64, 20.0 + width, 1.0 * (width > 1)) for width in (1, 2, 4, 8))
SITUATION = Situation(width=1, depth_tokens=64, min_emitted_tokens=100, eligible=True, max_draft_width=8)
# A busy machine may take long to answer; what is tested is what happens then, not how soon.
PATIENT = PolicyClientConfig(deadline_ms=5000.0, open_deadline_ms=10_000.0)


class Clock:
    """Time that passes with the real one, and may be moved on."""

    def __init__(self) -> None:
        self.ahead_ms = 0.0

    def __call__(self) -> float:
        return time.perf_counter() * 1e3 + self.ahead_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def connect(clock: Clock) -> Iterator[Callable[..., PolicyGrants]]:
    """Grants from an address, closed with the test."""
    opened: list[PolicyGrants] = []

    def one(address: str, config: PolicyClientConfig = PATIENT) -> PolicyGrants:
        opened.append(PolicyGrants(address, KEY, CAPABILITIES, COSTS, "test", clock, config))
        opened[-1].wait_open()
        return opened[-1]

    yield one
    for grants in opened:
        grants.close()


@pytest.fixture
def start_policy(start_process: Start, tmp_path: Path) -> Start:
    def start(listen: str = "127.0.0.1:0", **settings: object) -> Any:
        env = {"BURSTGATE_POLICY_LISTEN": listen, "BURSTGATE_HINT_DIR": str(tmp_path / "hints")}
        env |= {f"BURSTGATE_{name.upper()}": str(value) for name, value in settings.items()}
        return start_process(["-m", "burstgate_policy"], env)

    return start


def run(grants: PolicyGrants, grant: Grant, steps: int | None = None) -> None:
    for _ in range(steps or grant.max_steps):
        width = grant.draft_width
        accepted = (1,) * (width - 1)
        grants.report(
            StepRecord(grant.mode, width, 1, 64, len(accepted) + 1, width - 1, accepted, 1.0, 20.0, 0.5, 21.5, False)
        )


def burst(grants: PolicyGrants) -> Grant:
    grant = grants.next(SITUATION)
    run(grants, grant)
    return grant


FALLBACKS = {Reason.FALLBACK_STATIC, Reason.FALLBACK_LAST_GRANT}


def test_bursts_run_under_the_grants_of_the_service(start_policy: Start, connect: Callable[..., PolicyGrants]) -> None:
    grants = connect(start_policy().address)
    seen = [burst(grants) for _ in range(30)]
    assert not FALLBACKS & {grant.reason for grant in seen}
    assert {Mode.PLAIN, Mode.SPECULATIVE} & {grant.mode for grant in seen}
    link = grants.link()
    assert (link.connected, link.grants, link.fallbacks, link.dropped_steps) == (True, 30, 0, 0)


def test_a_question_sent_ahead_is_the_next_grant(start_policy: Start, connect: Callable[..., PolicyGrants]) -> None:
    grants = connect(start_policy().address)
    run(grants, grants.next(SITUATION))
    grants.prefetch(SITUATION)
    grants.prefetch(SITUATION)
    upcoming = grants.upcoming(5000)
    assert upcoming is not None
    assert grants.next(SITUATION) == upcoming
    assert grants.link().grants == 2


def test_without_a_service_the_static_gate_answers_and_the_port_is_found_when_it_opens(
    start_policy: Start, connect: Callable[..., PolicyGrants], clock: Clock, free_port: int
) -> None:
    grants = connect(f"127.0.0.1:{free_port}")
    grant = burst(grants)
    assert grant.reason is Reason.FALLBACK_STATIC
    assert grants.link() == (type(grants.link()))(False, 0, 1, 0)
    start_policy(f"127.0.0.1:{free_port}")
    wait_for_grant(grants, clock)
    assert grants.link().connected


def wait_for_grant(grants: PolicyGrants, clock: Clock) -> Grant:
    deadline = time.monotonic() + 30
    while (grant := burst(grants)).reason in FALLBACKS:
        assert time.monotonic() < deadline, "the service was not found again"
        # The breaker's pause goes by without being waited for.
        clock.ahead_ms += 1000
        time.sleep(0.05)
    return grant


def test_a_service_that_dies_is_replaced_by_its_last_grant_while_that_is_fresh(
    start_policy: Start, connect: Callable[..., PolicyGrants], clock: Clock
) -> None:
    service = start_policy(mtp_force="off", grant_fresh_ms=100_000)
    grants = connect(service.address)
    assert burst(grants).reason is Reason.FORCED_OFF
    service.kill()
    stale = burst(grants)
    assert (stale.reason, stale.mode) == (Reason.FALLBACK_LAST_GRANT, Mode.PLAIN)
    clock.ahead_ms += 200_000
    assert burst(grants).reason is Reason.FALLBACK_STATIC
    assert grants.link().fallbacks == 2
    assert not grants.link().connected


def test_a_service_that_restarts_gets_a_new_lane_and_what_it_missed(
    start_policy: Start, connect: Callable[..., PolicyGrants], clock: Clock, free_port: int
) -> None:
    service = start_policy(f"127.0.0.1:{free_port}")
    grants = connect(service.address)
    for _ in range(3):
        burst(grants)
    service.kill()
    for _ in range(3):
        assert burst(grants).reason in FALLBACKS
    again = start_policy(f"127.0.0.1:{free_port}")
    wait_for_grant(grants, clock)
    assert len(again.events("lane opened")) == 1
    assert grants.link().dropped_steps == 0


def test_outcomes_that_nobody_takes_are_dropped_oldest_first_and_counted(
    connect: Callable[..., PolicyGrants], free_port: int
) -> None:
    grants = connect(f"127.0.0.1:{free_port}", PolicyClientConfig(max_held_outcomes=4, open_deadline_ms=100))
    for _ in range(10):
        run(grants, grants.next(SITUATION), 3)
    grants.next(SITUATION)
    assert grants.link().dropped_steps == 6 * 3


class Scripted(policy_pb2_grpc.PolicyServiceServicer):
    """A policy service that answers as it is told and keeps the questions."""

    def __init__(self, answer: Callable[[policy_pb2.DecideBurstRequest, Any], Any]) -> None:
        self._answer = answer
        self.questions: list[policy_pb2.DecideBurstRequest] = []
        self.opened = 0
        self.lane_name = "lane-{}"

    def OpenLane(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.opened += 1
        return policy_pb2.OpenLaneResponse(lane_id=self.lane_name.format(self.opened))

    def DecideBurst(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.questions.append(request)
        return self._answer(request, context)

    def ReportBurst(self, request: Any, context: Any) -> Any:  # noqa: N802
        return policy_pb2.ReportBurstResponse()


@contextmanager
def scripted(answer: Callable[[policy_pb2.DecideBurstRequest, Any], Any]) -> Iterator[tuple[str, Scripted]]:
    servicer = Scripted(answer)
    server = grpc.server(ThreadPoolExecutor(8))
    policy_pb2_grpc.add_PolicyServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", servicer
    finally:
        server.stop(None).wait()


def plain(**changes: Any) -> policy_pb2.DecideBurstResponse:
    fields = {"grant_id": "g", "mode": policy_pb2.BURST_MODE_PLAIN, "draft_width": 1, "max_steps": 2, **changes}
    return policy_pb2.DecideBurstResponse(grant=policy_pb2.BurstGrant(**fields))


@pytest.mark.parametrize(
    "response",
    [
        policy_pb2.DecideBurstResponse(),
        plain(mode=0),
        plain(mode=99),
        plain(draft_width=0),
        plain(draft_width=4),
        plain(max_steps=0),
        plain(max_steps=1025),
        plain(mode=policy_pb2.BURST_MODE_SPECULATIVE, draft_width=1),
        plain(mode=policy_pb2.BURST_MODE_SPECULATIVE, draft_width=65),
    ],
)
def test_a_grant_that_cannot_be_followed_is_a_failure_and_not_obeyed(
    connect: Callable[..., PolicyGrants], response: policy_pb2.DecideBurstResponse
) -> None:
    with scripted(lambda *_: response) as (address, _):
        grants = connect(address)
        assert grants.next(SITUATION).reason is Reason.FALLBACK_STATIC
        grants.prefetch(SITUATION)
        assert grants.upcoming(5000) is None
        assert grants.link().grants == 0


def test_a_reason_that_is_not_known_yet_is_followed_and_a_long_sentence_is_cut(
    connect: Callable[..., PolicyGrants],
) -> None:
    with scripted(lambda *_: plain(reason=999, explanation="so " * 100_000)) as (address, _):
        grant = connect(address).next(SITUATION)
    assert (grant.mode, grant.reason) == (Mode.PLAIN, Reason.UNSPECIFIED)
    assert len(grant.explanation) == 500


def test_an_outcome_is_sent_until_it_is_acknowledged_and_then_no_more(
    connect: Callable[..., PolicyGrants], clock: Clock
) -> None:
    down = [True]

    def answer(request: Any, context: Any) -> Any:
        if down[0]:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return plain()

    with scripted(answer) as (address, servicer):
        grants = connect(address)
        for _ in range(2):
            run(grants, grants.next(SITUATION), 1)
        down[0] = False
        for _ in range(2):
            run(grants, grants.next(SITUATION), 1)
        sent = [[outcome.sequence for outcome in question.outcomes] for question in servicer.questions]
    assert sent == [[], [1], [1, 2], [3]]


def test_steps_run_while_a_question_is_out_are_told_next_under_the_grant_they_ran_under(
    connect: Callable[..., PolicyGrants],
) -> None:
    numbers = iter(range(1, 10))
    with scripted(lambda *_: plain(grant_id=f"grant-{next(numbers)}")) as (address, servicer):
        grants = connect(address)
        for _ in range(3):
            grant = grants.next(SITUATION)
            run(grants, grant, 2)
            grants.prefetch(SITUATION)
            run(grants, grant, 1)
        grants.next(SITUATION)
        grants.prefetch(SITUATION)
        assert grants.upcoming(5000) is not None
        told = [
            [(outcome.sequence, outcome.grant_id, len(outcome.steps)) for outcome in question.outcomes]
            for question in servicer.questions
        ]
    assert told == [
        [],
        [(1, "grant-1", 2)],
        [(2, "grant-1", 1), (3, "grant-2", 2)],
        [(4, "grant-2", 1), (5, "grant-3", 2)],
        [(6, "grant-3", 1)],
    ]


def test_an_outcome_that_the_service_refuses_is_dropped_and_counted(connect: Callable[..., PolicyGrants]) -> None:
    def answer(request: Any, context: Any) -> Any:
        if any(outcome.sequence == 1 for outcome in request.outcomes):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such step")
        return plain()

    with scripted(answer) as (address, servicer):
        grants = connect(address)
        run(grants, grants.next(SITUATION), 3)
        assert grants.next(SITUATION).reason in FALLBACKS
        run(grants, grants.next(SITUATION), 1)
        grants.next(SITUATION)
        last = servicer.questions[-1]
    assert grants.link().dropped_steps == 3
    assert [(outcome.sequence, outcome.dropped_steps) for outcome in last.outcomes] == [(2, 3)]


def test_a_lost_lane_is_opened_again_and_is_no_failure_of_the_service(connect: Callable[..., PolicyGrants]) -> None:
    def answer(request: Any, context: Any) -> Any:
        if request.lane_id == "lane-1":
            context.abort(grpc.StatusCode.NOT_FOUND, "lane expired")
        return plain()

    with scripted(answer) as (address, servicer):
        grants = connect(address)
        assert burst(grants).reason in FALLBACKS
        deadline = time.monotonic() + 20
        while burst(grants).reason in FALLBACKS:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert servicer.opened == 2


def test_a_lane_without_an_id_is_a_failure_and_is_not_asked_for_without_end(
    connect: Callable[..., PolicyGrants],
) -> None:
    with scripted(lambda *_: plain()) as (address, servicer):
        servicer.lane_name = ""
        grants = connect(address, PolicyClientConfig(open_deadline_ms=10_000.0, breaker_first_pause_ms=60_000.0))
        deadline = time.monotonic() + 20
        while servicer.opened < 3:
            assert time.monotonic() < deadline
            assert grants.next(SITUATION).reason is Reason.FALLBACK_STATIC
            time.sleep(0.01)
        for _ in range(20):
            grants.next(SITUATION)
            time.sleep(0.01)
        assert servicer.opened == 3
        assert servicer.questions == []


def test_after_failures_in_a_row_nothing_is_asked_until_a_pause_has_passed(
    connect: Callable[..., PolicyGrants], clock: Clock
) -> None:
    def answer(request: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.INTERNAL, "broken")

    with scripted(answer) as (address, servicer):
        # A pause of a minute cannot pass by itself here.
        grants = connect(address, PolicyClientConfig(deadline_ms=5000.0, breaker_first_pause_ms=60_000.0))
        for _ in range(10):
            burst(grants)
        assert len(servicer.questions) == 3
        clock.ahead_ms += 80_000
        for _ in range(10):
            burst(grants)
        assert len(servicer.questions) == 4


def test_an_answer_that_nobody_needs_any_more_is_neither_waited_for_nor_missed(
    connect: Callable[..., PolicyGrants],
) -> None:
    slow = threading.Event()

    def answer(request: Any, context: Any) -> Any:
        if len(servicer.questions) == 2:
            slow.wait(30)
        return plain()

    with scripted(answer) as (address, servicer):
        grants = connect(address)
        run(grants, grants.next(SITUATION), 2)
        grants.prefetch(SITUATION)
        started = time.perf_counter()
        grants.idle()
        assert time.perf_counter() - started < 4.0
        assert grants.link().connected
        slow.set()
        grants.next(SITUATION)
        # Whether the first question's outcome arrived is not known, so it is told again.
        assert [outcome.sequence for outcome in servicer.questions[-1].outcomes] == [1]


def test_a_slow_answer_is_waited_for_no_longer_than_the_deadline(connect: Callable[..., PolicyGrants]) -> None:
    def answer(request: Any, context: Any) -> Any:
        time.sleep(3.0)
        return plain()

    with scripted(answer) as (address, _):
        grants = connect(address, PolicyClientConfig(deadline_ms=5.0))
        started = time.perf_counter()
        assert grants.next(SITUATION).reason is Reason.FALLBACK_STATIC
        assert time.perf_counter() - started < 2.0
        assert not grants.link().connected

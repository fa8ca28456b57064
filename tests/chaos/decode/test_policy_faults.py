"""The policy service dies, freezes, crawls, lies or comes back: no stream ends and no token changes."""

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from tests.integration.decode.asking import AUTO, OFF, Answer, Decode, ask, check_account, until

from burstgate.decode.v1 import decode_pb2
from burstgate.policy.v1 import policy_pb2, policy_pb2_grpc

TOKENS = 24
ENDLESS = decode_pb2.StopOptions(ignore_eos=True)
SAMPLED = decode_pb2.SamplingOptions(temperature=0.8, seed=3)


def requests(mode: Any, max_tokens: int = TOKENS) -> list[decode_pb2.GenerateRequest]:
    return [
        ask(mode=mode, max_tokens=max_tokens, stop=ENDLESS),
        ask("Name three colours.", mode=mode, max_tokens=max_tokens, stop=ENDLESS),
        ask("Write a line about the sea.", mode=mode, max_tokens=max_tokens, stop=ENDLESS, sampling=SAMPLED),
    ]


@pytest.fixture(scope="module")
def plain(decode: Decode) -> list[list[int]]:
    """The tokens without speculation, which no policy has a part in."""
    return [answer.tokens for answer in decode.at_once(requests(OFF))]


def check(answers: list[Answer], plain: list[list[int]]) -> None:
    for answer, tokens in zip(answers, plain, strict=True):
        assert answer.tokens == tokens
        check_account(answer)


def wait_for_grants(decode: Decode, limit_s: float = 30.0) -> None:
    """Runs short answers until one has run under a grant of the service."""
    before = decode.info().policy.grants

    def granted() -> bool:
        decode.answer(ask(mode=AUTO, max_tokens=4))
        link = decode.info().policy
        return link.connected and link.grants > before

    until(granted, limit_s)


def during(decode: Decode, happen: Callable[[], None]) -> list[Answer]:
    """The three answers, with something happening while all of them run."""
    with ThreadPoolExecutor(1) as pool:
        answering = pool.submit(decode.at_once, requests(AUTO))
        until(lambda: decode.info().active_rows == 3, 60)
        happen()
        return answering.result()


def test_a_healthy_policy_is_obeyed_and_changes_no_token(decode: Decode, policy: Any, plain: list[list[int]]) -> None:
    wait_for_grants(decode)
    before = decode.info().policy
    check(during(decode, lambda: None), plain)
    assert decode.info().policy.grants > before.grants


def test_a_policy_that_is_killed_costs_no_token(decode: Decode, policy: Any, plain: list[list[int]]) -> None:
    wait_for_grants(decode)
    before = decode.info().policy
    check(during(decode, policy.kill), plain)
    after = decode.info().policy
    assert after.fallbacks > before.fallbacks
    assert not after.connected
    # A whole request without a policy.
    check(decode.at_once(requests(AUTO)), plain)

    policy.start()
    wait_for_grants(decode)


def test_a_policy_that_restarts_under_a_stream_is_asked_again_with_a_new_lane(
    decode: Decode, policy: Any, plain: list[list[int]]
) -> None:
    wait_for_grants(decode)
    before = decode.info().policy

    def restart() -> None:
        policy.kill()
        policy.start()

    check(during(decode, restart), plain)
    wait_for_grants(decode)
    assert policy.process.events("lane opened")
    assert decode.info().policy.grants > before.grants


def test_a_frozen_policy_costs_a_few_milliseconds_a_burst(decode: Decode, policy: Any, plain: list[list[int]]) -> None:
    wait_for_grants(decode)
    before = decode.info().policy
    check(during(decode, policy.freeze), plain)
    assert decode.info().policy.fallbacks > before.fallbacks
    policy.thaw()
    wait_for_grants(decode)


class _Slow(policy_pb2_grpc.PolicyServiceServicer):
    """A real service behind a second of delay a call."""

    def __init__(self, address: str) -> None:
        self._stub: Any = policy_pb2_grpc.PolicyServiceStub(  # type: ignore[no-untyped-call]
            grpc.insecure_channel(address)
        )
        self.asked = 0

    def OpenLane(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._late(self._stub.OpenLane, request)

    def DecideBurst(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._late(self._stub.DecideBurst, request)

    def ReportBurst(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._late(self._stub.ReportBurst, request)

    def _late(self, call: Any, request: Any) -> Any:
        self.asked += 1
        time.sleep(1.0)
        return call(request, timeout=30)


def test_a_policy_that_takes_a_second_a_call_is_not_waited_for(
    decode: Decode, policy: Any, plain: list[list[int]]
) -> None:
    behind = policy.elsewhere()
    slow = _Slow(behind.address)
    before = decode.info().policy
    with policy.served_by(slow):
        deadline = time.monotonic() + 60
        while not slow.asked and time.monotonic() < deadline:
            check(decode.at_once(requests(AUTO)), plain)
        assert slow.asked
    assert decode.info().policy.fallbacks > before.fallbacks
    policy.start()
    wait_for_grants(decode)


NONSENSE: list[dict[str, Any]] = [
    {},
    {"mode": 0, "draft_width": 4, "max_steps": 4},
    {"mode": 99, "draft_width": 4, "max_steps": 4},
    {"mode": policy_pb2.BURST_MODE_SPECULATIVE, "draft_width": 0, "max_steps": 4},
    {"mode": policy_pb2.BURST_MODE_SPECULATIVE, "draft_width": 1, "max_steps": 4},
    {"mode": policy_pb2.BURST_MODE_SPECULATIVE, "draft_width": 65, "max_steps": 4},
    {"mode": policy_pb2.BURST_MODE_SPECULATIVE, "draft_width": 64, "max_steps": 3, "reason": 77},
    {"mode": policy_pb2.BURST_MODE_SPECULATIVE, "draft_width": 4, "max_steps": 0},
    {"mode": policy_pb2.BURST_MODE_SPECULATIVE, "draft_width": 4, "max_steps": 2**32 - 1},
    {"mode": policy_pb2.BURST_MODE_PLAIN, "draft_width": 8, "max_steps": 2},
    {"mode": policy_pb2.BURST_MODE_PINNED, "draft_width": 5, "max_steps": 2, "fresh_ms": 2**32 - 1},
    {"mode": policy_pb2.BURST_MODE_PLAIN, "draft_width": 1, "max_steps": 1, "explanation": "no " * 1_000_000},
    {"mode": policy_pb2.BURST_MODE_PROBE_SPECULATIVE, "draft_width": 2, "max_steps": 1, "grant_id": "g" * 10_000},
]


class _Liar(policy_pb2_grpc.PolicyServiceServicer):
    """Answers every question, and every answer differently."""

    def __init__(self) -> None:
        self._answers = itertools.cycle(NONSENSE)
        self.asked = 0

    def OpenLane(self, request: Any, context: Any) -> Any:  # noqa: N802
        return policy_pb2.OpenLaneResponse(lane_id="lane")

    def DecideBurst(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked += 1
        return policy_pb2.DecideBurstResponse(grant=policy_pb2.BurstGrant(**next(self._answers)))

    def ReportBurst(self, request: Any, context: Any) -> Any:  # noqa: N802
        context.abort(grpc.StatusCode.UNKNOWN, "what?")


def test_a_policy_that_talks_nonsense_changes_no_token_and_leaves_nothing_behind(
    decode: Decode, policy: Any, plain: list[list[int]]
) -> None:
    liar = _Liar()
    with policy.served_by(liar):
        deadline = time.monotonic() + 90
        while liar.asked < len(NONSENSE) and time.monotonic() < deadline:
            answers = decode.at_once(requests(AUTO))
            check(answers, plain)
            assert all(len(answer.done.speculation.explanation) < 2000 for answer in answers)
        assert liar.asked >= len(NONSENSE)
    # What was measured under nonsense does not keep the real service from answering.
    policy.start()
    wait_for_grants(decode)
    wait_for_grants(decode)


def test_a_policy_that_refuses_every_outcome_is_not_asked_for_ever_with_the_same_ones(
    decode: Decode, policy: Any, plain: list[list[int]]
) -> None:
    class Refusing(policy_pb2_grpc.PolicyServiceServicer):
        refused = 0

        def OpenLane(self, request: Any, context: Any) -> Any:  # noqa: N802
            return policy_pb2.OpenLaneResponse(lane_id="lane")

        def DecideBurst(self, request: Any, context: Any) -> Any:  # noqa: N802
            if request.outcomes:
                self.refused += 1
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
            grant = policy_pb2.BurstGrant(mode=policy_pb2.BURST_MODE_PLAIN, draft_width=1, max_steps=1)
            return policy_pb2.DecideBurstResponse(grant=grant)

        def ReportBurst(self, request: Any, context: Any) -> Any:  # noqa: N802
            return policy_pb2.ReportBurstResponse()

    before = decode.info().policy
    refusing = Refusing()
    with policy.served_by(refusing):
        deadline = time.monotonic() + 60
        while not refusing.refused and time.monotonic() < deadline:
            check(decode.at_once(requests(AUTO)), plain)
        assert refusing.refused
    assert decode.info().policy.dropped_steps > before.dropped_steps
    policy.start()
    wait_for_grants(decode)

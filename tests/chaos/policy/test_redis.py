"""Redis killed, frozen and emptied under a running policy service: grants go on and nothing learned is lost."""

import signal
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from burstgate.policy.v1 import policy_pb2
from burstgate_policy.hints.redis import RedisHintStore

REFRESH_S = 0.3


@pytest.fixture
def redis_server(start_redis: Callable[[], Any]) -> Any:
    return start_redis()


@pytest.fixture
def start_replica(start_process: Callable[..., Any], redis_server: Any) -> Callable[[], Any]:
    def start() -> Any:
        env = {
            "BURSTGATE_POLICY_LISTEN": "127.0.0.1:0",
            "BURSTGATE_HINT_STORE": redis_server.url,
            "BURSTGATE_HINT_REFRESH_S": str(REFRESH_S),
        }
        return start_process(["-m", "burstgate_policy"], env)

    return start


def slowest_burst_s(lane: Any, *, during_s: float) -> float:
    slowest_s, ends = 0.0, time.monotonic() + during_s
    while time.monotonic() < ends:
        started = time.perf_counter()
        lane.burst()
        slowest_s = max(slowest_s, time.perf_counter() - started)
    return slowest_s


@pytest.mark.parametrize("trouble", ["killed", "frozen"])
def test_without_redis_grants_go_on_and_what_was_learned_is_stored_when_it_returns(
    start_replica: Callable[[], Any], redis_server: Any, policy_lane: Any, trouble: str
) -> None:
    first, second = start_replica(), start_replica()
    with grpc.insecure_channel(first.address) as here, grpc.insecure_channel(second.address) as there:
        lane = policy_lane(here)
        lane.settle()
        if trouble == "killed":
            redis_server.kill()
        else:
            redis_server.signal(signal.SIGSTOP)
        # Two seconds: frozen calls reach their limit, more than once.
        assert slowest_burst_s(lane, during_s=2.5) < 0.5
        meanwhile = policy_lane(here, target="meanwhile", round_ms=60.0, accepted=1)
        meanwhile.settle()
        assert meanwhile.burst().reason == policy_pb2.GRANT_REASON_VERDICT_DECLINED
        other = policy_lane(there, target="other")
        other.settle()
        if trouble == "killed":
            redis_server.start()
        else:
            redis_server.signal(signal.SIGCONT)
        for replica in (first, second):
            replica.wait_event("hint store answers again")
        deadline = time.monotonic() + 5 * REFRESH_S + 2
        while not policy_lane(there, target="meanwhile").snapshot.from_hint:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        while not policy_lane(here, target="other").snapshot.from_hint:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    for replica in (first, second):
        assert [len(replica.events(f"hint store {what}")) for what in ("failed", "answers again")] == [1, 1]
        assert not [line for line in replica.lines if line["level"] == "error"]


def test_a_service_starts_and_serves_without_its_redis(
    start_replica: Callable[[], Any], redis_server: Any, policy_lane: Any
) -> None:
    redis_server.kill()
    policy = start_replica()
    with grpc.insecure_channel(policy.address) as channel:
        lane = policy_lane(channel)
        lane.settle()
    redis_server.start()
    policy.wait_event("hint stored")
    assert RedisHintStore(redis_server.url).load(lane.snapshot.key_hash).document is not None


def test_an_emptied_redis_is_filled_again_by_the_services_that_remember(
    start_replica: Callable[[], Any], redis_server: Any, policy_lane: Any
) -> None:
    policy = start_replica()
    with grpc.insecure_channel(policy.address) as channel:
        lane = policy_lane(channel)
        lane.settle()
        policy.wait_event("hint stored")
        redis_server.wipe()
        redis_server.start()
        store = RedisHintStore(redis_server.url)
        deadline = time.monotonic() + 10
        while store.load(lane.snapshot.key_hash).document is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_service_that_stops_while_redis_is_down_does_not_hang(
    start_replica: Callable[[], Any], redis_server: Any, policy_lane: Any
) -> None:
    policy = start_replica()
    with grpc.insecure_channel(policy.address) as channel:
        policy_lane(channel).settle()
        redis_server.signal(signal.SIGSTOP)
        policy_lane(channel, target="more").settle()
        started = time.monotonic()
        assert policy.stop() == 0
        assert time.monotonic() - started < 8
    redis_server.signal(signal.SIGCONT)

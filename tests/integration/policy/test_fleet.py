"""Many lanes on one service, and several services on one Redis."""

import concurrent.futures
import json
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from burstgate.policy.v1 import admin_pb2, admin_pb2_grpc, policy_pb2

Start = Callable[..., Any]
Connect = Callable[[str], grpc.Channel]

REFRESH_S = 0.5
# The stated bound is one refresh and the writing; the rest is what a busy test machine needs.
AGREED_WITHIN_S = REFRESH_S + 2.0


def admin(channel: grpc.Channel) -> Any:
    return admin_pb2_grpc.PolicyAdminServiceStub(channel)  # type: ignore[no-untyped-call]


def snapshot(channel: grpc.Channel, key_hash: str) -> Any:
    request = admin_pb2.GetVerdictRequest(key_hash=key_hash)
    return admin(channel).GetVerdict(request, timeout=5).verdict.snapshot


def wait_until(true: Callable[[], bool], limit_s: float = AGREED_WITHIN_S) -> float:
    """Waits and returns how long it took."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < limit_s, "too late"
        time.sleep(0.02)
    return time.monotonic() - started


def test_sixty_four_lanes_at_once_are_all_served_and_settle_apart(
    start_policy: Start, connect: Connect, policy_lane: Any
) -> None:
    policy = start_policy()
    channel = connect(policy.address)

    def run(number: int) -> tuple[int, int]:
        pays = number % 2 == 0
        lane = policy_lane(
            channel, target=f"t{number % 32}", round_ms=24.0 if pays else 60.0, accepted=3 if pays else 1
        )
        lane.settle()
        for _ in range(20):
            lane.burst()
        return number, snapshot(channel, lane.snapshot.key_hash).verdict

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        verdicts = dict(pool.map(run, range(64)))
    expected = {True: policy_pb2.VERDICT_ENABLE, False: policy_pb2.VERDICT_DECLINE}
    assert verdicts == {number: expected[number % 2 == 0] for number in range(64)}
    listed = admin(channel).ListVerdicts(admin_pb2.ListVerdictsRequest(), timeout=10).verdicts
    assert sum(len(view.lanes) for view in listed) == 64
    assert not [line for line in policy.lines if line["level"] in ("warning", "error")]


def test_lanes_of_vanished_instances_expire(start_policy: Start, connect: Connect, policy_lane: Any) -> None:
    channel = connect(start_policy(lane_ttl_s=0.5).address)
    lanes = [policy_lane(channel, target=f"t{number}") for number in range(8)]
    deadline = time.monotonic() + 1.2
    while time.monotonic() < deadline:
        lanes[0].burst()
        time.sleep(0.05)
    listed = admin(channel).ListVerdicts(admin_pb2.ListVerdictsRequest(), timeout=10).verdicts
    assert [lane.lane_id for view in listed for lane in view.lanes] == [lanes[0].lane_id]
    assert len(listed) == 8, "the pairings are still known"


@pytest.fixture
def redis_server(start_redis: Callable[[], Any]) -> Any:
    return start_redis()


@pytest.fixture
def replicas(start_policy: Start, redis_server: Any) -> list[Any]:
    """Two services on one Redis."""
    return [start_policy(hint_store=redis_server.url, hint_refresh_s=REFRESH_S) for _ in range(2)]


def test_two_replicas_behind_a_round_robin_client_agree_on_a_verdict(
    replicas: list[Any], connect: Connect, policy_lane: Any
) -> None:
    addresses = "ipv4:" + ",".join(replica.address for replica in replicas)
    config = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
    first, second = (connect(replica.address) for replica in replicas)
    with grpc.insecure_channel(addresses, [("grpc.service_config", config)]) as channel:
        lane = policy_lane(channel, round_ms=60.0, accepted=1)
        key_hash = lane.snapshot.key_hash
        # Each call goes to the next replica, so each gets a part of the evidence, and no call fails.
        wait_until(lambda: lane.burst().reason == policy_pb2.GRANT_REASON_VERDICT_DECLINED, 10.0)
        wait_until(lambda: verdicts_of([first, second], key_hash) == {policy_pb2.VERDICT_DECLINE})
        grants = [lane.burst() for _ in range(20)]
    assert {grant.reason for grant in grants} == {policy_pb2.GRANT_REASON_VERDICT_DECLINED}
    assert len({grant.grant_id for grant in grants}) == 20


def verdicts_of(channels: list[grpc.Channel], key_hash: str) -> set[int]:
    return {snapshot(channel, key_hash).verdict for channel in channels}


def test_a_lane_opened_on_one_replica_is_served_by_the_other_until_it_is_forgotten(
    start_policy: Start, redis_server: Any, connect: Connect, policy_lane: Any
) -> None:
    first, second = (connect(start_policy(hint_store=redis_server.url, lane_ttl_s=0.5).address) for _ in range(2))
    lane = policy_lane(first)
    there = type(lane.stub)(second)
    question = policy_pb2.StreamBurstsRequest(lane_id=lane.lane_id, situation=lane.request().situation)
    assert there.DecideBurst(lane.request(), timeout=5).grant.max_steps > 0
    assert not next(there.StreamBursts(iter([question]), timeout=5)).unknown_lane
    there.ReportBurst(policy_pb2.ReportBurstRequest(lane_id=lane.lane_id), timeout=5)
    time.sleep(0.7)
    with pytest.raises(grpc.RpcError) as caught:
        there.DecideBurst(lane.request(), timeout=5)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_sixty_four_lanes_opened_on_one_replica_are_all_served_by_the_other_at_once(
    replicas: list[Any], connect: Connect, policy_lane: Any
) -> None:
    first, second = (connect(replica.address) for replica in replicas)
    lanes = [policy_lane(first, target=f"t{number}") for number in range(64)]
    there = type(lanes[0].stub)(second)
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda lane: there.DecideBurst(lane.request(), timeout=20), lanes))
    assert all(answer.grant.max_steps > 0 for answer in answers)
    assert not [line for line in replicas[1].lines if line["level"] in ("warning", "error")]


def test_what_one_replica_settles_pins_and_resets_the_other_follows_within_the_bound(
    replicas: list[Any], connect: Connect, policy_lane: Any
) -> None:
    first, second = (connect(replica.address) for replica in replicas)
    here = policy_lane(first, round_ms=60.0, accepted=1)
    there = policy_lane(second, round_ms=60.0, accepted=1)
    key_hash = here.snapshot.key_hash
    here.settle()
    wait_until(lambda: snapshot(second, key_hash).verdict == policy_pb2.VERDICT_DECLINE)
    assert there.burst().reason == policy_pb2.GRANT_REASON_VERDICT_DECLINED
    assert snapshot(second, key_hash).evidence == snapshot(first, key_hash).evidence
    assert snapshot(second, key_hash).from_hint
    pin = admin_pb2.PinVerdictRequest(key_hash=key_hash, speculate=True, reason="r", author="a")
    admin(second).PinVerdict(pin, timeout=5)
    wait_until(lambda: here.burst().reason == policy_pb2.GRANT_REASON_PINNED_ON)
    admin(first).UnpinVerdict(admin_pb2.UnpinVerdictRequest(key_hash=key_hash), timeout=5)
    wait_until(lambda: there.burst().reason == policy_pb2.GRANT_REASON_VERDICT_DECLINED)
    admin(second).ResetVerdict(admin_pb2.ResetVerdictRequest(key_hash=key_hash), timeout=5)
    wait_until(lambda: snapshot(first, key_hash).state == policy_pb2.POLICY_STATE_PROFILING)


def test_a_replica_that_starts_later_knows_everything(
    start_policy: Start, replicas: list[Any], redis_server: Any, connect: Connect, policy_lane: Any
) -> None:
    policy_lane(connect(replicas[0].address)).settle()
    replicas[0].wait_event("hint stored")
    late = start_policy(hint_store=redis_server.url)
    assert policy_lane(connect(late.address)).snapshot.from_hint


def test_nothing_of_a_request_or_of_who_asked_is_ever_stored(
    replicas: list[Any], redis_server: Any, connect: Connect, policy_lane: Any, hint_dir: Any
) -> None:
    secret = "tenant-7f3a"
    lane = policy_lane(connect(replicas[0].address))
    request = lane.request()
    lane.open_request.instance_id = secret
    lane.stub.OpenLane(lane.open_request, timeout=5, metadata=(("x-request-id", secret), ("tenant", secret)))
    request.outcomes.add(grant_id=secret, sequence=1)
    lane.stub.DecideBurst(request, timeout=5, metadata=(("x-request-id", secret),))
    lane._sequence = 1
    lane.settle()
    replicas[0].wait_event("hint stored")
    client = redis_server.client()
    read: dict[bytes, Callable[[bytes], Any]] = {
        b"hash": client.hgetall,
        b"string": client.get,
        b"zset": lambda name: client.zrange(name, 0, -1),
    }
    content = b"".join(name + repr(read[client.type(name)](name)).encode() for name in client.keys("*"))
    assert lane.snapshot.key_hash.encode() in content
    assert secret.encode() not in content
    assert not hint_dir.exists()

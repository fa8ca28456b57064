"""What deciding has cost, as the running service tells it: by call, as a metric, and after a lane is gone."""

import time
import urllib.request
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from burstgate.policy.v1 import admin_pb2, admin_pb2_grpc

Start = Callable[..., Any]
Connect = Callable[[str], grpc.Channel]


def admin(channel: grpc.Channel) -> Any:
    return admin_pb2_grpc.PolicyAdminServiceStub(channel)  # type: ignore[no-untyped-call]


def view(channel: grpc.Channel, lane: Any) -> admin_pb2.VerdictView:
    request = admin_pb2.GetVerdictRequest(key_hash=lane.snapshot.key_hash)
    answer: admin_pb2.VerdictView = admin(channel).GetVerdict(request, timeout=10).verdict
    return answer


def losing(policy_lane: Any, channel: grpc.Channel, bursts: int = 40) -> Any:
    """A lane that a person makes speculate although each round of two tokens takes as long as three plain steps."""
    lane = policy_lane(channel, round_ms=60.0, accepted=1)
    lane.settle()
    pin = admin_pb2.PinVerdictRequest(key_hash=lane.snapshot.key_hash, speculate=True, reason="a test", author="ada")
    admin(channel).PinVerdict(pin, timeout=10)
    for _ in range(bursts):
        lane.burst()
    lane.report()
    return lane


def metrics(port: int, key_hash: str) -> dict[str, float]:
    """The series of one pairing by name."""
    body = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    labels = f'{{key_hash="{key_hash}"}}'
    series = [line.rpartition(" ") for line in body.splitlines() if labels in line]
    return {name.removesuffix(labels): float(value) for name, _, value in series}


def test_a_lane_that_loses_time_says_how_much_and_against_what(
    start_policy: Start, connect: Connect, policy_lane: Any
) -> None:
    channel = connect(start_policy().address)
    lane = losing(policy_lane, channel)
    told = view(channel, lane)
    (shown,) = told.lanes
    regret = shown.regret
    assert regret.best_draft_width == regret.recent_best_draft_width == 1
    assert regret.actual_ms == pytest.approx(shown.steps * 60.0, rel=0.1)
    assert regret.lost_ms == pytest.approx(regret.actual_ms / 3, rel=0.1)
    assert regret.best_ms == pytest.approx(regret.actual_ms - regret.lost_ms)
    assert regret.share == pytest.approx(regret.lost_ms / regret.actual_ms)
    assert regret.recent_share == pytest.approx(regret.share, abs=0.02)
    assert told.regret == regret, "a pairing with one lane has that lane's account"


def test_a_pairing_that_ran_nothing_has_no_account(start_policy: Start, connect: Connect, policy_lane: Any) -> None:
    channel = connect(start_policy().address)
    lane = policy_lane(channel)
    lane.burst()
    told = view(channel, lane)
    assert not told.HasField("regret")
    assert not told.lanes[0].HasField("regret")


def test_what_a_lane_lost_stays_with_the_pairing_when_the_lane_is_gone(
    start_policy: Start, connect: Connect, policy_lane: Any, free_port: int
) -> None:
    policy = start_policy(lane_ttl_s=1.0, metrics_listen=f"127.0.0.1:{free_port}")
    channel = connect(policy.address)
    lane = losing(policy_lane, channel)
    before = view(channel, lane)
    assert len(before.lanes) == 1
    time.sleep(1.2)
    after = view(channel, lane)
    assert not after.lanes
    assert after.regret.lost_ms == pytest.approx(before.regret.lost_ms) != 0.0
    assert after.regret.actual_ms == pytest.approx(before.regret.actual_ms)
    assert (after.regret.recent_share, after.regret.recent_best_draft_width) == (0.0, 0)
    assert metrics(free_port, lane.snapshot.key_hash)["burstgate_policy_lost_seconds"] == pytest.approx(
        before.regret.lost_ms / 1e3
    )
    successor = losing(policy_lane, channel)
    both = view(channel, successor)
    (own,) = both.lanes
    assert both.regret.lost_ms == pytest.approx(before.regret.lost_ms + own.regret.lost_ms)


def test_a_lane_that_lost_too_much_says_that_it_holds_the_cheaper_mode(
    start_policy: Start, connect: Connect, policy_lane: Any, free_port: int
) -> None:
    policy = start_policy(metrics_listen=f"127.0.0.1:{free_port}")
    channel = connect(policy.address)
    lane = losing(policy_lane, channel, bursts=120)
    told = view(channel, lane)
    assert told.lanes[0].regret.holding
    assert told.regret.holding
    read = metrics(free_port, lane.snapshot.key_hash)
    assert read["burstgate_policy_holding_lanes"] == 1.0
    assert read["burstgate_policy_recent_lost_share"] == pytest.approx(told.regret.recent_share)
    assert read["burstgate_policy_lost_share"] == pytest.approx(told.regret.share)
    assert read["burstgate_policy_run_seconds_total"] == pytest.approx(told.regret.actual_ms / 1e3)
    assert read["burstgate_policy_lost_seconds"] == pytest.approx(told.regret.lost_ms / 1e3)


def test_what_deciding_cost_two_lanes_is_added_up_and_no_other_pairings(
    start_policy: Start, connect: Connect, policy_lane: Any, free_port: int
) -> None:
    policy = start_policy(metrics_listen=f"127.0.0.1:{free_port}")
    channel = connect(policy.address)
    first = losing(policy_lane, channel)
    losing(policy_lane, channel)
    other = policy_lane(channel, target="other")
    other.settle()
    other.report()
    told = view(channel, first)
    assert len(told.lanes) == 2
    assert told.regret.actual_ms == pytest.approx(sum(lane.regret.actual_ms for lane in told.lanes))
    assert told.regret.lost_ms == pytest.approx(sum(lane.regret.lost_ms for lane in told.lanes))
    assert view(channel, other).regret.actual_ms < told.regret.actual_ms
    read = metrics(free_port, other.snapshot.key_hash)
    assert read["burstgate_policy_run_seconds_total"] == pytest.approx(view(channel, other).regret.actual_ms / 1e3)

"""The tables of lanes and pairings, under a clock of the test's."""

import itertools

import pytest

from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.types import LaneCapabilities, PolicyKey
from burstgate_policy.lanes import LaneEntry, LaneTable
from burstgate_runtime.faults import Fault, FaultKind


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> LaneTable:
    ids = itertools.count(1)
    return LaneTable(clock=clock, new_id=lambda: f"lane-{next(ids)}", max_lanes=2, ttl_s=60.0)


def policy(target: str) -> MtpPolicy:
    key = PolicyKey(target, "d", "h", 4, "", "", "float32", "cpu", "", "1")
    return MtpPolicy.start(
        key, force=None, adaptive=True, static_default=False, hint=None, config=CoreConfig(), now_s=0.0
    )


def open_lane(table: LaneTable, target: str = "t") -> LaneEntry:
    capabilities = LaneCapabilities(True, 1, "mtp_head", 0)
    return table.open(policy(target), "instance", lambda policy: Lane(policy, capabilities, (), CoreConfig()))


def test_a_known_pairings_policy_rules_a_new_lane_not_the_one_brought_along(table: LaneTable) -> None:
    first, second = open_lane(table), open_lane(table)
    assert first.lane.policy is second.lane.policy
    assert first.lane_id != second.lane_id


def test_a_lane_lives_as_long_as_it_is_used(table: LaneTable, clock: Clock) -> None:
    entry = open_lane(table)
    for _ in range(5):
        clock.now_s += 59
        assert table.find(entry.lane_id) is entry
    clock.now_s += 61
    assert table.find(entry.lane_id) is None
    clock.now_s -= 61
    assert table.find(entry.lane_id) is None, "an expired lane came back"


def test_a_full_table_says_when_the_stalest_lane_will_be_gone(table: LaneTable, clock: Clock) -> None:
    stale, fresh = open_lane(table), open_lane(table)
    clock.now_s += 40
    table.find(stale.lane_id)
    clock.now_s += 10
    with pytest.raises(Fault) as caught:
        open_lane(table)
    assert (caught.value.kind, caught.value.reason) == (FaultKind.RESOURCE_EXHAUSTED, "TOO_MANY_LANES")
    assert caught.value.retry_after_ms == 10_000
    clock.now_s += 11
    open_lane(table)
    assert table.find(fresh.lane_id) is None


def test_a_pairing_outlives_its_lanes_until_newer_ones_need_the_room(table: LaneTable, clock: Clock) -> None:
    hashes = []
    for n in range(5):
        hashes.append(open_lane(table, f"t{n}").lane.policy.key.hash)
        clock.now_s += 100
    assert [table.policy(key_hash) is not None for key_hash in hashes] == [False, True, True, True, True]
    assert len(table.key_hashes()) == 4


def test_a_pairing_with_a_lane_is_never_forgotten(table: LaneTable, clock: Clock) -> None:
    kept = open_lane(table, "kept")
    for n in range(20):
        open_lane(table, f"t{n}")
        clock.now_s += 40
        table.find(kept.lane_id)
        clock.now_s += 40
        table.find(kept.lane_id)
    assert table.policy(kept.lane.policy.key.hash) is kept.lane.policy


def test_looking_at_a_lane_does_not_keep_it(table: LaneTable, clock: Clock) -> None:
    entry = open_lane(table)
    clock.now_s += 59
    assert table.peek(entry.lane_id) is entry
    clock.now_s += 2
    assert table.peek(entry.lane_id) is None


def test_lanes_are_listed_by_pairing(table: LaneTable, clock: Clock) -> None:
    a, b = open_lane(table, "a"), open_lane(table, "b")
    assert set(table.key_hashes()) == {a.lane.policy.key.hash, b.lane.policy.key.hash}
    assert table.lanes_of(a.lane.policy.key.hash) == [a]
    clock.now_s += 61
    assert table.lanes_of(b.lane.policy.key.hash) == []
    assert len(table) == 0

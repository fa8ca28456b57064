"""The tables of lanes and pairings, under a clock of the test's."""

import itertools
import sys
from types import FrameType
from typing import Any

import pytest

from burstgate_policy import lanes
from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.regret import Regret
from burstgate_policy.core.types import BurstOutcome, LaneCapabilities, Mode, PolicyKey, StepRecord
from burstgate_policy.lanes import LaneEntry, LaneTable, PairingAccount
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


def lose(entry: LaneEntry, *, round_ms: float = 60.0) -> float:
    """Runs 64 plain steps of 20 ms and as many rounds of two tokens; how much that lost, in milliseconds."""
    plain = StepRecord(Mode.PLAIN, 1, 1, 64, 1, 0, (), 0.0, 20.0, 0.0, 20.0, False)
    dear = StepRecord(Mode.SPECULATIVE, 4, 1, 64, 2, 3, (1, 0, 0), 0.0, round_ms, 0.0, round_ms, False)
    before, number = entry.lane.regret.lost_ms, entry.lane.steps
    entry.lane.observe(BurstOutcome("", number + 1, (plain,) * 64 + (dear,) * 64, 0), 0.0)
    return entry.lane.regret.lost_ms - before


def test_a_pairings_account_is_that_of_its_lanes_together(table: LaneTable) -> None:
    a, b = open_lane(table), open_lane(table)
    assert table.account(a.lane.policy.key.hash).regret.actual_ms == 0.0
    lost_ms = lose(a) + lose(b, round_ms=80.0)
    account = table.account(a.lane.policy.key.hash)
    assert account.lanes == (a.lane, b.lane)
    assert account.regret.lost_ms == pytest.approx(lost_ms)
    assert account.regret.actual_ms == a.lane.regret.actual_ms + b.lane.regret.actual_ms
    assert table.account("unknown") == PairingAccount()


@pytest.mark.parametrize("found_by", ["find", "expire", "open"])
def test_what_a_lane_lost_outlives_it(table: LaneTable, clock: Clock, found_by: str) -> None:
    gone = open_lane(table)
    lost_ms = lose(gone)
    key_hash = gone.lane.policy.key.hash
    clock.now_s += 61
    if found_by == "find":
        table.find(gone.lane_id)
    elif found_by == "expire":
        table.expire()
    else:
        open_lane(table, "another")
    account = table.account(key_hash)
    assert account.lanes == ()
    assert account.regret.lost_ms == pytest.approx(lost_ms)
    assert account.regret.recent_best == 0
    successor = open_lane(table)
    lost_ms += lose(successor)
    assert table.account(key_hash).regret.lost_ms == pytest.approx(lost_ms)
    assert table.account(key_hash).lanes == (successor.lane,)


def test_an_account_does_not_count_a_lane_twice_however_often_it_is_looked_for(table: LaneTable, clock: Clock) -> None:
    gone = open_lane(table)
    lost_ms = lose(gone)
    clock.now_s += 61
    for _ in range(3):
        table.expire()
        table.find(gone.lane_id)
        assert table.accounts()[gone.lane.policy.key.hash].regret.lost_ms == pytest.approx(lost_ms)


def test_there_is_one_account_for_each_known_pairing_and_no_more(table: LaneTable, clock: Clock) -> None:
    for n in range(20):
        lose(open_lane(table, f"t{n}"))
        clock.now_s += 100
    assert set(table.accounts()) == set(table.key_hashes())
    assert len(table.accounts()) == 4
    again = open_lane(table, "t0")
    assert table.account(again.lane.policy.key.hash).regret.actual_ms == 0.0


def test_an_account_that_was_read_does_not_change_with_the_table(table: LaneTable, clock: Clock) -> None:
    entry = open_lane(table)
    lost_ms = lose(entry)
    read = table.accounts()
    clock.now_s += 61
    table.expire()
    open_lane(table, "another")
    (account,) = read.values()
    assert account.lanes == (entry.lane,)
    assert account.regret.lost_ms == pytest.approx(lost_ms)


def test_at_no_line_of_the_tables_code_would_another_thread_miss_a_lane_or_see_it_twice(
    table: LaneTable, clock: Clock
) -> None:
    entries = [open_lane(table), open_lane(table)]
    for entry in entries:
        entry.lane.regret = Regret((100.0, 90.0), (100.0, 90.0))
    seen: list[float] = []

    def look(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != lanes.__file__:
            return None
        if event == "line":
            seen.append(sum(account.regret.actual_ms for account in table.accounts().values()))
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        table.find(entries[0].lane_id)
        clock.now_s += 61
        table.find(entries[0].lane_id)
        table.expire()
        open_lane(table)
    finally:
        sys.settrace(before)
    assert len(seen) > 20
    assert set(seen) == {200.0}

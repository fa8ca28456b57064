"""Reading verdicts: paging, absent numbers, and lanes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import burstgate
from burstgate.policy.v1 import admin_pb2, policy_pb2
from burstgate.verdicts import Answer, PolicyState, Regret


def view(key_hash: str, **snapshot: Any) -> Any:
    return admin_pb2.VerdictView(snapshot=policy_pb2.PolicySnapshot(key_hash=key_hash, **snapshot))


def test_verdicts_are_read_page_by_page(server: Any) -> None:
    server.verdicts.extend(view(f"{number:02}") for number in range(7))
    with burstgate.PolicyClient(server.address) as policy:
        assert [verdict.key_hash for verdict in policy.verdicts(page_size=3)] == [f"{n:02}" for n in range(7)]
    assert [asked.request.page_token for asked in server.asked] == ["", "3", "6"]


def test_a_number_that_is_absent_is_none_and_zero_is_zero(server: Any) -> None:
    lane = admin_pb2.LaneView(lane_id="l", plain_tokens_per_second=0.0)
    server.verdicts.append(view("aa", acceptance_rate=0.0, state=3, verdict=2))
    server.verdicts[0].lanes.append(lane)
    with burstgate.PolicyClient(server.address) as policy:
        verdict = policy.verdict("aa")
    assert (verdict.state, verdict.verdict) == ("SETTLED", "DECLINE")
    assert (verdict.acceptance_rate, verdict.speedup) == (0.0, None)
    (read,) = verdict.lanes
    assert (read.plain_tokens_per_second, read.speculative_tokens_per_second, read.last_grant) == (
        0.0,
        None,
        None,
    )


def test_what_deciding_has_cost_is_read_of_the_pairing_and_of_each_lane(server: Any) -> None:
    lanes = [admin_pb2.LaneView(lane_id="l", regret=admin_pb2.Regret(actual_ms=10.0, lost_ms=-1.0, holding=True))]
    lanes.append(admin_pb2.LaneView(lane_id="new"))
    server.verdicts.append(view("aa"))
    server.verdicts[0].lanes.extend(lanes)
    server.verdicts[0].regret.CopyFrom(admin_pb2.Regret(actual_ms=30.0, best_draft_width=4, recent_best_draft_width=1))
    server.verdicts.append(view("bb"))
    with burstgate.PolicyClient(server.address) as policy:
        read, idle = policy.verdicts()
    assert read.regret == Regret(30.0, 0.0, 4, 0.0, 0.0, 0.0, 1, holding=False)
    assert read.lanes[0].regret == Regret(10.0, 0.0, 0, -1.0, 0.0, 0.0, 0, holding=True)
    assert (read.lanes[1].regret, idle.regret) == (None, None)


def test_a_filter_reaches_the_server_on_every_page(server: Any) -> None:
    server.verdicts.extend(view(f"{number:02}") for number in range(3))
    wanted = burstgate.VerdictFilter(target="smol", state=PolicyState.SETTLED, verdict=Answer.DECLINE, pinned=True)
    with burstgate.PolicyClient(server.address) as policy:
        list(policy.verdicts(wanted, page_size=2))
    sent = admin_pb2.VerdictFilter(target="smol", state=3, verdict=2, pinned=True)  # type: ignore[arg-type]
    assert [asked.request.filter for asked in server.asked] == [sent, sent]


def test_times_are_read_with_their_zone_and_an_absent_one_is_none(server: Any) -> None:
    with burstgate.PolicyClient(server.address) as policy:
        verdict = policy.pin("ab", speculate=True, reason="why", author="who", ttl_s=1.5)
        for_ever = policy.pin("ab", speculate=False, reason="why", author="who")
    assert server.asked[0].request.ttl.ToMilliseconds() == 1500
    assert not server.asked[1].request.HasField("ttl")
    assert verdict.pin is not None
    assert for_ever.pin is not None
    assert verdict.pin.expires_at == datetime.fromtimestamp(1_700_000_001, UTC)
    assert for_ever.pin.expires_at is None
    assert (verdict.expires_at, verdict.evidence) == (None, None)


@pytest.mark.parametrize("ttl_s", [-1.0, float("nan"), float("inf")])
def test_a_duration_that_cannot_be_sent_is_refused_by_name(server: Any, ttl_s: float) -> None:
    with burstgate.PolicyClient(server.address) as policy, pytest.raises(burstgate.InvalidRequest, match="ttl"):
        policy.pin("ab", speculate=True, reason="why", author="who", ttl_s=ttl_s)


def test_a_watch_that_is_left_ends_on_the_server(server: Any) -> None:
    server.verdicts.append(view("aa", explanation="so"))
    with burstgate.PolicyClient(server.address) as policy:
        changes = policy.watch(resume_token="e.0")
        change = next(changes)
        assert change.verdict is not None
        assert (change.key_hash, change.resume_token, change.removed) == ("aa", "e.1", False)
        changes.close()
        assert server.left.wait(10)
    assert server.asked[0].request.resume_token == "e.0"


def test_rules_and_replays_are_read_whole(server: Any) -> None:
    with burstgate.PolicyClient(server.address) as policy:
        explained = policy.explain("lane", burstgate.Situation(2, depth_tokens=64))
        replay = policy.replay('{"outcomes": [{"sequence": 1}]}', {"GATE_REFRESH_STEPS": "9"})
    (rule,) = explained.rules
    assert (rule.rule, rule.decided, dict(rule.numbers), rule.answer) == ("gate", True, {"plain": 2.0}, "it pays")
    assert server.asked[0].request.situation == policy_pb2.Situation(width=2, depth_tokens=64, eligible=True)
    assert (replay.tokens, replay.recorded_ms, replay.replayed_ms) == (3, 20.0, 10.0)
    assert replay.steps[0].reason == burstgate.GrantReason.GATE_SPECULATIVE
    assert dict(server.asked[1].request.settings) == {"GATE_REFRESH_STEPS": "9"}
    assert server.asked[1].request.outcomes[0].sequence == 1


@pytest.mark.parametrize("trace", ["", "{", "[]", '{"outcome": []}', '{"outcomes": 3}'])
def test_a_trace_that_is_none_is_refused_by_name(server: Any, trace: str) -> None:
    with burstgate.PolicyClient(server.address) as policy, pytest.raises(burstgate.InvalidRequest, match="trace"):
        policy.replay(trace)


def test_an_unknown_verdict_is_not_found(server: Any) -> None:
    with burstgate.PolicyClient(server.address) as policy, pytest.raises(burstgate.NotFound):
        policy.verdict("ff")

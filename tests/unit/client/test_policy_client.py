"""Reading verdicts: paging, absent numbers, and lanes."""

from __future__ import annotations

from typing import Any

import pytest

import burstgate
from burstgate.policy.v1 import admin_pb2, policy_pb2


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


def test_an_unknown_verdict_is_not_found(server: Any) -> None:
    with burstgate.PolicyClient(server.address) as policy, pytest.raises(burstgate.NotFound):
        policy.verdict("ff")

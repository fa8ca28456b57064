"""Translation is total and loses nothing: a law for every message, not a list of cases."""

import dataclasses
import math
from datetime import UTC
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from burstgate.policy.v1 import admin_pb2, policy_pb2
from burstgate_policy import convert
from burstgate_policy.core import types
from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.regret import Regret
from burstgate_policy.lanes import LaneEntry
from burstgate_policy.steps import read_outcomes
from burstgate_runtime.faults import Fault

uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
double = st.floats(allow_nan=False)
wall = st.floats(0, allow_nan=False, allow_infinity=False)
text = st.text(max_size=20)
keys = st.builds(types.PolicyKey, text, text, text, uint32, text, text, text, text, text, text)
step_messages = st.builds(
    policy_pb2.StepRecord,
    mode=st.sampled_from([int(mode) for mode in types.Mode if mode]),
    draft_width=st.integers(1, 64),
    width=st.integers(1, 4096),
    depth_tokens=uint32,
    emitted=uint32,
    proposed=uint32,
    accepted_by_position=st.lists(uint32, max_size=4),
    draft_ms=wall,
    verify_ms=wall,
    overhead_ms=wall,
    wall_ms=wall,
    excluded=st.booleans(),
)


def fields(message: Message) -> dict[str, Any]:
    """Every scalar field of a message, set or not."""
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}


def same(value: Any, message: Message) -> bool:
    """Whether a domain value holds what the message holds, field for field."""
    held = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return held == {
        name: tuple(field) if isinstance(held[name], tuple) else field for name, field in fields(message).items()
    }


@given(keys)
def test_a_key_survives_the_way_there_and_back(key: types.PolicyKey) -> None:
    message = convert.key_to_proto(key)
    assert convert.key_from_proto(message) == key
    assert same(key, message)


@given(
    st.builds(
        policy_pb2.BurstOutcome,
        grant_id=text,
        sequence=st.integers(1, 2**64 - 1),
        steps=st.lists(step_messages, max_size=3),
        dropped_steps=uint64,
    )
)
def test_an_outcome_is_read_field_for_field(message: policy_pb2.BurstOutcome) -> None:
    (outcome,) = read_outcomes([message])
    assert (outcome.grant_id, outcome.sequence, outcome.dropped_steps) == (
        message.grant_id,
        message.sequence,
        message.dropped_steps,
    )
    assert len(outcome.steps) == len(message.steps)
    assert all(same(step, read) for step, read in zip(outcome.steps, message.steps, strict=True))


@given(step_messages)
def test_a_step_that_is_read_is_a_record_like_any_other(message: policy_pb2.StepRecord) -> None:
    (outcome,) = read_outcomes([policy_pb2.BurstOutcome(sequence=1, steps=[message])])
    (step,) = outcome.steps
    assert type(step) is types.StepRecord
    assert step == dataclasses.replace(step)
    assert hash(step) == hash(dataclasses.replace(step))
    with pytest.raises(dataclasses.FrozenInstanceError):
        step.width = 1  # type: ignore[misc]


@given(st.integers(-(2**31), 2**31 - 1).filter(lambda number: not 1 <= number <= 5))
def test_a_mode_that_no_step_has_is_refused_by_name(number: int) -> None:
    message = policy_pb2.BurstOutcome(sequence=1, steps=[policy_pb2.StepRecord(mode=number, width=1, draft_width=1)])  # type: ignore[arg-type]
    with pytest.raises(Fault) as caught:
        read_outcomes([message])
    assert [violation.field for violation in caught.value.violations] == ["outcomes[0].steps[0].mode"]


@given(
    st.builds(
        policy_pb2.Situation,
        width=uint32,
        depth_tokens=uint32,
        min_emitted_tokens=uint32,
        eligible=st.booleans(),
        max_draft_width=uint32,
    ),
    st.builds(
        policy_pb2.LaneCapabilities,
        batchable=st.booleans(),
        max_width=uint32,
        drafter_kind=text,
        apple_gpu_generation=uint32,
    ),
    st.builds(
        policy_pb2.CostCell, width=uint32, draft_width=uint32, depth_tokens=uint32, verify_ms=double, draft_ms=double
    ),
)
def test_situations_capabilities_and_costs_are_read_field_for_field(
    situation: policy_pb2.Situation, capabilities: policy_pb2.LaneCapabilities, cell: policy_pb2.CostCell
) -> None:
    assert same(convert.situation_from_proto(situation), situation)
    assert same(convert.capabilities_from_proto(capabilities), capabilities)
    assert same(convert.costs_from_proto([cell])[0], cell)


@given(st.sampled_from(types.Mode), st.sampled_from(types.Reason), uint32, uint32, text)
def test_a_grant_is_written_field_for_field(
    mode: types.Mode, reason: types.Reason, draft_width: int, max_steps: int, explanation: str
) -> None:
    grant = types.Grant(mode, draft_width, max_steps, reason, explanation)
    message = convert.grant_to_proto(grant, grant_id="g", fresh_ms=7)
    assert fields(message) == {**dataclasses.asdict(grant), "grant_id": "g", "fresh_ms": 7}


@given(
    keys,
    st.sampled_from(types.State),
    st.sampled_from(types.Verdict),
    st.none() | double,
    st.none() | double,
    st.booleans(),
)
def test_a_snapshot_is_written_field_for_field_and_absent_stays_absent(
    key: types.PolicyKey,
    state: types.State,
    verdict: types.Verdict,
    acceptance_rate: float | None,
    speedup: float | None,
    flag: bool,
) -> None:
    snapshot = types.Snapshot(
        key, state, verdict, flag, acceptance_rate, 3, 4, speedup, not flag, key.hash, flag, "why", version=9
    )
    message = convert.snapshot_to_proto(snapshot)
    assert message.HasField("acceptance_rate") is (acceptance_rate is not None)
    assert message.HasField("speedup") is (speedup is not None)
    read = fields(message)
    assert convert.key_from_proto(read.pop("key")) == key
    for name in ("evidence", "pin", "expires_at", "rechallenge_at"):
        assert not message.HasField(name)
        del read[name]
    for name, value in read.items():
        assert value == (getattr(snapshot, name) or 0 if value == 0 else getattr(snapshot, name)), name


EVIDENCE = types.Evidence(64, 8, 2, 1.9, 1.7, 2.1, 0.9, 0.2, 1000.25, 2000.5, 90.0, 68.0)
PIN = types.Pin(True, "why", "who", 3000.0, None)


def test_evidence_pin_and_times_are_written_field_for_field() -> None:
    key = types.PolicyKey("t", "d", "h", 4, "", "", "", "", "", "")
    settled, enable = types.State.SETTLED, types.Verdict.ENABLE
    snapshot = types.Snapshot(key, settled, enable, True, 0.5, 3, 4, 1.9, True, key.hash, False, "why")
    snapshot = dataclasses.replace(snapshot, evidence=EVIDENCE, pin=PIN, expires_at=4000.125, rechallenge_at=3500.0)
    message = convert.snapshot_to_proto(snapshot)
    for value, written in ((EVIDENCE, message.evidence), (PIN, message.pin)):
        for field in dataclasses.fields(value):
            if field.name.endswith("_at"):
                moment = getattr(written, field.name).ToDatetime(UTC).timestamp()
                assert moment == (getattr(value, field.name) or 0.0)
            else:
                assert getattr(written, field.name) == getattr(value, field.name)
    assert not message.pin.HasField("expires_at")
    assert message.expires_at.ToDatetime(UTC).timestamp() == 4000.125
    assert message.rechallenge_at.ToDatetime(UTC).timestamp() == 3500.0


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_no_time_raises(unix_s: float) -> None:
    pin = dataclasses.replace(PIN, expires_at=unix_s)
    assert convert.pin_to_proto(pin).HasField("expires_at") == math.isfinite(unix_s)


def test_every_enum_of_the_core_has_the_contracts_names_and_numbers() -> None:
    for ours, theirs, prefix in (
        (types.Mode, policy_pb2.BurstMode, "BURST_MODE_"),
        (types.Reason, policy_pb2.GrantReason, "GRANT_REASON_"),
        (types.State, policy_pb2.PolicyState, "POLICY_STATE_"),
        (types.Verdict, policy_pb2.Verdict, "VERDICT_"),
    ):
        assert {prefix + member.name: member.value for member in ours} == dict(theirs.items())


def test_a_lane_is_written_with_its_numbers_and_without_those_it_has_not() -> None:
    key = types.PolicyKey("t", "d", "h", 4, "", "", "", "", "", "")
    config = CoreConfig()
    policy = MtpPolicy.start(key, force=False, adaptive=True, static_default=False, hint=None, config=config, now_s=0.0)
    lane = Lane(policy, types.LaneCapabilities(True, 1, "mtp_head", 0), (), config)
    entry = LaneEntry("lane", "lane", "instance", lane, 0.0)
    assert convert.lane_to_proto(entry, fresh_ms=9) == admin_pb2.LaneView(lane_id="lane", instance_id="instance")
    lane.decide(types.Situation(1, 64, 10, True, 0), 0.0)
    written = convert.lane_to_proto(entry, fresh_ms=9)
    assert (written.grants, written.last_grant.grant_id, written.last_grant.fresh_ms) == (1, "lane:1", 9)
    assert not written.HasField("plain_tokens_per_second")


def test_what_deciding_has_cost_is_written_field_for_field() -> None:
    regret = Regret((100.0, 96.0, 98.0), (50.0, 51.0, 40.0), holding=True)
    written = convert.regret_to_proto(regret)
    assert written == admin_pb2.Regret(
        actual_ms=100.0,
        best_ms=96.0,
        best_draft_width=1,
        lost_ms=4.0,
        share=regret.share,
        recent_share=regret.recent_share,
        recent_best_draft_width=2,
        holding=True,
    )
    assert (written.share, written.recent_share) == (pytest.approx(0.04), pytest.approx(0.2))
    assert convert.regret_to_proto(Regret()) is None
    ahead = convert.regret_to_proto(Regret((90.0, 96.0, 98.0), (0.0, 0.0, 0.0)))
    assert ahead is not None
    assert (ahead.lost_ms, ahead.recent_best_draft_width) == (-6.0, 0)

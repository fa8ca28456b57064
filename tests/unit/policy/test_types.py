"""The values of the core and their agreement with the contract."""

import dataclasses
import enum
from typing import Any

import pytest

from burstgate.policy.v1 import admin_pb2, policy_pb2
from burstgate_policy.core import types

KEY = types.PolicyKey(
    target="SmolLM2-135M-Instruct",
    drafter="mtp",
    hardware="x86_64-2c",
    draft_width=8,
    target_fingerprint="t",
    drafter_fingerprint="d",
    dtype="float32",
    backend="cpu",
    blas="openblas-0.3.34",
    mlx_version="0.32.4",
)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(types.PolicyKey)])
def test_every_field_of_the_key_changes_its_hash(field: str) -> None:
    fields: dict[str, Any] = {field: 4 if field == "draft_width" else "other"}
    other = dataclasses.replace(KEY, **fields)
    assert other.hash != KEY.hash
    assert len(KEY.hash) == 16
    assert int(KEY.hash, 16) >= 0


def test_moving_a_character_between_fields_changes_the_hash() -> None:
    left = dataclasses.replace(KEY, target="ab", drafter="c")
    right = dataclasses.replace(KEY, target="a", drafter="bc")
    assert left.hash != right.hash


def test_the_hash_of_a_key_never_changes_between_releases() -> None:
    assert KEY.hash == "d8f2a0576a383c4d"


def test_the_display_names_what_a_person_compares() -> None:
    for part in ("SmolLM2-135M-Instruct", "mtp", "x86_64-2c", "float32", "openblas-0.3.34", "K<=8"):
        assert part in KEY.display


@pytest.mark.parametrize(
    ("mine", "contract", "prefix"),
    [
        (types.Mode, policy_pb2.BurstMode, "BURST_MODE_"),
        (types.Reason, policy_pb2.GrantReason, "GRANT_REASON_"),
        (types.State, policy_pb2.PolicyState, "POLICY_STATE_"),
        (types.Verdict, policy_pb2.Verdict, "VERDICT_"),
    ],
)
def test_every_enum_equals_its_message(mine: type[enum.IntEnum], contract: Any, prefix: str) -> None:
    assert {prefix + member.name: member.value for member in mine} == dict(contract.items())


@pytest.mark.parametrize(
    ("mine", "message"),
    [
        (types.PolicyKey, policy_pb2.PolicyKey),
        (types.LaneCapabilities, policy_pb2.LaneCapabilities),
        (types.CostCell, policy_pb2.CostCell),
        (types.Situation, policy_pb2.Situation),
        (types.StepRecord, policy_pb2.StepRecord),
        (types.BurstOutcome, policy_pb2.BurstOutcome),
        (types.Snapshot, policy_pb2.PolicySnapshot),
        (types.Evidence, policy_pb2.Evidence),
        (types.Pin, policy_pb2.Pin),
        (types.RuleAnswer, admin_pb2.RuleAnswer),
        (types.ReplayedStep, admin_pb2.ReplayedStep),
    ],
)
def test_every_value_has_exactly_the_fields_of_its_message(mine: type[Any], message: Any) -> None:
    assert [field.name for field in dataclasses.fields(mine)] == [f.name for f in message.DESCRIPTOR.fields]


def test_rounds_and_probes_are_told_apart() -> None:
    assert {mode for mode in types.Mode if mode.speculates} == {
        types.Mode.SPECULATIVE,
        types.Mode.PROBE_SPECULATIVE,
        types.Mode.PINNED,
    }
    assert {mode for mode in types.Mode if mode.probes} == {
        types.Mode.PROBE_PLAIN,
        types.Mode.PROBE_SPECULATIVE,
    }

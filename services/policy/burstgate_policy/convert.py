"""Messages of the policy contract to domain values and back.

Every function is total: whatever a message holds, a value comes out and nothing is raised, so that
validation (`validation`) and translation can be read and tested apart. Enum numbers that the domain
does not know become UNSPECIFIED.
"""

from collections.abc import Iterable
from typing import Any

from burstgate.policy.v1 import admin_pb2, policy_pb2
from burstgate_policy.core.types import (
    BurstOutcome,
    CostCell,
    Grant,
    LaneCapabilities,
    Mode,
    PolicyKey,
    Reason,
    Situation,
    Snapshot,
    State,
    StepRecord,
    Verdict,
)
from burstgate_policy.lanes import LaneEntry

_MODES = {int(mode): mode for mode in Mode}
# Looked up by name, so that a name that the contract lacks fails at import. The generated types of enum
# fields are classes that do not exist at run time, hence Any.
_BURST_MODES: dict[Mode, Any] = {mode: policy_pb2.BurstMode.Value(f"BURST_MODE_{mode.name}") for mode in Mode}
_GRANT_REASONS: dict[Reason, Any] = {
    reason: policy_pb2.GrantReason.Value(f"GRANT_REASON_{reason.name}") for reason in Reason
}
_POLICY_STATES: dict[State, Any] = {
    state: policy_pb2.PolicyState.Value(f"POLICY_STATE_{state.name}") for state in State
}
_VERDICTS: dict[Verdict, Any] = {verdict: policy_pb2.Verdict.Value(f"VERDICT_{verdict.name}") for verdict in Verdict}


def key_from_proto(message: policy_pb2.PolicyKey) -> PolicyKey:
    """Reads a pairing's key."""
    return PolicyKey(
        target=message.target,
        drafter=message.drafter,
        hardware=message.hardware,
        draft_width=message.draft_width,
        target_fingerprint=message.target_fingerprint,
        drafter_fingerprint=message.drafter_fingerprint,
        dtype=message.dtype,
        backend=message.backend,
        blas=message.blas,
        mlx_version=message.mlx_version,
    )


def key_to_proto(key: PolicyKey) -> policy_pb2.PolicyKey:
    """Writes a pairing's key."""
    return policy_pb2.PolicyKey(
        target=key.target,
        drafter=key.drafter,
        hardware=key.hardware,
        draft_width=key.draft_width,
        target_fingerprint=key.target_fingerprint,
        drafter_fingerprint=key.drafter_fingerprint,
        dtype=key.dtype,
        backend=key.backend,
        blas=key.blas,
        mlx_version=key.mlx_version,
    )


def capabilities_from_proto(message: policy_pb2.LaneCapabilities) -> LaneCapabilities:
    """Reads what a lane can do."""
    return LaneCapabilities(
        batchable=message.batchable,
        max_width=message.max_width,
        drafter_kind=message.drafter_kind,
        apple_gpu_generation=message.apple_gpu_generation,
    )


def costs_from_proto(messages: Iterable[policy_pb2.CostCell]) -> tuple[CostCell, ...]:
    """Reads a cost table."""
    return tuple(
        CostCell(
            width=cell.width,
            draft_width=cell.draft_width,
            depth_tokens=cell.depth_tokens,
            verify_ms=cell.verify_ms,
            draft_ms=cell.draft_ms,
        )
        for cell in messages
    )


def situation_from_proto(message: policy_pb2.Situation) -> Situation:
    """Reads what the next burst would run on."""
    return Situation(
        width=message.width,
        depth_tokens=message.depth_tokens,
        min_emitted_tokens=message.min_emitted_tokens,
        eligible=message.eligible,
        max_draft_width=message.max_draft_width,
    )


def outcome_from_proto(message: policy_pb2.BurstOutcome) -> BurstOutcome:
    """Reads what a burst measured."""
    return BurstOutcome(
        grant_id=message.grant_id,
        sequence=message.sequence,
        steps=tuple(map(_step_from_proto, message.steps)),
        dropped_steps=message.dropped_steps,
    )


def grant_to_proto(grant: Grant, *, grant_id: str, fresh_ms: int) -> policy_pb2.BurstGrant:
    """Writes a grant."""
    return policy_pb2.BurstGrant(
        grant_id=grant_id,
        mode=_BURST_MODES[grant.mode],
        draft_width=grant.draft_width,
        max_steps=grant.max_steps,
        reason=_GRANT_REASONS[grant.reason],
        explanation=grant.explanation,
        fresh_ms=fresh_ms,
    )


def snapshot_to_proto(snapshot: Snapshot) -> policy_pb2.PolicySnapshot:
    """Writes what the policy holds for a pairing."""
    return policy_pb2.PolicySnapshot(
        key=key_to_proto(snapshot.key),
        state=_POLICY_STATES[snapshot.state],
        verdict=_VERDICTS[snapshot.verdict],
        speculation_enabled=snapshot.speculation_enabled,
        acceptance_rate=snapshot.acceptance_rate,
        samples=snapshot.samples,
        samples_required=snapshot.samples_required,
        speedup=snapshot.speedup,
        static_default=snapshot.static_default,
        key_hash=snapshot.key_hash,
        from_hint=snapshot.from_hint,
        explanation=snapshot.explanation,
    )


def lane_to_proto(entry: LaneEntry, *, fresh_ms: int) -> admin_pb2.LaneView:
    """Writes what a lane is doing."""
    lane = entry.lane
    last = lane.last_grant
    return admin_pb2.LaneView(
        lane_id=entry.lane_id,
        instance_id=entry.instance_id,
        last_grant=(None if last is None else grant_to_proto(last, grant_id=entry.last_grant_id, fresh_ms=fresh_ms)),
        plain_tokens_per_second=lane.plain_tokens_per_second,
        speculative_tokens_per_second=lane.speculative_tokens_per_second,
        grants=lane.grants,
        steps=lane.steps,
        dropped_steps=lane.dropped_steps,
    )


def _step_from_proto(message: policy_pb2.StepRecord) -> StepRecord:
    return StepRecord(
        mode=_MODES.get(message.mode, Mode.UNSPECIFIED),
        draft_width=message.draft_width,
        width=message.width,
        depth_tokens=message.depth_tokens,
        emitted=message.emitted,
        proposed=message.proposed,
        accepted_by_position=tuple(message.accepted_by_position),
        draft_ms=message.draft_ms,
        verify_ms=message.verify_ms,
        overhead_ms=message.overhead_ms,
        wall_ms=message.wall_ms,
        excluded=message.excluded,
    )

"""Messages of the policy contract to domain values and back.

Every function is total: whatever a message holds, a value comes out and nothing is raised, so that
validation (`validation`) and translation can be read and tested apart; only the records of steps,
which every burst brings, are checked and translated in one pass, by `steps`. Enum numbers that the
domain does not know become UNSPECIFIED.
"""

import math
from collections.abc import Iterable
from typing import Any

from google.protobuf import timestamp_pb2

from burstgate.policy.v1 import admin_pb2, policy_pb2
from burstgate_policy.core.regret import Regret
from burstgate_policy.core.types import (
    CostCell,
    Evidence,
    Grant,
    LaneCapabilities,
    Mode,
    Pin,
    PolicyKey,
    Reason,
    ReplayedStep,
    RuleAnswer,
    Situation,
    Snapshot,
    State,
    Verdict,
)
from burstgate_policy.lanes import LaneEntry

# The last second that a timestamp can name, in the year 9999.
_LATEST_S = 253_402_300_799.0
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
        steps_in_flight=message.steps_in_flight,
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
        evidence=None if snapshot.evidence is None else evidence_to_proto(snapshot.evidence),
        version=snapshot.version,
        expires_at=_timestamp(snapshot.expires_at),
        rechallenge_at=_timestamp(snapshot.rechallenge_at),
        pin=None if snapshot.pin is None else pin_to_proto(snapshot.pin),
        starved_because=snapshot.starved_because,
    )


def evidence_to_proto(evidence: Evidence) -> policy_pb2.Evidence:
    """Writes what a verdict rests on."""
    return policy_pb2.Evidence(
        rounds=evidence.rounds,
        plain_steps=evidence.plain_steps,
        traffic_kinds=evidence.traffic_kinds,
        speedup=evidence.speedup,
        speedup_low=evidence.speedup_low,
        speedup_high=evidence.speedup_high,
        confidence=evidence.confidence,
        spread=evidence.spread,
        first_seen_at=_timestamp(evidence.first_seen_at),
        last_seen_at=_timestamp(evidence.last_seen_at),
        round_ms=evidence.round_ms,
        plain_step_ms=evidence.plain_step_ms,
    )


def pin_to_proto(pin: Pin) -> policy_pb2.Pin:
    """Writes a person's decision."""
    return policy_pb2.Pin(
        speculate=pin.speculate,
        reason=pin.reason,
        author=pin.author,
        pinned_at=_timestamp(pin.pinned_at),
        expires_at=_timestamp(pin.expires_at),
    )


def rule_to_proto(rule: RuleAnswer) -> admin_pb2.RuleAnswer:
    """Writes one rule's part in a grant."""
    return admin_pb2.RuleAnswer(rule=rule.rule, decided=rule.decided, numbers=rule.numbers, answer=rule.answer)


def replayed_step_to_proto(step: ReplayedStep) -> admin_pb2.ReplayedStep:
    """Writes one decision of a replay."""
    return admin_pb2.ReplayedStep(
        recorded_mode=_BURST_MODES[step.recorded_mode],
        recorded_draft_width=step.recorded_draft_width,
        mode=_BURST_MODES[step.mode],
        draft_width=step.draft_width,
        reason=_GRANT_REASONS[step.reason],
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
        regret=regret_to_proto(lane.regret),
    )


def regret_to_proto(regret: Regret) -> admin_pb2.Regret | None:
    """Writes what deciding has cost; None before a step was priced."""
    if regret.actual_ms <= 0.0:
        return None
    return admin_pb2.Regret(
        actual_ms=regret.actual_ms,
        best_ms=regret.best_ms,
        best_draft_width=regret.best_draft_width,
        lost_ms=regret.lost_ms,
        share=regret.share,
        recent_share=regret.recent_share,
        recent_best_draft_width=regret.recent_best,
        holding=regret.holding,
    )


def _timestamp(unix_s: float | None) -> timestamp_pb2.Timestamp | None:
    """A time since the epoch, cut to what a timestamp can hold."""
    if unix_s is None or not math.isfinite(unix_s):
        return None
    milliseconds = round(min(max(unix_s, 0.0), _LATEST_S) * 1000)
    return timestamp_pb2.Timestamp(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)

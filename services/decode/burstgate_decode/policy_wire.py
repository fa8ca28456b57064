"""Policy messages from domain values, and grants back, as the decode side needs them. Pure."""

from dataclasses import asdict

from burstgate.policy.v1 import policy_pb2
from burstgate_policy.core.types import (
    BurstOutcome,
    CostCell,
    Grant,
    LaneCapabilities,
    Mode,
    PolicyKey,
    Reason,
    Situation,
    StepRecord,
)

# The domain values mirror the messages field for field, so that their fields are the messages' arguments.


def open_request(
    key: PolicyKey, capabilities: LaneCapabilities, costs: tuple[CostCell, ...], instance_id: str
) -> policy_pb2.OpenLaneRequest:
    """The question that opens a lane."""
    return policy_pb2.OpenLaneRequest(
        key=policy_pb2.PolicyKey(**asdict(key)),
        capabilities=policy_pb2.LaneCapabilities(**asdict(capabilities)),
        costs=[policy_pb2.CostCell(**asdict(cell)) for cell in costs],
        instance_id=instance_id,
    )


def situation_to_proto(situation: Situation) -> policy_pb2.Situation:
    """What the next burst would run on."""
    return policy_pb2.Situation(**asdict(situation))


def outcome_to_proto(outcome: BurstOutcome) -> policy_pb2.BurstOutcome:
    """What a burst measured."""
    return policy_pb2.BurstOutcome(
        grant_id=outcome.grant_id,
        sequence=outcome.sequence,
        steps=[_step(step) for step in outcome.steps],
        dropped_steps=outcome.dropped_steps,
    )


def grant_from_proto(message: policy_pb2.BurstGrant) -> Grant:
    """A grant. Raises `ValueError` when it cannot be followed: a service that answers nonsense is not obeyed."""
    try:
        mode, reason = Mode(message.mode), Reason(message.reason)
    except ValueError:
        # A reason this version does not know explains itself; a mode it does not know cannot be run.
        mode, reason = Mode(message.mode), Reason.UNSPECIFIED
    runnable = mode is not Mode.UNSPECIFIED and 1 <= message.draft_width <= 64 and 1 <= message.max_steps <= 1_000_000
    if not runnable or (mode.speculates and message.draft_width < 2):
        raise ValueError(f"mode {mode.name}, K={message.draft_width}, {message.max_steps} steps")
    return Grant(mode, message.draft_width, message.max_steps, reason, message.explanation)


def _step(step: StepRecord) -> policy_pb2.StepRecord:
    return policy_pb2.StepRecord(**asdict(step))

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

# As many steps as the service takes back in one outcome.
_MAX_STEPS = 1024
# In characters: the sentence travels on to the client of every answer.
_MAX_EXPLANATION = 500

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
    widths = range(2, 65) if mode.speculates else range(1, 2)
    if mode is Mode.UNSPECIFIED or message.draft_width not in widths or not 1 <= message.max_steps <= _MAX_STEPS:
        raise ValueError(f"mode {mode.name}, K={message.draft_width}, {message.max_steps} steps")
    return Grant(mode, message.draft_width, message.max_steps, reason, message.explanation[:_MAX_EXPLANATION])


def _step(step: StepRecord) -> policy_pb2.StepRecord:
    return policy_pb2.StepRecord(**asdict(step))

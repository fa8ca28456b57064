"""Turns the services' answers into the library's dataclasses.

Owns the proto side of results.py, serving.py and verdicts.py. Must accept answers of a newer server:
unknown enum values read as UNSPECIFIED, unknown fields are left out.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from burstgate import results, serving, verdicts
from burstgate.decode.v1 import decode_pb2
from burstgate.policy.v1 import admin_pb2, policy_pb2

_E = TypeVar("_E", bound=enum.StrEnum)
_T = TypeVar("_T")


def _by_number(wrapper: Any, prefix: str, members: type[_E]) -> Mapping[int, _E]:
    """Maps an enum's wire numbers to this library's members, by name."""
    known = members.__members__
    return {
        number: known[name.removeprefix(prefix)]
        for name, number in wrapper.items()
        if name.removeprefix(prefix) in known
    }


_MODES = _by_number(policy_pb2.BurstMode, "BURST_MODE_", results.BurstMode)
_REASONS = _by_number(policy_pb2.GrantReason, "GRANT_REASON_", results.GrantReason)
_FINISHES = _by_number(decode_pb2.FinishReason, "FINISH_REASON_", results.FinishReason)
_STATES = _by_number(policy_pb2.PolicyState, "POLICY_STATE_", verdicts.PolicyState)
_ANSWERS = _by_number(policy_pb2.Verdict, "VERDICT_", verdicts.Answer)
# SERVICE_UNKNOWN (3) is an answer of Watch only.
_HEALTH = {0: serving.Health.UNKNOWN, 1: serving.Health.SERVING, 2: serving.Health.NOT_SERVING}


def events(message: decode_pb2.GenerateResponse) -> tuple[results.Event, ...]:
    """What one message of a stream says; nothing for a kind of event this library does not know."""
    match message.WhichOneof("event"):
        case "delta":
            return (_delta(message.delta),)
        case "deltas":
            return tuple(_delta(one) for one in message.deltas.deltas)
        case "completion":
            return (_completion(message.completion),)
        case _:
            return ()


def token_count(message: decode_pb2.CountTokensResponse) -> results.TokenCount:
    """Reads the answer of CountTokens."""
    return _mirror(results.TokenCount, message)


def model(message: decode_pb2.GetModelResponse) -> serving.Model:
    """Reads the answer of GetModel."""
    return _mirror(
        serving.Model,
        message,
        target=_mirror(serving.Target, message.target),
        drafter=_mirror(serving.Drafter, message.drafter) if message.HasField("drafter") else None,
        exactness=_mirror(serving.Exactness, message.exactness),
        costs=tuple(_mirror(serving.CostCell, cell) for cell in message.costs),
    )


def server_info(message: decode_pb2.GetServerInfoResponse) -> serving.ServerInfo:
    """Reads the answer of GetServerInfo."""
    return _mirror(
        serving.ServerInfo,
        message,
        policy=_mirror(serving.PolicyLink, message.policy),
    )


def health(status: int) -> serving.Health:
    """Reads a serving status of grpc.health.v1."""
    return _HEALTH.get(status, serving.Health.UNKNOWN)


def verdict(message: admin_pb2.VerdictView) -> verdicts.Verdict:
    """Reads one verdict."""
    return _verdict(message.snapshot, tuple(_lane(lane) for lane in message.lanes), _regret(message))


def verdict_change(message: admin_pb2.WatchVerdictsResponse) -> verdicts.VerdictChange:
    """Reads one item of a watch."""
    told = message.HasField("verdict") and not message.removed
    return _mirror(
        verdicts.VerdictChange,
        message,
        verdict=verdict(message.verdict) if told else None,
        key_hash=message.verdict.snapshot.key_hash,
    )


def imported_hints(message: admin_pb2.ImportHintsResponse) -> tuple[verdicts.ImportedHint, ...]:
    """Reads what became of imported hints."""
    return tuple(_mirror(verdicts.ImportedHint, result) for result in message.results)


def explanation(message: admin_pb2.ExplainGrantResponse) -> verdicts.Explanation:
    """Reads the rules behind a grant."""
    rules = tuple(_mirror(verdicts.RuleAnswer, rule, numbers=dict(rule.numbers)) for rule in message.rules)
    return verdicts.Explanation(_grant(message.grant), rules)


def replay(message: admin_pb2.ReplayTraceResponse) -> verdicts.Replay:
    """Reads a replay."""
    return _mirror(
        verdicts.Replay,
        message,
        steps=tuple(
            verdicts.ReplayedStep(
                recorded_mode=_MODES.get(step.recorded_mode, results.BurstMode.UNSPECIFIED),
                recorded_draft_width=step.recorded_draft_width,
                mode=_MODES.get(step.mode, results.BurstMode.UNSPECIFIED),
                draft_width=step.draft_width,
                reason=_REASONS.get(step.reason, results.GrantReason.UNSPECIFIED),
            )
            for step in message.steps
        ),
        verdict=_verdict(message.snapshot, (), None),
    )


def _verdict(
    snapshot: policy_pb2.PolicySnapshot, lanes: tuple[verdicts.Lane, ...], regret: verdicts.Regret | None
) -> verdicts.Verdict:
    return _mirror(
        verdicts.Verdict,
        snapshot,
        key=_mirror(verdicts.PolicyKey, snapshot.key),
        state=_STATES.get(snapshot.state, verdicts.PolicyState.UNSPECIFIED),
        verdict=_ANSWERS.get(snapshot.verdict, verdicts.Answer.UNSPECIFIED),
        evidence=_mirror(verdicts.Evidence, snapshot.evidence) if snapshot.HasField("evidence") else None,
        pin=_mirror(verdicts.Pin, snapshot.pin) if snapshot.HasField("pin") else None,
        lanes=lanes,
        regret=regret,
    )


def _delta(message: decode_pb2.GenerateDelta) -> results.Delta:
    # Written out, unlike the rest: this runs once a token.
    return results.Delta(
        index=message.index,
        text=message.text,
        token_ids=tuple(message.token_ids),
        drafted=tuple(message.drafted),
        round=message.round,
        mode=_MODES.get(message.mode, results.BurstMode.UNSPECIFIED),
        draft_width=message.draft_width,
        reason=_REASONS.get(message.reason, results.GrantReason.UNSPECIFIED),
        explanation=message.explanation,
        logprobs=tuple(_token_logprobs(item) for item in message.logprobs),
    )


def _token_logprobs(message: decode_pb2.TokenLogprobs) -> results.TokenLogprobs:
    return results.TokenLogprobs(
        message.logprob, tuple(results.TokenLogprob(top.token_id, top.logprob) for top in message.top)
    )


def _completion(message: decode_pb2.GenerateCompletion) -> results.Completion:
    return _mirror(
        results.Completion,
        message,
        finish_reason=_FINISHES.get(message.finish_reason, results.FinishReason.UNSPECIFIED),
        usage=_mirror(results.Usage, message.usage),
        timings=_mirror(results.Timings, message.timings),
        speculation=_speculation(message.speculation),
    )


def _speculation(message: decode_pb2.SpeculationStats) -> results.SpeculationStats:
    return _mirror(
        results.SpeculationStats,
        message,
        draft_widths=tuple(_mirror(results.DraftWidthCount, count) for count in message.draft_widths),
        divergences=tuple(_mirror(results.Divergence, one) for one in message.divergences),
        bursts=tuple(
            results.BurstCount(
                _MODES.get(count.mode, results.BurstMode.UNSPECIFIED),
                _REASONS.get(count.reason, results.GrantReason.UNSPECIFIED),
                count.bursts,
            )
            for count in message.bursts
        ),
    )


def _lane(message: admin_pb2.LaneView) -> verdicts.Lane:
    return _mirror(
        verdicts.Lane,
        message,
        last_grant=_grant(message.last_grant) if message.HasField("last_grant") else None,
        regret=_regret(message),
    )


def _regret(message: admin_pb2.VerdictView | admin_pb2.LaneView) -> verdicts.Regret | None:
    return _mirror(verdicts.Regret, message.regret) if message.HasField("regret") else None


def _grant(message: policy_pb2.BurstGrant) -> verdicts.Grant:
    return _mirror(
        verdicts.Grant,
        message,
        mode=_MODES.get(message.mode, results.BurstMode.UNSPECIFIED),
        reason=_REASONS.get(message.reason, results.GrantReason.UNSPECIFIED),
    )


def _mirror(kind: type[_T], message: Message, **converted: object) -> _T:
    """Builds a dataclass from the message's fields of the same names; `converted` gives those that differ."""
    values = dict(converted)
    for field in fields(kind):  # type: ignore[arg-type]  # _T is one of this library's dataclasses
        if field.name not in values:
            values[field.name] = _plain(message, field.name)
    return kind(**values)


def _plain(message: Message, name: str) -> object:
    described = message.DESCRIPTOR.fields_by_name[name]
    if described.is_repeated:
        return tuple(getattr(message, name))
    if described.has_presence and not message.HasField(name):
        return None
    value: object = getattr(message, name)
    return value.ToDatetime(tzinfo=UTC) if isinstance(value, Timestamp) else value

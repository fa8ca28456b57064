"""Turns the arguments of the policy clients into messages.

Owns the proto side of what a person asks the policy service. What protobuf cannot hold is refused here,
under the field's own name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration

from burstgate.errors import refused
from burstgate.policy.v1 import admin_pb2, policy_pb2
from burstgate.verdicts import Situation, VerdictFilter

# Of a google.protobuf.Duration: ten thousand years.
_LONGEST_S = 315_576_000_000


def verdict_filter(wanted: VerdictFilter) -> admin_pb2.VerdictFilter:
    """Writes a filter."""
    return admin_pb2.VerdictFilter(
        target=wanted.target,
        drafter=wanted.drafter,
        hardware=wanted.hardware,
        state=f"POLICY_STATE_{wanted.state.name}",
        verdict=f"VERDICT_{wanted.verdict.name}",
        pinned=wanted.pinned,
    )


def pin_request(
    key_hash: str, *, speculate: bool, reason: str, author: str, ttl_s: float | None
) -> admin_pb2.PinVerdictRequest:
    """Writes a pin."""
    return admin_pb2.PinVerdictRequest(
        key_hash=key_hash,
        speculate=speculate,
        reason=reason,
        author=author,
        ttl=None if ttl_s is None else _duration(ttl_s),
    )


def import_request(hints: Iterable[str], *, overwrite: bool) -> admin_pb2.ImportHintsRequest:
    """Writes hints to import."""
    return admin_pb2.ImportHintsRequest(hints=list(hints), overwrite=overwrite)


def explain_request(lane_id: str, situation: Situation | None) -> admin_pb2.ExplainGrantRequest:
    """Writes a question about a grant."""
    asked = None if situation is None else _situation(situation)
    return admin_pb2.ExplainGrantRequest(lane_id=lane_id, situation=asked)


def replay_request(trace: str | Mapping[str, Any], settings: Mapping[str, str]) -> admin_pb2.ReplayTraceRequest:
    """Reads a trace: a ReplayTraceRequest as JSON, or as what JSON was read into."""
    try:
        document = json.loads(trace) if isinstance(trace, str) else dict(trace)
        if not isinstance(document, dict):
            raise TypeError("must be an object")
        request = json_format.ParseDict(document, admin_pb2.ReplayTraceRequest())
    except (json_format.ParseError, ValueError, AttributeError, TypeError) as error:
        raise refused("trace", f"is not a ReplayTraceRequest as JSON: {error}") from None
    request.settings.update(settings)
    return request


def _situation(situation: Situation) -> policy_pb2.Situation:
    try:
        return policy_pb2.Situation(
            width=situation.width,
            depth_tokens=situation.depth_tokens,
            min_emitted_tokens=situation.min_emitted_tokens,
            eligible=situation.eligible,
            max_draft_width=situation.max_draft_width,
        )
    except (TypeError, ValueError) as error:
        raise refused("situation", f"cannot be sent: {error}") from None


def _duration(seconds: float) -> Duration:
    # Also false for what is no number.
    if not 0 <= seconds <= _LONGEST_S:
        raise refused("ttl", f"must be a number of seconds, 0 or more, got {seconds}")
    nanoseconds = round(seconds * 1e9)
    return Duration(seconds=nanoseconds // 1_000_000_000, nanos=nanoseconds % 1_000_000_000)

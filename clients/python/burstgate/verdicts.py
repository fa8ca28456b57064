"""What the policy service has found out: one verdict a pairing, and the lanes it rules.

Owns frozen dataclasses with the contract's field names. This module must not know protos or gRPC.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from burstgate.results import BurstMode, GrantReason


class PolicyState(enum.StrEnum):
    """State of the policy for one pairing."""

    UNSPECIFIED = "UNSPECIFIED"
    FORCED = "FORCED"
    PROFILING = "PROFILING"
    SETTLED = "SETTLED"
    STATIC = "STATIC"


class Answer(enum.StrEnum):
    """Whether speculation pays; unspecified unless settled."""

    UNSPECIFIED = "UNSPECIFIED"
    ENABLE = "ENABLE"
    DECLINE = "DECLINE"


@dataclass(frozen=True, slots=True)
class PolicyKey:
    """Everything that changes the answer."""

    target: str
    drafter: str
    hardware: str
    draft_width: int
    """The widest verify a lane may run, in rows."""
    target_fingerprint: str
    drafter_fingerprint: str
    dtype: str
    backend: str
    blas: str
    mlx_version: str


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission to run a burst."""

    grant_id: str
    mode: BurstMode
    draft_width: int
    max_steps: int
    reason: GrantReason
    explanation: str
    fresh_ms: int


@dataclass(frozen=True, slots=True)
class Lane:
    """What one batch loop of one decode instance is doing."""

    lane_id: str
    instance_id: str
    last_grant: Grant | None
    """None before the first."""
    plain_tokens_per_second: float | None
    """None before the first window."""
    speculative_tokens_per_second: float | None
    """None before the first window."""
    grants: int
    steps: int
    dropped_steps: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the policy holds for one pairing."""

    key: PolicyKey
    key_hash: str
    state: PolicyState
    verdict: Answer
    speculation_enabled: bool
    """Whether a burst asked for now may speculate."""
    acceptance_rate: float | None
    """Accepted over proposed drafts; None before the first round and while forced."""
    samples: int
    """Qualifying bursts seen."""
    samples_required: int
    speedup: float | None
    """Estimated speed-up over plain decoding; None without an estimate."""
    static_default: bool
    """What the static gate answers for this pairing."""
    from_hint: bool
    """Whether the verdict was read from a stored hint."""
    explanation: str
    """One sentence: why the state is what it is."""
    lanes: tuple[Lane, ...]

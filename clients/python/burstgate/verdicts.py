"""What the policy service has found out: one verdict a pairing, the lanes it rules, and what was asked about them.

Owns frozen dataclasses with the contract's field names. This module must not know protos or gRPC.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

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
class Regret:
    """What deciding has cost: the time that ran beside that of the best single mode in hindsight."""

    actual_ms: float
    """Of the steps that could be priced."""
    best_ms: float
    """What the best single mode would have taken for the same tokens, as far as that can be told."""
    best_draft_width: int
    """That mode: 1 is plain decoding, from 2 on a draft width for everything."""
    lost_ms: float
    """Negative if deciding was faster than every single mode."""
    share: float
    """Of the time that ran."""
    recent_share: float
    """As share, of the recent time of open lanes; 0 without such time."""
    recent_best_draft_width: int
    """As best_draft_width, of the recent time; 0 without such time."""
    holding: bool
    """Whether so much was lost recently that nothing is explored, on one lane of a pairing at least."""


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
    regret: Regret | None
    """None before a step was priced."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict, or the profile so far, rests on."""

    rounds: int
    plain_steps: int
    traffic_kinds: int
    speedup: float
    """Estimated; 0, as its interval, when the measured times gave no estimate."""
    speedup_low: float
    speedup_high: float
    confidence: float
    """Of the interval, such as 0.9."""
    spread: float
    first_seen_at: datetime
    last_seen_at: datetime
    round_ms: float
    plain_step_ms: float


@dataclass(frozen=True, slots=True)
class Pin:
    """A person's decision, above every measurement."""

    speculate: bool
    reason: str
    author: str
    pinned_at: datetime
    expires_at: datetime | None
    """None: until it is unpinned."""


@dataclass(frozen=True, slots=True)
class VerdictFilter:
    """Selects verdicts; every field that is set must match."""

    target: str = ""
    """Part of the name, without regard to case; so are the next two."""
    drafter: str = ""
    hardware: str = ""
    state: PolicyState = PolicyState.UNSPECIFIED
    verdict: Answer = Answer.UNSPECIFIED
    pinned: bool = False
    """Only pairings that a person has pinned."""


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
    regret: Regret | None
    """Of all lanes together, those that are gone included; None before a step was priced."""
    evidence: Evidence | None
    """None before the first round and while forced."""
    version: int
    """Increases with every change."""
    expires_at: datetime | None
    """When a settled verdict is measured again; None unless settled."""
    rechallenge_at: datetime | None
    """When a settled verdict is next challenged; None unless settled."""
    pin: Pin | None
    starved_because: str
    """Why profiling does not progress, when it does not."""


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """One change that a watch told."""

    verdict: Verdict | None
    """None when the pairing was removed, and for the notice that everything follows anew."""
    key_hash: str
    """Empty for that notice."""
    removed: bool
    resume_token: str
    """Shown to a later watch, it goes on after this change."""
    restarted: bool
    """The resume token was too old: every current verdict follows."""


@dataclass(frozen=True, slots=True)
class ImportedHint:
    """What became of one imported hint."""

    key_hash: str
    """Empty when the document has no readable key."""
    stored: bool
    why_not: str


@dataclass(frozen=True, slots=True)
class Situation:
    """What a burst would run on."""

    width: int
    """Active rows."""
    depth_tokens: int = 0
    min_emitted_tokens: int = 0
    eligible: bool = True
    """Whether every active row may speculate."""
    max_draft_width: int = 0
    """0 means the lane's."""
    steps_in_flight: int = 0
    """Steps of the running burst that were not reported yet."""


@dataclass(frozen=True, slots=True)
class RuleAnswer:
    """One rule's part in a grant."""

    rule: str
    decided: bool
    numbers: Mapping[str, float]
    answer: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A grant and the rules behind it, in the order they were consulted."""

    grant: Grant
    rules: tuple[RuleAnswer, ...]


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """One decision of a replay beside the recorded one."""

    recorded_mode: BurstMode
    recorded_draft_width: int
    mode: BurstMode
    draft_width: int
    reason: GrantReason


@dataclass(frozen=True, slots=True)
class Replay:
    """What the core would have decided on a recorded trace, and what that would have cost."""

    steps: tuple[ReplayedStep, ...]
    recorded_ms: float
    replayed_ms: float
    """Estimated, for the same tokens."""
    tokens: int
    verdict: Verdict
    """What the policy held at the end."""

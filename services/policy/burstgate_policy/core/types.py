"""The values the decision core takes and gives.

They mirror the messages of the policy contract field for field, so that translating them is the
servicer's only job. Every value is immutable. Instants are seconds since the epoch. Nothing here
decides, and nothing here knows how the values travel.
"""

import enum
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass


class Mode(enum.IntEnum):
    """What a step runs."""

    UNSPECIFIED = 0
    PLAIN = 1
    SPECULATIVE = 2
    PROBE_PLAIN = 3
    PROBE_SPECULATIVE = 4
    PINNED = 5

    def __init__(self, value: int) -> None:
        # Asked several times for each step, so worked out once.
        self.speculates = value in {2, 4, 5}
        """Whether a step of this mode is a round: it drafts and verifies."""
        self.probes = value in {3, 4}
        """Whether a step of this mode runs only to be measured."""


class Reason(enum.IntEnum):
    """The rule that decided a grant."""

    UNSPECIFIED = 0
    FORCED_ON = 1
    FORCED_OFF = 2
    PROFILING_PLAIN = 3
    PROFILING_SPECULATIVE = 4
    VERDICT_DECLINED = 5
    GATE_SPECULATIVE = 6
    GATE_PLAIN = 7
    GATE_PROBE_PLAIN = 8
    GATE_PROBE_SPECULATIVE = 9
    ENTRY_PIN = 10
    INELIGIBLE = 11
    STATIC_ON = 12
    STATIC_OFF = 13
    DEPTH_PLAIN = 14
    REQUEST_ON = 15
    REQUEST_OFF = 16
    FALLBACK_LAST_GRANT = 17
    FALLBACK_STATIC = 18
    NO_DRAFTER = 19
    INEXACT = 20
    PINNED_ON = 21
    PINNED_OFF = 22
    RECHALLENGE = 23


class State(enum.IntEnum):
    """Where the policy of one pairing stands."""

    UNSPECIFIED = 0
    FORCED = 1
    PROFILING = 2
    SETTLED = 3
    STATIC = 4


class Verdict(enum.IntEnum):
    """Whether speculation pays."""

    UNSPECIFIED = 0
    ENABLE = 1
    DECLINE = 2


@dataclass(frozen=True)
class PolicyKey:
    """Everything that changes the answer to "does speculation pay here".

    Two lanes share a verdict only if every field is equal, so the digest covers every field.
    """

    target: str
    drafter: str
    hardware: str
    draft_width: int
    target_fingerprint: str
    drafter_fingerprint: str
    dtype: str
    backend: str
    blas: str
    mlx_version: str

    @functools.cached_property
    def hash(self) -> str:
        """Sixteen hex characters that name this key in listings and in the hint store."""
        digest = hashlib.sha256()
        for value in astuple(self):
            # The length in front keeps ("ab", "c") and ("a", "bc") apart.
            encoded = str(value).encode("utf-8", "surrogatepass")
            digest.update(b"%d:%s" % (len(encoded), encoded))
        return digest.hexdigest()[:16]

    @property
    def display(self) -> str:
        """The key as a person reads it."""
        backend = f"{self.backend}/{self.blas}" if self.blas else self.backend
        place = f"{self.hardware} ({self.dtype}, {backend})"
        return f"{self.target} + {self.drafter} on {place}, K<={self.draft_width}"


@dataclass(frozen=True, slots=True)
class LaneCapabilities:
    """What a lane can do, independent of what pays."""

    batchable: bool
    max_width: int
    drafter_kind: str
    """Empty without a drafter."""
    apple_gpu_generation: int
    """13 for M1, 15 for M3; 0 on other hardware."""


@dataclass(frozen=True, slots=True)
class CostCell:
    """One measured cell of a lane's cost table."""

    width: int
    draft_width: int
    """Rows of the verify for each sequence; 1 is a plain step."""
    depth_tokens: int
    verify_ms: float
    draft_ms: float


@dataclass(frozen=True, slots=True)
class Situation:
    """What the next burst would run on."""

    width: int
    depth_tokens: int
    min_emitted_tokens: int
    eligible: bool
    max_draft_width: int
    """0 means the lane's."""
    steps_in_flight: int = 0
    """Steps of the running burst that have not been reported yet."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one step measured."""

    mode: Mode
    draft_width: int
    width: int
    depth_tokens: int
    emitted: int
    proposed: int
    accepted_by_position: tuple[int, ...]
    """Element i counts the rows whose first i+1 drafts were kept."""
    draft_ms: float
    verify_ms: float
    overhead_ms: float
    wall_ms: float
    excluded: bool


@dataclass(frozen=True, slots=True)
class BurstOutcome:
    """What a burst measured."""

    grant_id: str
    sequence: int
    steps: tuple[StepRecord, ...]
    dropped_steps: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission to run a burst."""

    mode: Mode
    draft_width: int
    max_steps: int
    reason: Reason
    explanation: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict rests on."""

    rounds: int
    plain_steps: int
    traffic_kinds: int
    speedup: float
    """0, as its interval, when the times gave no estimate."""
    speedup_low: float
    speedup_high: float
    confidence: float
    spread: float
    """Standard deviation of the profiled bursts' speed-ups; 0 when there are fewer than two."""
    first_seen_at: float
    last_seen_at: float
    round_ms: float
    plain_step_ms: float
    """0 when no plain step was measured."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A person's decision for a pairing, above every measurement."""

    speculate: bool
    reason: str
    author: str
    pinned_at: float
    expires_at: float | None = None
    """None: until it is unpinned."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the policy holds for one pairing."""

    key: PolicyKey
    state: State
    verdict: Verdict
    speculation_enabled: bool
    acceptance_rate: float | None
    samples: int
    samples_required: int
    speedup: float | None
    static_default: bool
    key_hash: str
    from_hint: bool
    explanation: str
    evidence: Evidence | None = None
    version: int = 0
    expires_at: float | None = None
    rechallenge_at: float | None = None
    pin: Pin | None = None
    starved_because: str = ""


@dataclass(frozen=True, slots=True)
class RuleAnswer:
    """One rule's part in a grant."""

    rule: str
    decided: bool
    numbers: Mapping[str, float]
    answer: str


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """One decision of a replay beside the recorded one."""

    recorded_mode: Mode
    recorded_draft_width: int
    mode: Mode
    draft_width: int
    reason: Reason

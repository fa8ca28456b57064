"""What a generation gives back: its events, and the whole answer at the end.

Owns frozen dataclasses with the contract's field names. A value of an enum that is newer than this library
reads as UNSPECIFIED; nothing here may fail on it. This module must not know protos or gRPC.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class BurstMode(enum.StrEnum):
    """What a step ran."""

    UNSPECIFIED = "UNSPECIFIED"
    PLAIN = "PLAIN"
    SPECULATIVE = "SPECULATIVE"
    PROBE_PLAIN = "PROBE_PLAIN"
    PROBE_SPECULATIVE = "PROBE_SPECULATIVE"
    PINNED = "PINNED"


class GrantReason(enum.StrEnum):
    """The rule that decided a burst's mode."""

    UNSPECIFIED = "UNSPECIFIED"
    FORCED_ON = "FORCED_ON"
    FORCED_OFF = "FORCED_OFF"
    PROFILING_PLAIN = "PROFILING_PLAIN"
    PROFILING_SPECULATIVE = "PROFILING_SPECULATIVE"
    VERDICT_DECLINED = "VERDICT_DECLINED"
    GATE_SPECULATIVE = "GATE_SPECULATIVE"
    GATE_PLAIN = "GATE_PLAIN"
    GATE_PROBE_PLAIN = "GATE_PROBE_PLAIN"
    GATE_PROBE_SPECULATIVE = "GATE_PROBE_SPECULATIVE"
    ENTRY_PIN = "ENTRY_PIN"
    INELIGIBLE = "INELIGIBLE"
    STATIC_ON = "STATIC_ON"
    STATIC_OFF = "STATIC_OFF"
    DEPTH_PLAIN = "DEPTH_PLAIN"
    REQUEST_ON = "REQUEST_ON"
    REQUEST_OFF = "REQUEST_OFF"
    FALLBACK_LAST_GRANT = "FALLBACK_LAST_GRANT"
    FALLBACK_STATIC = "FALLBACK_STATIC"
    NO_DRAFTER = "NO_DRAFTER"
    INEXACT = "INEXACT"
    PINNED_ON = "PINNED_ON"
    PINNED_OFF = "PINNED_OFF"
    RECHALLENGE = "RECHALLENGE"


class FinishReason(enum.StrEnum):
    """Why an answer ended."""

    UNSPECIFIED = "UNSPECIFIED"
    EOS = "EOS"
    STOP_TOKEN = "STOP_TOKEN"  # noqa: S105 - a finish reason, not a secret
    STOP_STRING = "STOP_STRING"
    LENGTH = "LENGTH"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One alternative at a position."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The chosen token's log-probability and the likeliest tokens, best first."""

    logprob: float
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to one answer."""

    index: int
    """Which of the n answers."""
    text: str
    """New text; may be empty."""
    token_ids: tuple[int, ...]
    drafted: tuple[bool, ...]
    """For each token id, whether the drafter proposed it."""
    round: int
    """Number of the step in this answer, from 1."""
    mode: BurstMode
    draft_width: int
    """Rows of the step's verify; 1 for a plain step."""
    reason: GrantReason
    explanation: str
    """The grant's sentence, on the first delta of each burst."""
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int
    """Of the prompt's tokens, those that were not run, because an earlier prompt or answer began with them."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time went on the server."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    time_to_first_token_ms: float
    total_ms: float
    tokens_per_second: float
    """Completion tokens after the first over decode_ms; 0 for a single token."""


@dataclass(frozen=True, slots=True)
class BurstCount:
    """Bursts that ran in one mode for one reason."""

    mode: BurstMode
    reason: GrantReason
    bursts: int


@dataclass(frozen=True, slots=True)
class DraftWidthCount:
    """Rounds that ran at one draft width."""

    draft_width: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """A position at which a shared forward preferred another token than a one-row step, whose token the answer has."""

    position: int
    """In the answer, from 0."""
    shared_token_id: int
    token_id: int
    margin: float
    """How far the shared forward's token lay above its next best."""


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """What speculation did for one answer."""

    rounds: int
    """Draft-verify rounds."""
    plain_steps: int
    proposed: int
    """Tokens drafted and verified."""
    accepted: int
    """Drafts accepted."""
    accepted_by_position: tuple[int, ...]
    """Element i counts rounds whose first i+1 drafts were all accepted."""
    mean_accepted_length: float
    """Accepted drafts a round; 0 without rounds."""
    draft_widths: tuple[DraftWidthCount, ...]
    bursts: tuple[BurstCount, ...]
    explanation: str
    """The last grant's sentence."""
    redecided: int
    """Positions decided again by a one-row step."""
    diverged: int
    """Those at which it chose another token."""
    divergences: tuple[Divergence, ...]
    """The first 16 of them."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Ends one answer."""

    index: int
    finish_reason: FinishReason
    stop_string: str | None
    """The stop string that ended the answer, if one did."""
    stop_token_id: int | None
    """The stop token that ended the answer, if one did."""
    usage: Usage
    timings: Timings
    speculation: SpeculationStats
    seed: int
    """The seed the answer was drawn with."""


Event = Delta | Completion
"""One item of a generation's stream."""


@dataclass(frozen=True, slots=True)
class Result:
    """One whole answer."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    drafted: tuple[bool, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason
    stop_string: str | None
    stop_token_id: int | None
    usage: Usage
    timings: Timings
    speculation: SpeculationStats
    seed: int
    request_id: str


@dataclass(frozen=True, slots=True)
class TokenCount:
    """A prompt's tokens."""

    prompt_tokens: int
    ids: tuple[int, ...]
    """Empty unless asked for."""

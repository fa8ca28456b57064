"""What the engine is asked for and what it answers with: domain values, free of gRPC and of mlx.

Requests arrive validated; an `AnswerRequest` is one of the n answers of a generation request. Events go
to the answer's sink from the engine's thread, in order, and end with exactly one completion or failure. Answers
may share a sink, which then gets what a step added to all of them in one call.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from burstgate_policy.core.types import Mode, Reason


class SpeculationChoice(enum.Enum):
    """Who decides whether a request speculates."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class Priority(enum.IntEnum):
    """How a request ranks among those that wait; see `turns`."""

    LOW = 0
    NORMAL = 1
    HIGH = 2


@dataclass(frozen=True)
class Claim:
    """Whose a request is, how it ranks while it waits, and how long it is wanted."""

    tenant: str = ""
    """Empty is the one tenant of all callers that name none."""
    priority: Priority = Priority.NORMAL
    time_left_ms: float | None = None
    """From submission until the caller gives up; None waits for ever."""


class FinishReason(enum.Enum):
    """Why an answer ended. The values are the wire's."""

    EOS = 1
    STOP_TOKEN = 2
    STOP_STRING = 3
    LENGTH = 4


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen. The defaults choose the likeliest token."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0

    def for_answer(self, index: int) -> "SamplingParams":
        """The params of one of n answers: each draws with a seed of its own."""
        return replace(self, seed=(self.seed + index) % (1 << 64))


@dataclass(frozen=True)
class AnswerRequest:
    """One answer to generate."""

    request_id: str
    index: int
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = SamplingParams()
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None
    speculation: SpeculationChoice = SpeculationChoice.AUTO
    max_draft_width: int = 0


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probability of the chosen token and of the likeliest ones, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Delta:
    """What one step added to one answer."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    drafted: tuple[bool, ...]
    round: int
    mode: Mode
    draft_width: int
    reason: Reason
    explanation: str
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class Divergence:
    """A position at which a forward that others shared chose another token than a one-row step, whose token holds."""

    position: int
    """In the answer, from 0."""
    shared_token_id: int
    token_id: int
    margin: float
    """By which the shared forward preferred its token."""


@dataclass
class SpeculationStats:
    """What speculation did for one answer."""

    rounds: int = 0
    plain_steps: int = 0
    proposed: int = 0
    """Drafts verified."""
    dropped: int = 0
    """Drafts made and left out of the verify."""
    saved: int = 0
    """Drafts that rounds with a rule did not make, of those that they might have made."""
    stopped_early: int = 0
    """Rounds in which a rule made the verify narrower than it might have been."""
    accepted: int = 0
    redecided: int = 0
    diverged: int = 0
    """Positions decided again with another outcome."""
    divergences: list[Divergence] = field(default_factory=list)
    """The first of them."""
    accepted_by_position: list[int] = field(default_factory=list)
    rounds_by_draft_width: dict[int, int] = field(default_factory=dict)
    bursts: dict[tuple[Mode, Reason], int] = field(default_factory=dict)
    explanation: str = ""


@dataclass(frozen=True)
class Timings:
    """Where an answer's time went."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    time_to_first_token_ms: float
    total_ms: float


@dataclass(frozen=True)
class Completion:
    """Ends one answer. `text` is what was held back until the end."""

    index: int
    text: str
    finish_reason: FinishReason
    stop_string: str | None
    stop_token_id: int | None
    prompt_tokens: int
    cached_prompt_tokens: int
    """Those that were not run, because what they give was kept from earlier rows."""
    completion_tokens: int
    timings: Timings
    speculation: SpeculationStats
    seed: int


@dataclass(frozen=True)
class Failure:
    """Ends one answer that the engine could not finish."""

    index: int
    error: Exception


Event: TypeAlias = Delta | Completion | Failure
Sink: TypeAlias = Callable[[Sequence[Event]], None]
"""Takes events and never raises. The engine's thread waits for it."""


class Clock(Protocol):
    """Monotonic time in milliseconds."""

    def __call__(self) -> float:
        """Now."""
        ...

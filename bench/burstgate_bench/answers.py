"""One measured answer, and the statistics of several of them. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


class TooShortError(Exception):
    """An answer ended before it could be timed."""


@dataclass(frozen=True)
class Step:
    """One delivery after the first."""

    draft_width: int
    tokens: int
    ms: float
    """Since the delivery before."""


@dataclass(frozen=True)
class Answer:
    """What one generation gave and how fast it came."""

    tokens: tuple[int, ...]
    first_delivery_tokens: int
    """Tokens that came with the first one: more than one where a round opened the answer."""
    decode_ms: float
    """From the delivery of the first token to that of the last."""
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    plain_steps: int = 0
    bursts: dict[str, int] = field(default_factory=dict)
    """Bursts by mode and reason."""
    deliveries: tuple[tuple[float, int], ...] = ()
    """When tokens came, in milliseconds, and how many, where it was noted."""
    steps: tuple[Step, ...] = ()
    """After the first delivery; empty for arms outside the engine."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens delivered after the first delivery, over the time they took.

        What came together with the first token is not counted: its time lies before the clock started, and
        an arm that opens with a round would be flattered by it. Raises `TooShortError`.
        """
        timed = len(self.tokens) - self.first_delivery_tokens
        if timed < 1 or not self.decode_ms > 0.0:
            raise TooShortError(f"an answer of {len(self.tokens)} tokens is too short to time")
        return timed * 1e3 / self.decode_ms


def shared_tokens_per_second(answers: Sequence[Answer]) -> float:
    """The rates of all answers, added up, during the time in which every one of them was being written.

    That is from the last first delivery to the first last one; before and after, the batch is narrower. A step's
    tokens reach the answers one after another, so each answer is timed between deliveries of its own: a clock that
    all share would stop while the last step has been handed to some of them only. Raises `TooShortError`.
    """
    start, end = _shared_window(answers)
    return sum(_tokens_per_second(answer, start, end) for answer in answers)


def shared_steps(answers: Sequence[Answer]) -> list[Step]:
    """The batch's steps in that time: the widest row's draft width, all rows' tokens, the first row's time."""
    start, end = _shared_window(answers)
    rows = [
        [step for (at, _), step in zip(answer.deliveries[1:], answer.steps, strict=True) if start < at <= end]
        for answer in answers
    ]
    # Rows get a step's tokens one after another, so the one that ends the time may leave the others a step short.
    return [
        Step(max(step.draft_width for step in steps), sum(step.tokens for step in steps), steps[0].ms)
        for steps in zip(*rows, strict=False)
    ]


def _tokens_per_second(answer: Answer, start: float, end: float) -> float:
    """Between the answer's last delivery at `start` or before and its last one at `end` or before."""
    first_at = max(at for at, _ in answer.deliveries if at <= start)
    counted = [(at, count) for at, count in answer.deliveries if first_at < at <= end]
    if not counted:
        raise TooShortError("the answers were written together for too short a time")
    return sum(count for _, count in counted) * 1e3 / (counted[-1][0] - first_at)


def _shared_window(answers: Sequence[Answer]) -> tuple[float, float]:
    start = max(answer.deliveries[0][0] for answer in answers)
    return start, min(answer.deliveries[-1][0] for answer in answers)


@dataclass(frozen=True)
class Cell:
    """Several answers of one arm to one prompt."""

    tokens_per_second: float
    """Median."""
    spread: float
    """Fastest minus slowest, over the median."""
    accepted_per_round: float | None
    """None where no round ran."""
    samples: int


def summarize(answers: Sequence[Answer]) -> Cell:
    """The statistics of at least one answer."""
    rates = [answer.tokens_per_second for answer in answers]
    median = statistics.median(rates)
    rounds = sum(answer.rounds for answer in answers)
    return Cell(
        tokens_per_second=median,
        spread=(max(rates) - min(rates)) / median,
        accepted_per_round=sum(answer.accepted for answer in answers) / rounds if rounds else None,
        samples=len(answers),
    )

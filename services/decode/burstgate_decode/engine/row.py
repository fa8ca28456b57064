"""One answer being generated: its tokens, text and account, and which slot of the batch it holds.

Only the engine's thread touches a row. Its keys and values, and what its drafter remembers, are the batch's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from burstgate_decode.engine.request import (
    AnswerRequest,
    Claim,
    Clock,
    Completion,
    Delta,
    Event,
    FinishReason,
    Sink,
    SpeculationStats,
    Timings,
    TokenLogprobs,
)
from burstgate_decode.engine.sampling import Chooser
from burstgate_decode.engine.text import AnswerText, Piece
from burstgate_decode.models.target import Target
from burstgate_policy.core.types import Mode, Reason


class Ticket:
    """A caller's hold on an answer: cancelling frees the row before its next step."""

    def __init__(self) -> None:
        """Not cancelled."""
        self.cancelled = False

    def cancel(self) -> None:
        """Asks for the row to be freed. Any thread may call it, any number of times."""
        self.cancelled = True


@dataclass(frozen=True)
class StepLabel:
    """What a delta says about the step that made it."""

    mode: Mode
    draft_width: int
    reason: Reason
    explanation: str


class Row:
    """State of one answer from submission to its end."""

    def __init__(
        self,
        request: AnswerRequest,
        ticket: Ticket,
        sink: Sink,
        clock: Clock,
        claim: Claim = Claim(),  # noqa: B008  (immutable)
    ) -> None:
        """A row that waits for admission."""
        self.request = request
        self.claim = claim
        self.ticket = ticket
        self.tokens = list(request.prompt)
        self.slot: int | None = None
        """Place in the batch; None before admission and after the end."""
        self.finished = False
        self.failed = False
        self.stats = SpeculationStats()
        self.sink = sink
        self._clock = clock
        self._round = 0
        self._arrived_ms = clock()
        self._admitted_ms = self._arrived_ms
        self.deadline_ms = None if claim.time_left_ms is None else self._arrived_ms + claim.time_left_ms
        """By the row's clock."""
        self._first_token_ms: float | None = None
        self._last_token_ms = self._arrived_ms
        self.prefill_ms = 0.0

    def admit(self, target: Target, drafts: bool) -> None:
        """Prepares what a row needs from its first forward on. `drafts`: whether a drafter follows it."""
        self._admitted_ms = self._clock()
        self.drafts = drafts
        self.prefilled = 0
        self.cached_prompt_tokens = 0
        self.chunk_tokens = 1
        """Prompt tokens of each forward that read it, but the last."""
        self.chooser = Chooser(self.request.sampling, target.vocab_size)
        self.text = AnswerText(target.tokenizer, self.request.stop_strings)
        self._eos = frozenset() if self.request.ignore_eos else target.eos_token_ids

    @property
    def queue_ms(self) -> float:
        """From arrival to admission."""
        return self._admitted_ms - self._arrived_ms

    @property
    def alive(self) -> bool:
        """Whether the row still takes steps."""
        return not self.finished and not self.ticket.cancelled

    @property
    def emitted(self) -> int:
        """Answer tokens so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def remaining(self) -> int:
        """Answer tokens still allowed."""
        return self.request.max_tokens - self.emitted

    @property
    def prefill_left(self) -> int:
        """Prompt tokens to run before the last one, which the first step takes, or the last chunk with the rest."""
        return len(self.request.prompt) - 1 - self.prefilled

    def commit(
        self, tokens: list[int], drafted: list[bool], logprobs: tuple[TokenLogprobs, ...], label: StepLabel
    ) -> list[Event]:
        """Takes a step's tokens and finishes the answer where it ends. Returns what is to be delivered."""
        self._round += 1
        now = self._clock()
        if tokens:
            self._first_token_ms = self._first_token_ms or now
            self._last_token_ms = now
        text, taken = "", 0
        finish: tuple[FinishReason, str | None, int | None] | None = None
        for token in tokens:
            taken += 1
            self.tokens.append(token)
            finish = self._stopped_by_token(token)
            if finish is None:
                piece = self.text.add(token)
                text += piece.text
                if piece.stop_string is not None:
                    finish = (FinishReason.STOP_STRING, piece.stop_string, None)
                elif self.remaining <= 0:
                    finish = (FinishReason.LENGTH, None, None)
            if finish is not None:
                break
        events: list[Event] = []
        if taken:
            events.append(
                Delta(
                    self.request.index, text, tuple(tokens[:taken]), tuple(drafted[:taken]), self._round,
                    label.mode, label.draft_width, label.reason, label.explanation, logprobs[:taken],
                )
            )  # fmt: skip
        if finish is not None:
            events.append(self._finish(*finish))
        return events

    def fail(self, event: Event) -> None:
        """Ends the answer with a failure."""
        self.finished = self.failed = True
        deliver([(self, [event])])

    def _stopped_by_token(self, token: int) -> tuple[FinishReason, str | None, int | None] | None:
        if token in self.request.stop_token_ids:
            return FinishReason.STOP_TOKEN, None, token
        if token in self._eos:
            return FinishReason.EOS, None, token
        return None

    def _finish(self, reason: FinishReason, stop_string: str | None, stop_token_id: int | None) -> Completion:
        self.finished = True
        # After a stop string nothing held back belongs to the answer.
        rest = Piece("") if reason is FinishReason.STOP_STRING else self.text.finish()
        if rest.stop_string is not None:
            reason, stop_string, stop_token_id = FinishReason.STOP_STRING, rest.stop_string, None
        now = self._clock()
        first = self._first_token_ms or now
        return Completion(
            index=self.request.index,
            text=rest.text,
            finish_reason=reason,
            stop_string=stop_string,
            stop_token_id=stop_token_id,
            prompt_tokens=len(self.request.prompt),
            cached_prompt_tokens=self.cached_prompt_tokens,
            completion_tokens=self.emitted,
            timings=Timings(
                queue_ms=self.queue_ms,
                prefill_ms=self.prefill_ms,
                decode_ms=self._last_token_ms - first,
                time_to_first_token_ms=first - self._arrived_ms,
                total_ms=now - self._arrived_ms,
            ),
            speculation=self.stats,
            seed=self.request.sampling.seed,
        )


def deliver(events: Iterable[tuple[Row, Sequence[Event]]]) -> None:
    """Hands rows' events over, in order; those of rows that share a sink in one call. A cancelled row gets none."""
    by_sink: dict[Sink, list[Event]] = {}
    for row, added in events:
        if added and not row.ticket.cancelled:
            by_sink.setdefault(row.sink, []).extend(added)
    for sink, together in by_sink.items():
        sink(together)

"""Runs one step of the batch in the modes its rows were given, keeps the rows' accounts and commits the tokens.

Decides nothing about speculation beyond what exactness and a row's own limits demand: a row's part of a verify
is never wider than the tokens its answer may still take. What one row raises ends that row alone: when a shared
step raises, its rows are stepped one by one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from burstgate_decode.engine.batch import Batch
from burstgate_decode.engine.request import Clock, Event, SpeculationChoice, TokenLogprobs
from burstgate_decode.engine.rounds import RowResult, StepResult, draft_verify_round, plain_step, step_alone
from burstgate_decode.engine.row import Row, StepLabel, deliver
from burstgate_decode.engine.sampling import logprobs_of
from burstgate_decode.engine.stopping import RoundOutcome, RoundPlan, RoundRow, RowOutcome, Stopping
from burstgate_policy.core.types import Reason

_log = structlog.get_logger(__name__)

# Of an answer; all are counted.
_MOST_DIVERGENCES = 16
# What these rounds measure is a draft width, whose acceptance must not depend on which drafts looked promising.
_MEASURES_WIDTH = frozenset({Reason.PROFILING_SPECULATIVE, Reason.RECHALLENGE})


@dataclass(frozen=True)
class GuardMargins:
    """A choice whose margin is not above these is decided again by a forward of one row and one token."""

    verify: float = 0.0
    """For choices of a verify."""
    batch: float = 0.0
    """For choices of a plain step of several rows."""


class Stepper:
    """Steps the rows of one batch."""

    def __init__(
        self,
        batch: Batch,
        margins: GuardMargins,
        draft_width: int,
        on_error: Callable[[Row, Exception], None],
        clock: Clock,
        stopping: Stopping | None = None,
    ) -> None:
        """`draft_width`: the widest verify; 1 without a drafter. `on_error` ends a row whose step raised. Without
        `stopping` every round runs its full width.
        """
        self._batch = batch
        self._margins = margins
        self._draft_width = draft_width
        self._on_error = on_error
        self._clock = clock
        self._stopping = stopping

    def draft_width_of(self, row: Row) -> int:
        """Widest verify the row may take part in now: its own cap, its budget and the context's end."""
        if not row.drafts or row.request.speculation is SpeculationChoice.OFF or len(row.tokens) < 2:
            # A drafter predicts from a hidden state and the token after it, which one token does not have.
            return 1
        cap = row.request.max_draft_width or self._draft_width
        room = self._batch.target.context_length - len(row.tokens)
        return max(1, min(cap, self._draft_width, row.remaining, room))

    def step(self, label_of: Callable[[Row], StepLabel], next_is_plain: Callable[[], bool]) -> StepResult:
        """Runs and commits one step of all decoding rows. At least one.

        While a plain step is in flight, or when no row has room for a draft, it is a plain step whatever the
        labels say.
        """
        rows = self._batch.stepping
        labels = {id(row): label_of(row) for row in rows}
        widths = [self._width(row, labels[id(row)]) for row in rows]
        try:
            done = self._run(widths, labels, next_is_plain)
        except Exception:  # noqa: BLE001  (what one row raises must end that row alone, and which is not known yet)
            _log.exception("shared_step_failed", rows=len(widths))
            done = self._one_by_one(rows)
        events: list[tuple[Row, list[Event]]] = []
        for result in done.rows:
            try:
                events.append((result.row, self._commit(result, labels[id(result.row)])))
            except Exception as error:  # noqa: BLE001
                self._on_error(result.row, error)
        deliver(events)
        return done

    def _width(self, row: Row, label: StepLabel) -> int:
        return min(label.draft_width, self.draft_width_of(row)) if label.mode.speculates else 1

    def _run(self, widths: list[int], labels: dict[int, StepLabel], next_is_plain: Callable[[], bool]) -> StepResult:
        batch = self._batch
        if batch.flight is None and max(widths) > 1:
            return self._round(widths, labels, next_is_plain)
        # A row alone is what every other forward is held against.
        margin = self._margins.batch if len(batch.decoding) > 1 else 0.0
        # What has landed is told at once: nothing is built before it is read.
        landed = batch.flight is not None and batch.flight.landed
        more = not landed and any(row.remaining > 1 for row in batch.decoding)
        return plain_step(batch, more and next_is_plain(), margin, self._clock)

    def _round(self, widths: list[int], labels: dict[int, StepLabel], next_is_plain: Callable[[], bool]) -> StepResult:
        """A round of these widths, or of as many drafts as the rule finds worth it.

        The rule is not bound by a granted width, which fits the text of the last rounds: only by what a row may take
        part in. Where one row needs exactly its width, no rule decides for the others.
        """
        batch, stopping = self._batch, self._stopping
        if stopping is None:
            return draft_verify_round(batch, widths, self._margins.verify, self._clock, None, next_is_plain)
        start_ms = self._clock()
        rows, depth_tokens = batch.decoding, max(len(row.tokens) for row in batch.decoding)
        plan: RoundPlan | None = None
        if not any(width > 1 and _fixes_width(row, labels[id(row)]) for row, width in zip(rows, widths, strict=True)):
            plan = stopping.plan(
                [self._round_row(row, width) for row, width in zip(rows, widths, strict=True)], depth_tokens
            )
        done = draft_verify_round(
            batch,
            widths if plan is None else plan.widths,
            self._margins.verify,
            self._clock,
            None if plan is None else plan.rule,
            next_is_plain,
        )
        outcomes = tuple(
            RowOutcome(one.draft_width, not one.row.chooser.greedy, one.probabilities, one.matched) for one in done.rows
        )
        emitted = sum(len(one.tokens) for one in done.rows)
        stopping.learn(RoundOutcome(outcomes, emitted, self._clock() - start_ms, depth_tokens), plan)
        return done

    def _round_row(self, row: Row, width: int) -> RoundRow:
        return RoundRow(width, self.draft_width_of(row) if width > 1 else 1, sampled=not row.chooser.greedy)

    def _one_by_one(self, rows: Sequence[Row]) -> StepResult:
        start_ms = self._clock()
        results: list[RowResult] = []
        for row in rows:
            try:
                results.append(step_alone(self._batch, row))
            except Exception as error:  # noqa: BLE001
                self._on_error(row, error)
        return StepResult(results, 0.0, self._clock() - start_ms)

    def _commit(self, result: RowResult, label: StepLabel) -> list[Event]:
        row, tokens = result.row, result.tokens
        _count(row, result)
        logprobs: tuple[TokenLogprobs, ...] = ()
        if row.request.logprobs is not None and result.logits is not None:
            logprobs = logprobs_of(result.logits, tokens, row.request.logprobs)
        told = StepLabel(label.mode, result.draft_width, label.reason, label.explanation)
        return row.commit(tokens, result.drafted, logprobs, told)


def _fixes_width(row: Row, label: StepLabel) -> bool:
    """Whether the row's part of a round must have exactly the width it was given."""
    asked = row.request.speculation is SpeculationChoice.ON and row.request.max_draft_width > 0
    return asked or label.mode.probes or label.reason in _MEASURES_WIDTH


def count_positions(counts: list[int], accepted: int) -> None:
    """Adds one round that accepted its first `accepted` drafts to the counts by position."""
    counts.extend([0] * (accepted - len(counts)))
    for place in range(accepted):
        counts[place] += 1


def _count(row: Row, result: RowResult) -> None:
    stats = row.stats
    stats.redecided += result.doubted is not None
    if result.divergence is not None:
        stats.diverged += 1
        if len(stats.divergences) < _MOST_DIVERGENCES:
            stats.divergences.append(result.divergence)
    if result.draft_width == 1:
        stats.plain_steps += 1
        return
    stats.rounds += 1
    stats.proposed += result.draft_width - 1
    stats.accepted += result.accepted
    stats.dropped += result.dropped
    stats.saved += result.saved
    stats.stopped_early += result.dropped + result.saved > 0
    count_positions(stats.accepted_by_position, result.accepted)
    stats.rounds_by_draft_width[result.draft_width] = stats.rounds_by_draft_width.get(result.draft_width, 0) + 1

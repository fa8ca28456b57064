"""Runs one step of one row in the mode it was given, keeps the row's account and commits the tokens.

Decides nothing about speculation beyond what exactness and the row's own limits demand: a verify is
never wider than the tokens the answer may still take, and a position that a round would not trust is
decided by a one-row step.
"""

from collections.abc import Callable

from burstgate_decode.drafters.base import Drafter
from burstgate_decode.engine.request import Clock, SpeculationChoice, TokenLogprobs
from burstgate_decode.engine.rounds import StepResult, draft_verify_round, plain_step
from burstgate_decode.engine.row import Row, StepLabel
from burstgate_decode.engine.sampling import logprobs_of
from burstgate_decode.engine.stopping import RoundOutcome, RoundPlan, Stopping
from burstgate_decode.models.target import Target
from burstgate_policy.core.types import Reason

# What these rounds measure is a draft width, whose acceptance must not depend on which drafts looked promising.
_MEASURES_WIDTH = frozenset({Reason.PROFILING_SPECULATIVE, Reason.RECHALLENGE})


class Stepper:
    """Steps rows of one pairing."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        guard_margin: float,
        draft_width: int,
        clock: Clock,
        stopping: Stopping | None = None,
    ) -> None:
        """`draft_width`: the widest verify; 1 without a drafter. Without `stopping` every round runs its full width."""
        self._target = target
        self._drafter = drafter
        self._guard_margin = guard_margin
        self._draft_width = draft_width
        self._clock = clock
        self._stopping = stopping

    def draft_width_of(self, row: Row) -> int:
        """Widest verify the row may take part in now: its own cap, its budget and the context's end."""
        if self._drafter is None or row.request.speculation is SpeculationChoice.OFF or len(row.tokens) < 2:
            # A drafter predicts from a hidden state and the token after it, which one token does not have.
            return 1
        cap = row.request.max_draft_width or self._draft_width
        return max(1, min(cap, self._draft_width, row.remaining, self._target.context_length - len(row.tokens)))

    def run(self, row: Row, label: StepLabel, next_is_plain: Callable[[], bool]) -> StepResult:
        """Runs and commits one step.

        A row whose next plain step is in flight, whose last round asked for a one-row decision, or which
        has no room for a draft takes a plain step whatever `label` says.
        """
        width = min(label.draft_width, self.draft_width_of(row)) if label.mode.speculates else 1
        if width > 1 and row.flight is None and not row.redecide:
            result = self._round(row, width, label)
        else:
            row.redecide = False
            look_ahead = row.remaining > 1 and not label.mode.speculates and next_is_plain()
            result = plain_step(self._target, row, look_ahead, self._clock)
            row.stats.plain_steps += 1
        logprobs: tuple[TokenLogprobs, ...] = ()
        if row.request.logprobs is not None:
            logprobs = logprobs_of(result.logits, result.tokens, row.request.logprobs)
        row.commit(
            result.tokens,
            result.drafted,
            logprobs,
            StepLabel(label.mode, result.draft_width, label.reason, label.explanation),
        )
        return result

    def _round(self, row: Row, width: int, label: StepLabel) -> StepResult:
        """A round of `width` rows, or of as many as the rule finds worth it.

        The rule is not bound by the granted width, which fits the text of the last rounds: only by what the row
        may take part in.
        """
        start_ms = self._clock()
        depth_tokens, sampled = len(row.tokens), (not row.chooser.greedy,)
        plan = RoundPlan(width)
        planned = self._stopping is not None and not _fixes_width(row, label)
        if self._stopping is not None and planned:
            plan = self._stopping.plan(width, self.draft_width_of(row), depth_tokens, sampled)
        result = draft_verify_round(self._target, row, plan.draft_width, self._guard_margin, self._clock, plan.rule)
        if self._stopping is not None:
            outcome = RoundOutcome(
                draft_width=result.draft_width,
                sampled=sampled,
                probabilities=(result.probabilities,),
                matched=(result.matched,),
                emitted=len(result.tokens),
                wall_ms=self._clock() - start_ms,
                depth_tokens=depth_tokens,
            )
            self._stopping.learn(outcome, plan if planned else None)
        self._count_round(row, plan.draft_width, result)
        return result

    def _count_round(self, row: Row, allowed: int, result: StepResult) -> None:
        stats = row.stats
        row.redecide = result.redecided
        stats.rounds += 1
        stats.redecided += result.redecided
        stats.proposed += result.proposed
        stats.dropped += result.dropped
        stats.accepted += result.accepted
        stats.stopped_early += result.draft_width < allowed
        stats.saved += allowed - 1 - result.proposed - result.dropped
        count_positions(stats.accepted_by_position, result.accepted)
        ran = result.draft_width
        stats.rounds_by_draft_width[ran] = stats.rounds_by_draft_width.get(ran, 0) + 1


def _fixes_width(row: Row, label: StepLabel) -> bool:
    """Whether the round must run exactly the width it was given."""
    return label.reason in _MEASURES_WIDTH or (
        row.request.speculation is SpeculationChoice.ON and row.request.max_draft_width > 0
    )


def count_positions(counts: list[int], accepted: int) -> None:
    """Adds one round that accepted its first `accepted` drafts to the counts by position."""
    counts.extend([0] * (accepted - len(counts)))
    for place in range(accepted):
        counts[place] += 1

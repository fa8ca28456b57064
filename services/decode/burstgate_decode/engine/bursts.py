"""Cuts the steps of the rows that leave speculation to the policy into bursts, and measures every step.

Each step of the batch runs these rows in the mode and at the width of the current grant; its record goes back
to the grant's source. A burst ends after the grant's steps, or early when the batch's width bucket or its depth
regime changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from burstgate_decode.engine.grants import GrantSource
from burstgate_decode.engine.rounds import StepResult
from burstgate_decode.engine.row import Row, StepLabel
from burstgate_decode.engine.stepper import count_positions
from burstgate_policy.core.types import Grant, Mode, Situation, StepRecord

# A grant asked for with the last step of a burst is answered while that step computes. The engine looks for it before
# it decides whether to issue the next plain step early: at least so long, and this share of a plain step, which
# computes meanwhile and leaves time enough to build the next one.
_UPCOMING_WAIT_MS = 2.0
_UPCOMING_SHARE = 0.25
# Contexts below this are one depth regime; above, a regime ends where the depth has doubled.
_DEPTH_FLOOR_TOKENS = 512


@dataclass
class _Burst:
    grant: Grant
    situation: Situation
    steps_left: int
    seen: set[int]


class BurstRunner:
    """The burst in progress. `expect` at will; each step is `begin`, `label` and `next_is_plain` as needed, `end`."""

    def __init__(self, grants: GrantSource) -> None:
        """No burst yet."""
        self._grants = grants
        self._burst: _Burst | None = None
        self._plain_ms = 0.0

    def expect(self, situation: Situation | None) -> None:
        """The next step may run on this. If a burst would start there, the question for it is sent while other work
        runs: asked only then, it would hold up the step, or not be answered in time on a busy machine.
        """
        if situation is not None and self._starts_at(situation):
            self._grants.prefetch(situation)

    def begin(self, situation: Situation) -> None:
        """A step starts. `situation`: of the whole batch, and what its AUTO rows may do."""
        burst = self._burst
        if burst is None or self._starts_at(situation):
            grant = self._grants.next(situation)
            burst = self._burst = _Burst(grant, situation, max(1, grant.max_steps), set())
        burst.steps_left -= 1
        if burst.steps_left == 0:
            self._grants.prefetch(replace(situation, steps_in_flight=1))

    def label(self, row: Row) -> StepLabel:
        """What the grant has an AUTO row do. Notes the burst in the row's account."""
        burst = self._running()
        grant = burst.grant
        first = id(row) not in burst.seen
        if first:
            burst.seen.add(id(row))
            key = (grant.mode, grant.reason)
            row.stats.bursts[key] = row.stats.bursts.get(key, 0) + 1
            row.stats.explanation = grant.explanation
        return StepLabel(grant.mode, grant.draft_width, grant.reason, grant.explanation if first else "")

    def next_is_plain(self) -> bool:
        """Whether the next step is known to be plain for the AUTO rows."""
        burst = self._running()
        if burst.steps_left > 0:
            return not burst.grant.mode.speculates
        upcoming = self._grants.upcoming(max(_UPCOMING_WAIT_MS, _UPCOMING_SHARE * self._plain_ms))
        return upcoming is not None and not upcoming.mode.speculates

    def end(self, done: StepResult, situation: Situation, wall_ms: float, disturbed: bool) -> None:
        """The step has run. `disturbed`: other work was mixed in, so its time says nothing."""
        cost_ms = max(0.0, wall_ms + done.borrowed_ms)
        grant = self._running().grant
        if not (grant.mode.speculates or disturbed):
            self._plain_ms = cost_ms
        self._grants.report(_record(grant, done, situation, cost_ms, disturbed))

    def idle(self) -> None:
        """Ends the busy period: the burst is over, and its outcome is handed over."""
        if self._burst is not None:
            self._burst = None
            self._grants.idle()

    def _starts_at(self, situation: Situation) -> bool:
        burst = self._burst
        return burst is None or burst.steps_left == 0 or not _same_regime(burst.situation, situation)

    def _running(self) -> _Burst:
        if self._burst is None:
            raise RuntimeError("no burst is running")
        return self._burst


def situation_of(rows: Sequence[Row], auto: Sequence[Row], draft_widths: Sequence[int]) -> Situation:
    """What the next burst runs on: all decoding `rows`, of which `auto` follow the grant, each up to its width.

    The depth is the longest row's: attention in a shared forward costs every row as many keys as that one has.
    """
    return Situation(
        width=len(rows),
        depth_tokens=max(len(row.tokens) for row in rows),
        min_emitted_tokens=min(row.emitted for row in auto),
        eligible=True,
        max_draft_width=max(draft_widths),
    )


def _record(grant: Grant, done: StepResult, situation: Situation, wall_ms: float, disturbed: bool) -> StepRecord:
    """The step's record: everything is counted over all rows of the forward, those beside the grant as well."""
    accepted_by_position: list[int] = []
    rounds = 0
    # What ran, where rounds were not as wide as was granted; of rows of different widths the widest.
    widest = max((result.draft_width for result in done.rows), default=1)
    for result in done.rows:
        rounds += result.draft_width > 1
        count_positions(accepted_by_position, result.accepted)
    # A step in which some row could not follow the grant measures neither mode.
    follows = bool(done.rows) and rounds == (len(done.rows) if grant.mode.speculates else 0)
    return StepRecord(
        mode=grant.mode,
        draft_width=widest if follows and rounds else grant.draft_width,
        width=max(1, len(done.rows)),
        depth_tokens=situation.depth_tokens,
        emitted=sum(len(result.tokens) for result in done.rows),
        proposed=sum(result.draft_width - 1 + result.dropped for result in done.rows),
        accepted_by_position=tuple(accepted_by_position),
        draft_ms=done.draft_ms,
        verify_ms=done.verify_ms,
        overhead_ms=max(0.0, wall_ms - done.draft_ms - done.verify_ms),
        wall_ms=wall_ms,
        excluded=not follows or disturbed or grant.mode is Mode.PINNED,
    )


def _same_regime(old: Situation, new: Situation) -> bool:
    deep = max(_DEPTH_FLOOR_TOKENS, new.depth_tokens)
    start = max(_DEPTH_FLOOR_TOKENS, old.depth_tokens)
    return (
        (old.width - 1).bit_length() == (new.width - 1).bit_length()
        and deep < 2 * start
        and start < 2 * deep
        and (old.max_draft_width > 1) == (new.max_draft_width > 1)
    )

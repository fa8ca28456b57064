"""Runs the rows that leave speculation to the policy, burst by burst, and measures every step.

A step passes over all AUTO rows, each with its own forward. It runs in the mode and at the width of the
current grant, and its record goes back to the grant's source. A burst ends after the grant's steps, or
early when the batch's width bucket or its depth regime changes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from burstgate_decode.engine.grants import GrantSource
from burstgate_decode.engine.request import Clock
from burstgate_decode.engine.rounds import StepResult
from burstgate_decode.engine.row import Row, StepLabel
from burstgate_decode.engine.stepper import Stepper, count_positions
from burstgate_policy.core.types import Grant, Mode, Situation, StepRecord

# A grant asked for with the last step of a burst is answered while that step computes; this is how long
# the engine looks for it before it decides whether to issue the next plain step early.
_UPCOMING_WAIT_MS = 2.0
# Contexts below this are one depth regime; above, a regime ends where the depth has doubled.
_DEPTH_FLOOR_TOKENS = 512


@dataclass
class _Burst:
    grant: Grant
    situation: Situation
    steps_left: int
    seen: set[int]


class BurstRunner:
    """The burst in progress."""

    def __init__(
        self, grants: GrantSource, stepper: Stepper, on_error: Callable[[Row, Exception], None], clock: Clock
    ) -> None:
        """`on_error` ends a row whose step raised; the others go on."""
        self._grants = grants
        self._stepper = stepper
        self._on_error = on_error
        self._clock = clock
        self._burst: _Burst | None = None

    def step(self, rows: Sequence[Row]) -> None:
        """Runs one step over `rows`, which are decoding and not finished. Not empty."""
        situation = self._situation(rows)
        burst = self._burst
        if burst is None or burst.steps_left == 0 or not _same_regime(burst.situation, situation):
            grant = self._grants.next(situation)
            burst = self._burst = _Burst(grant, situation, max(1, grant.max_steps), set())
        burst.steps_left -= 1
        if burst.steps_left == 0:
            self._grants.prefetch(situation)
        self._grants.report(self._run(burst, rows, situation))

    def idle(self) -> None:
        """Ends the busy period: the burst is over, and its outcome is handed over."""
        if self._burst is not None:
            self._burst = None
            self._grants.idle()

    def _run(self, burst: _Burst, rows: Sequence[Row], situation: Situation) -> StepRecord:
        grant = burst.grant
        account = _Account(self._clock())
        for row in rows:
            if not row.alive:
                continue
            label = self._label(burst, row)
            try:
                account.add(self._stepper.run(row, label, lambda: self._next_is_plain(burst)))
            except Exception as error:  # noqa: BLE001  (whatever one row raises must end that row alone)
                self._on_error(row, error)
        return account.record(grant, situation, self._clock())

    def _label(self, burst: _Burst, row: Row) -> StepLabel:
        grant = burst.grant
        first = id(row) not in burst.seen
        if first:
            burst.seen.add(id(row))
            key = (grant.mode, grant.reason)
            row.stats.bursts[key] = row.stats.bursts.get(key, 0) + 1
            row.stats.explanation = grant.explanation
        return StepLabel(grant.mode, grant.draft_width, grant.reason, grant.explanation if first else "")

    def _next_is_plain(self, burst: _Burst) -> bool:
        if burst.steps_left > 0:
            return not burst.grant.mode.speculates
        upcoming = self._grants.upcoming(_UPCOMING_WAIT_MS)
        return upcoming is not None and not upcoming.mode.speculates

    def _situation(self, rows: Sequence[Row]) -> Situation:
        return Situation(
            width=len(rows),
            depth_tokens=max(len(row.tokens) for row in rows),
            min_emitted_tokens=min(row.emitted for row in rows),
            eligible=True,
            max_draft_width=max(self._stepper.draft_width_of(row) for row in rows),
        )


class _Account:
    """Adds up one step over its rows."""

    def __init__(self, start_ms: float) -> None:
        self._start_ms = start_ms
        self._emitted = 0
        self._proposed = 0
        self._rounds = 0
        self._verify_rows = 0
        self._rows = 0
        self._accepted_by_position: list[int] = []
        self._draft_ms = 0.0
        self._verify_ms = 0.0

    def add(self, result: StepResult) -> None:
        self._rows += 1
        self._rounds += result.proposed > 0
        self._emitted += len(result.tokens)
        self._proposed += result.proposed + result.dropped
        self._verify_rows += result.draft_width if result.proposed else 0
        self._draft_ms += result.draft_ms
        self._verify_ms += result.verify_ms
        count_positions(self._accepted_by_position, result.accepted)

    def record(self, grant: Grant, situation: Situation, now_ms: float) -> StepRecord:
        wall_ms = now_ms - self._start_ms
        # A step in which some row could not follow the grant measures neither mode.
        follows = self._rows > 0 and self._rounds == (self._rows if grant.mode.speculates else 0)
        return StepRecord(
            mode=grant.mode,
            # What the rounds ran, on average, where they stopped before the grant's width.
            draft_width=-(-self._verify_rows // self._rounds) if follows and self._rounds else grant.draft_width,
            width=max(1, self._rows),
            depth_tokens=situation.depth_tokens,
            emitted=self._emitted,
            proposed=self._proposed,
            accepted_by_position=tuple(self._accepted_by_position),
            draft_ms=self._draft_ms,
            verify_ms=self._verify_ms,
            overhead_ms=max(0.0, wall_ms - self._draft_ms - self._verify_ms),
            wall_ms=wall_ms,
            excluded=not follows or grant.mode is Mode.PINNED,
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

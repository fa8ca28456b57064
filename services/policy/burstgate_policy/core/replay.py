"""Feeds a recorded trace to the core and estimates what its decisions would have cost.

The core is asked before each recorded step and then told what its own answer would have brought, so
that it learns from its own history, not from the recorded one. What would have happened is estimated:

* A round keeps the drafts that the record says were kept, as far as it drafts: min(accepted, K-1). Drafts
  beyond the recorded ones are not credited. Where the record holds a plain step the acceptance of the
  latest recorded round stands in; before any round nothing is credited.
* A plain step emits one token a row.
* A step that is decided as it was recorded takes the recorded time. Any other takes what the lane's cost
  table says, times the median factor by which the trace's steps of that draft width (or of any, where
  there are none) missed the table. Without a table it takes the median time of the nearest draft width, or
  the recorded time where the trace has no step of its kind.
* A decision that emits fewer or more tokens than the record takes proportionally more or fewer steps, so
  that recorded and replayed time are for the same tokens.

Traces hold no instants: time is the sum of the recorded steps. The same trace always gives the same
answer.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.costs import CostTable
from burstgate_policy.core.hint import Hint
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.static_gate import static_gate
from burstgate_policy.core.types import (
    BurstOutcome,
    CostCell,
    Grant,
    LaneCapabilities,
    Mode,
    PolicyKey,
    ReplayedStep,
    Situation,
    Snapshot,
    StepRecord,
)


@dataclass(frozen=True, slots=True)
class Replay:
    """What the core would have decided."""

    steps: tuple[ReplayedStep, ...]
    recorded_ms: float
    replayed_ms: float
    tokens: int
    snapshot: Snapshot


def replay(
    *,
    key: PolicyKey,
    capabilities: LaneCapabilities,
    costs: Sequence[CostCell],
    outcomes: Iterable[BurstOutcome],
    config: CoreConfig,
    force: bool | None = None,
    adaptive: bool = True,
    hint: Hint | None = None,
    start_s: float = 0.0,
) -> Replay:
    """Replays the outcomes of one lane, oldest first; an outcome whose number was already seen is left out."""
    policy = MtpPolicy.start(
        key,
        force=force,
        adaptive=adaptive,
        static_default=static_gate(capabilities, costs).enabled,
        hint=hint,
        config=config,
        now_s=start_s,
    )
    lane = Lane(policy, capabilities, costs, config)
    trace = tuple(_steps(outcomes))
    past = _Past(_Costs(costs, trace, cap=key.draft_width))
    steps: list[ReplayedStep] = []
    recorded_ms = replayed_ms = 0.0
    tokens, now_s, grants = 0, start_s, _Grants(lane, config)
    for sequence, recorded in enumerate(trace, start=1):
        past.take(recorded)
        grant = grants.covering(recorded, now_s)
        step = past.as_granted(recorded, grant)
        step_ms = _time_ms(recorded.wall_ms)
        now_s += step_ms / 1000.0
        recorded_ms += step_ms
        replayed_ms += _time_ms(step.wall_ms) * max(recorded.emitted, 1) / max(step.emitted, 1)
        tokens += recorded.emitted
        lane.observe(BurstOutcome("", sequence, (step,), 0), now_s)
        steps.append(ReplayedStep(recorded.mode, recorded.draft_width, grant.mode, grant.draft_width, grant.reason))
    return Replay(tuple(steps), recorded_ms, replayed_ms, tokens, policy.snapshot(now_s))


def _steps(outcomes: Iterable[BurstOutcome]) -> Iterator[StepRecord]:
    last_sequence = 0
    for outcome in outcomes:
        if outcome.sequence > last_sequence:
            last_sequence = outcome.sequence
            yield from outcome.steps


class _Grants:
    """Asks the lane as a decode loop would: when a grant is used up or the batch has changed."""

    def __init__(self, lane: Lane, config: CoreConfig) -> None:
        self._lane = lane
        self._config = config
        self._grant: Grant | None = None
        self._left = 0
        self._situation: tuple[int, bool, int] | None = None

    def covering(self, recorded: StepRecord, now_s: float) -> Grant:
        # A record tells the opening of an answer only by its pin, and an ineligible row only by a plain
        # step that was excluded.
        opening = recorded.mode is Mode.PINNED
        eligible = recorded.mode.speculates or not recorded.excluded
        emitted = 0 if opening else self._config.entry_pin_tokens
        situation = recorded.width, eligible, emitted
        if self._grant is None or self._left < 1 or situation != self._situation:
            self._situation = situation
            asked = Situation(recorded.width, recorded.depth_tokens, emitted, eligible, max_draft_width=0)
            self._grant = self._lane.decide(asked, now_s)
            self._left = self._grant.max_steps
        self._left -= 1
        return self._grant


class _Past:
    """What another decision would have brought, from what the trace shows."""

    def __init__(self, costs: "_Costs") -> None:
        self._costs = costs
        self._latest: StepRecord | None = None

    def take(self, recorded: StepRecord) -> None:
        if recorded.mode.speculates:
            self._latest = recorded

    def as_granted(self, recorded: StepRecord, grant: Grant) -> StepRecord:
        """The step that the grant would have made of the recorded one."""
        width = max(recorded.width, 1)
        draft_width = grant.draft_width if grant.mode.speculates else 1
        as_recorded = recorded.mode.speculates == grant.mode.speculates and (
            draft_width == recorded.draft_width or not grant.mode.speculates
        )
        accepted = self._accepted(recorded, width, draft_width) if grant.mode.speculates else ()
        if as_recorded:
            wall_ms, draft_ms = recorded.wall_ms, recorded.draft_ms
            verify_ms, overhead_ms = recorded.verify_ms, recorded.overhead_ms
            emitted = recorded.emitted
        else:
            wall_ms = verify_ms = self._costs.step_ms(recorded, draft_width)
            draft_ms = overhead_ms = 0.0
            emitted = width + sum(accepted)
        return StepRecord(
            mode=grant.mode,
            draft_width=draft_width,
            width=recorded.width,
            depth_tokens=recorded.depth_tokens,
            emitted=emitted,
            proposed=width * (draft_width - 1),
            accepted_by_position=accepted,
            draft_ms=draft_ms,
            verify_ms=verify_ms,
            overhead_ms=overhead_ms,
            wall_ms=wall_ms,
            excluded=grant.mode is Mode.PINNED or (recorded.excluded and not recorded.mode.speculates),
        )

    def _accepted(self, recorded: StepRecord, width: int, draft_width: int) -> tuple[int, ...]:
        """Rows that would have kept each draft, in a batch of the recorded width."""
        known = recorded if recorded.mode.speculates else self._latest
        if known is None:
            return (0,) * (draft_width - 1)
        known_width = max(known.width, 1)
        kept = [min(rows, known_width) * width // known_width for rows in known.accepted_by_position]
        return tuple((kept + [0] * draft_width)[: draft_width - 1])


class _Costs:
    """The cost table of a lane, corrected by a whole trace."""

    def __init__(self, cells: Iterable[CostCell], trace: Iterable[StepRecord], *, cap: int) -> None:
        self._table = CostTable(cells)
        self._cap = max(cap, 1)
        self._curves: dict[tuple[int, int], tuple[float, ...] | None] = {}
        times_ms: dict[int, list[float]] = {}
        factors: dict[int, list[float]] = {}
        for step in trace:
            step_ms, draft_width = _time_ms(step.wall_ms), max(step.draft_width, 1)
            if step_ms > 0.0:
                times_ms.setdefault(draft_width, []).append(step_ms)
                table_ms = self._table_ms(step, draft_width)
                if table_ms:
                    factors.setdefault(draft_width, []).append(step_ms / table_ms)
        self._times_ms = {draft_width: statistics.median(each) for draft_width, each in times_ms.items()}
        self._factors = {draft_width: statistics.median(each) for draft_width, each in factors.items()}
        every = [factor for each in factors.values() for factor in each]
        self._factor = statistics.median(every) if every else 1.0

    def step_ms(self, recorded: StepRecord, draft_width: int) -> float:
        """What a step of another draft width would have taken in place of a recorded one."""
        table_ms = self._table_ms(recorded, draft_width)
        if table_ms is None:
            return self._nearest_ms(draft_width) or recorded.wall_ms
        return table_ms * self._factors.get(draft_width, self._factor)

    def _nearest_ms(self, draft_width: int) -> float | None:
        """The median time of the recorded draft width next to one; a plain step never stands for a round."""
        alike = [k for k in self._times_ms if (k >= 2) == (draft_width >= 2)]
        return self._times_ms[min(alike, key=lambda k: abs(k - draft_width))] if alike else None

    def _table_ms(self, step: StepRecord, draft_width: int) -> float | None:
        place = step.width, step.depth_tokens.bit_length()
        if place not in self._curves:
            self._curves[place] = self._table.curve(
                width=step.width, depth_tokens=step.depth_tokens, max_draft_width=self._cap
            )
        curve = self._curves[place]
        return None if curve is None else curve[min(draft_width, self._cap)]


def _time_ms(value: float) -> float:
    """A time that no clock gives counts as none."""
    return value if math.isfinite(value) and value > 0.0 else 0.0

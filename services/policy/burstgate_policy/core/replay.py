"""Feeds a recorded trace to the core and estimates what its decisions would have cost.

The core is asked before each recorded step and then told what its own answer would have brought, so
that it learns from its own history, not from the recorded one. What would have happened is estimated:

* A round keeps the drafts that the record says were kept, as far as it drafts: min(accepted, K-1). Drafts
  beyond the recorded ones are not credited. Where the record holds a plain step the acceptance of the
  latest recorded round stands in; before any round nothing is credited.
* A plain step emits one token a row.
* A step that is decided as it was recorded takes the recorded time. Any other takes what the lane's cost
  table says, corrected by every recorded step so far; without a table, the recorded time.
* A decision that emits fewer or more tokens than the record takes proportionally more or fewer steps, so
  that recorded and replayed time are for the same tokens.

Traces hold no instants: time is the sum of the recorded steps. The same trace always gives the same
answer.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.hint import Hint
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.round_costs import RoundCosts
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
    past = _Past(RoundCosts(cap=key.draft_width, costs=costs, config=config.depth))
    steps: list[ReplayedStep] = []
    recorded_ms = replayed_ms = 0.0
    tokens, now_s, grants = 0, start_s, _Grants(lane, config)
    for sequence, recorded in enumerate(_steps(outcomes), start=1):
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
    """What the trace has shown so far: costs, and how much the latest round kept."""

    def __init__(self, costs: RoundCosts) -> None:
        self._costs = costs
        self._latest: StepRecord | None = None

    def take(self, recorded: StepRecord) -> None:
        self._costs.observe(recorded)
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
            step_ms = self._costs.step_ms(width, recorded.depth_tokens, draft_width)
            wall_ms = verify_ms = recorded.wall_ms if step_ms is None else step_ms
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


def _time_ms(value: float) -> float:
    """A time that no clock gives counts as none."""
    return value if math.isfinite(value) and value > 0.0 else 0.0

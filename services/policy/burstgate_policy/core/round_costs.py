"""What a step of each draft width costs in each regime: the cost table, corrected by what really ran.

A correction has two parts. One is shared by all draft widths of a regime, because a machine that gets
busy slows every width; the other belongs to one draft width, because the table may be wrong about it. While only
rounds run they cannot tell one from the other, so that what they make of a plain step is in doubt until plain steps
show it. What makes a round cheaper than the table says is taken to hold for widths that never ran, too. What is
known of a regime is kept while others run; a regime met for the first time starts from what the regime before it
had learned. A step is charged for its whole wall time. Knows nothing of acceptance.
"""

import math
import statistics
from collections.abc import Iterable

from burstgate_policy.core.config import DepthConfig
from burstgate_policy.core.costs import CostTable
from burstgate_policy.core.regime import Regime, regime, typical_depth
from burstgate_policy.core.types import CostCell, StepRecord


class RoundCosts:
    """Costs of one lane by regime and draft width."""

    __slots__ = ("_cap", "_config", "_latest", "_places", "_table")

    def __init__(self, *, cap: int, costs: Iterable[CostCell], config: DepthConfig) -> None:
        self._cap = cap
        self._config = config
        self._table = CostTable(costs)
        self._places: dict[Regime, _Place] = {}
        self._latest: _Place | None = None

    def observe(self, step: StepRecord) -> None:
        """Takes the cost of a step; one that no clock gives, or that emitted nothing, is left out.

        Plain steps count as draft width 1.
        """
        cost_ms = step.draft_ms + step.verify_ms + step.overhead_ms
        if not (math.isfinite(cost_ms) and cost_ms > 0.0 and step.emitted > 0):
            return
        if math.isfinite(step.wall_ms):
            cost_ms = max(cost_ms, step.wall_ms)
        place = self._latest = self._place(regime(step.width, step.depth_tokens))
        place.observe(min(max(step.draft_width, 1), self._cap), cost_ms)

    def estimates_ms(self, at: Regime, max_draft_width: int) -> dict[int, float]:
        """Cost by draft width from 1 on; without a table only of what the costs that ran lie around."""
        return self._place(at).estimates_ms(max_draft_width)

    def plain_ms(self, at: Regime) -> float | None:
        """Cost of a plain step; None while nothing tells it."""
        return self._place(at).estimate_ms(1)

    def step_ms(self, at: Regime, draft_width: int) -> float | None:
        """Cost of a step of a draft width; None while nothing tells it."""
        return self._place(at).estimate_ms(min(max(draft_width, 1), self._cap))

    def plain_moved(self, at: Regime) -> float:
        """Share of the cost of a plain step in a regime that rounds alone have added or taken away."""
        return self._place(at).plain_moved()

    def measured(self, at: Regime, draft_width: int) -> int:
        """Steps of a draft width that were measured in the regime."""
        return self._place(at).seen[draft_width]

    def tried(self, at: Regime, draft_width: int) -> int:
        """Steps of a draft width that ran in the regime or in those that it took its costs from."""
        return self._place(at).tried[draft_width]

    def _place(self, at: Regime) -> "_Place":
        place = self._places.get(at)
        if place is None:
            width, depth = 1 << at[0], typical_depth(at[1])
            curve = self._table.curve(width=width, depth_tokens=depth, max_draft_width=self._cap)
            place = self._places[at] = _Place(self._cap, curve, self._latest, self._config)
        return place


class _Place:
    """What one regime costs. Corrections are logarithms of factors on the table, or of milliseconds without one."""

    __slots__ = (
        "_clip",
        "_config",
        "_curve",
        "_doubt",
        "_ran_at",
        "_steps",
        "_votes",
        "own",
        "seen",
        "shared",
        "tried",
    )

    def __init__(self, cap: int, curve: tuple[float, ...] | None, like: "_Place | None", config: DepthConfig) -> None:
        self._config = config
        self._clip = math.log(config.cost_clip)
        self._curve = curve
        self.shared: float = like.shared if like else 0.0
        self._doubt = 0.0
        """What rounds have added to the shared part, less what plain steps have shown of it since."""
        self.own: list[float | None] = list(like.own) if like else [0.0 if curve else None] * (cap + 1)
        self.tried: list[int] = list(like.tried) if like else [0] * (cap + 1)
        """Steps of each draft width here, and in the regimes that this one took its costs from."""
        self.seen = [0] * (cap + 1)
        self._steps = 0
        self._ran_at = [0] * (cap + 1)
        self._votes: dict[int, list[float]] = {}

    def observe(self, draft_width: int, cost_ms: float) -> None:
        config = self._config
        residual = math.log(cost_ms / self._base(draft_width)) - self.shared
        expected = self._own_correction(draft_width)
        if draft_width > 1 and self._steps - self._ran_at[draft_width] > config.stale_steps:
            self._votes.pop(draft_width, None)
        votes = self._votes.setdefault(draft_width, [] if expected is None else [expected])
        if len(votes) <= config.first_steps:
            # The first step of a kind may compile or allocate: what was expected and the first few costs vote.
            votes.append(residual)
            level = min(votes) if expected is None else statistics.median_low(votes)
            if draft_width == 1 and expected is not None and sum(self.seen) == self.seen[1]:
                # Only plain steps ran here: what they show is the machine's level, which rounds share.
                self.shared += level - expected
                votes[:] = [vote - (level - expected) for vote in votes]
                level = expected
            self.own[draft_width] = level
            if draft_width == 1:
                self._doubt = 0.0
        else:
            expected = expected or 0.0
            surprise = min(max(residual - expected, -self._clip), self._clip)
            shared = config.shared_cost_weight * surprise
            own = config.own_cost_weight * surprise
            if draft_width > 1:
                self._doubt += shared
            elif self._doubt:
                # In doubt, a plain step tells of its own cost alone: rounds would only move the shared part back.
                if self.plain_moved() > config.plain_moved:
                    shared, own = 0.0, shared + own
                self._doubt *= 1.0 - config.shared_cost_weight - config.own_cost_weight
            self.shared += shared
            self.own[draft_width] = expected + own
        self._steps += 1
        self._ran_at[draft_width] = self._steps
        self.seen[draft_width] += 1
        self.tried[draft_width] += 1

    def plain_moved(self) -> float:
        return abs(math.expm1(self._doubt))

    def estimate_ms(self, draft_width: int) -> float | None:
        correction = self._correction(draft_width)
        return None if correction is None else self._base(draft_width) * math.exp(self.shared + correction)

    def estimates_ms(self, max_draft_width: int) -> dict[int, float]:
        known = {k: ms for k in range(1, len(self.own)) if (ms := self.estimate_ms(k)) is not None}
        if self._curve is not None:
            return {k: known[k] for k in range(1, min(max_draft_width, len(self.own) - 1) + 1)}
        return _spread(known, max_draft_width)

    def _base(self, draft_width: int) -> float:
        return self._curve[draft_width] if self._curve is not None else 1.0

    def _correction(self, draft_width: int) -> float | None:
        """A width's own correction, or what the nearest one that ran says of a width that never did.

        That one is as much cheaper than the table: where all rounds are, it would otherwise be the only one at its full
        price, and never run.
        """
        if draft_width > 1 and self._curve is not None and not self.tried[draft_width]:
            ran = [width for width in range(2, len(self.tried)) if self.tried[width]]
            nearest = min(ran, key=lambda width: (abs(width - draft_width), width), default=draft_width)
            return min(0.0, self._own_correction(nearest) or 0.0)
        return self._own_correction(draft_width)

    def _own_correction(self, draft_width: int) -> float | None:
        """What is held against a width that does not run fades, so that it is tried again."""
        own = self.own[draft_width]
        if not own or draft_width == 1 or self._curve is None:
            return own
        return own * self._config.own_cost_fade ** (self._steps - self._ran_at[draft_width])


def _spread(known: dict[int, float], max_draft_width: int) -> dict[int, float]:
    """Costs of all widths by straight lines through the known ones; flat beyond them, which invites a try.

    Empty until a round was seen: a plain step alone says nothing of rounds.
    """
    if not known or max(known) < 2:
        return {k: ms for k, ms in known.items() if k <= max_draft_width}
    places = sorted(known)
    spread: dict[int, float] = {}
    for k in range(places[0], max_draft_width + 1):
        below = max((p for p in places if p <= k), default=places[0])
        above = min((p for p in places if p >= k), default=below)
        share = 0.0 if above == below else (k - below) / (above - below)
        spread[k] = known[below] + share * (known[above] - known[below])
    return spread

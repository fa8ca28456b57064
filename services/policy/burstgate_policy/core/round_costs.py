"""What a round of each draft width costs on a lane: its cost table, corrected by what really ran.

A correction has two parts. One is shared by all draft widths of a batch width, because a machine that
gets busy slows every width; the other belongs to one draft width, because the table may be wrong about
it. What belongs to a width that does not run fades, so that an old surprise is looked at again.
Knows nothing of acceptance.
"""

import math
from collections.abc import Iterable

from burstgate_policy.core.config import DepthConfig
from burstgate_policy.core.costs import CostTable
from burstgate_policy.core.types import CostCell, StepRecord


class RoundCosts:
    """Costs of one lane by draft width."""

    __slots__ = ("_buckets", "_cap", "_clip", "_config", "_places", "_table")

    def __init__(self, *, cap: int, costs: Iterable[CostCell], config: DepthConfig) -> None:
        self._cap = cap
        self._config = config
        self._clip = math.log(config.cost_clip)
        self._table = CostTable(costs)
        self._places: dict[tuple[int, int], tuple[_Bucket, tuple[float, ...] | None]] = {}
        self._buckets: dict[int, _Bucket] = {}

    def observe(self, step: StepRecord) -> None:
        """Takes the cost of a step; one that no clock gives is left out.

        Plain steps count as draft width 1: they tell a slow machine from a wrong table.
        """
        cost_ms = step.draft_ms + step.verify_ms + step.overhead_ms
        if not (math.isfinite(cost_ms) and cost_ms > 0.0):
            return
        draft_width = step.draft_width
        if not 1 <= draft_width <= self._cap:
            draft_width = min(max(draft_width, 1), self._cap)
        bucket, curve = self._place(step.width, step.depth_tokens)
        expected_ms = curve[draft_width] if curve else bucket.first(draft_width, cost_ms, self._config)
        bucket.correct(draft_width, math.log(cost_ms / expected_ms), self._clip, self._config)

    def estimates_ms(self, width: int, depth_tokens: int, max_draft_width: int) -> dict[int, float]:
        """Cost of a round by draft width from 2 on; without a table only of the widths that ran."""
        bucket, curve = self._place(width, depth_tokens)
        own = bucket.own
        if curve is None:
            known = bucket.first_ms
            widths = [k for k in range(2, max_draft_width + 1) if k in known]
            return {k: known[k] * math.exp(bucket.shared + own[k]) for k in widths}
        shared = math.exp(bucket.shared)
        return {k: curve[k] * shared * (math.exp(own[k]) if own[k] else 1.0) for k in range(2, max_draft_width + 1)}

    def _place(self, width: int, depth_tokens: int) -> tuple["_Bucket", tuple[float, ...] | None]:
        """The corrections of a batch width, and what the table says at a depth if there is one."""
        key = width, depth_tokens.bit_length()
        place = self._places.get(key)
        if place is None:
            bucket = self._buckets.setdefault((max(width, 1) - 1).bit_length(), _Bucket(self._cap))
            depth = (3 << key[1]) >> 2  # the middle of the octave: one curve serves all of it
            curve = self._table.curve(width=width, depth_tokens=depth, max_draft_width=self._cap)
            place = self._places[key] = bucket, curve
        return place


class _Bucket:
    """Corrections of one power-of-two bucket of batch widths, as logarithms of factors."""

    __slots__ = ("_seen", "first_ms", "own", "shared")

    def __init__(self, cap: int) -> None:
        self.shared = 0.0
        self.own = [0.0] * (cap + 1)
        self.first_ms: dict[int, float] = {}
        self._seen = [0] * (cap + 1)

    def first(self, draft_width: int, cost_ms: float, config: DepthConfig) -> float:
        """What stands for a missing table: the least of a width's first rounds, which may compile."""
        if self._seen[draft_width] < config.first_rounds:
            self._seen[draft_width] += 1
            # The shared correction is applied to every estimate, so it must not be in here as well.
            cost_ms = max(cost_ms * math.exp(-self.shared), math.ulp(0.0))
            self.first_ms[draft_width] = min(self.first_ms.get(draft_width, cost_ms), cost_ms)
        return self.first_ms[draft_width]

    def correct(self, draft_width: int, log_ratio: float, clip: float, config: DepthConfig) -> None:
        surprise = log_ratio - self.shared - self.own[draft_width]
        if not -clip <= surprise <= clip:
            surprise = min(max(surprise, -clip), clip)
        fade = config.own_cost_fade
        own = self.own = [correction * fade for correction in self.own]
        self.shared += config.shared_cost_weight * surprise
        own[draft_width] += config.own_cost_weight * surprise

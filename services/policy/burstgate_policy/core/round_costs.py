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

    __slots__ = ("_buckets", "_cap", "_clip", "_config", "_curves", "_table")

    def __init__(self, *, cap: int, costs: Iterable[CostCell], config: DepthConfig) -> None:
        self._cap = cap
        self._config = config
        self._clip = math.log(config.cost_clip)
        self._table = CostTable(costs)
        self._curves: dict[tuple[int, int], tuple[float, ...] | None] = {}
        self._buckets: dict[int, _Bucket] = {}

    def observe(self, step: StepRecord) -> None:
        """Takes the cost of a step; one that no clock gives is left out.

        Plain steps count as draft width 1: they tell a slow machine from a wrong table.
        """
        cost_ms = step.draft_ms + step.verify_ms + step.overhead_ms
        if not (math.isfinite(cost_ms) and cost_ms > 0.0):
            return
        draft_width = min(max(step.draft_width, 1), self._cap)
        bucket = self._bucket(step.width)
        curve = self._curve(step.width, step.depth_tokens)
        expected_ms = curve[draft_width] if curve else bucket.first(draft_width, cost_ms, self._config)
        bucket.correct(draft_width, math.log(cost_ms / expected_ms), self._clip, self._config)

    def estimates_ms(self, width: int, depth_tokens: int, max_draft_width: int) -> dict[int, float]:
        """Cost of a round by draft width from 2 on; without a table only of the widths that ran."""
        curve, bucket = self._curve(width, depth_tokens), self._bucket(width)
        own = bucket.own
        if curve is None:
            known = bucket.first_ms
            widths = [k for k in range(2, max_draft_width + 1) if k in known]
            return {k: known[k] * math.exp(bucket.shared + own[k]) for k in widths}
        shared = math.exp(bucket.shared)
        return {k: curve[k] * shared * (math.exp(own[k]) if own[k] else 1.0) for k in range(2, max_draft_width + 1)}

    def step_ms(self, width: int, depth_tokens: int, draft_width: int) -> float | None:
        """Cost of one step, plain (draft width 1) or a round; None without a table for a width that never ran."""
        draft_width = min(max(draft_width, 1), self._cap)
        curve, bucket = self._curve(width, depth_tokens), self._bucket(width)
        base_ms = bucket.first_ms.get(draft_width) if curve is None else curve[draft_width]
        return None if base_ms is None else base_ms * math.exp(bucket.shared + bucket.own[draft_width])

    def _bucket(self, width: int) -> "_Bucket":
        place = (max(width, 1) - 1).bit_length()
        bucket = self._buckets.get(place)
        if bucket is None:
            bucket = self._buckets[place] = _Bucket(self._cap)
        return bucket

    def _curve(self, width: int, depth_tokens: int) -> tuple[float, ...] | None:
        if not self._table:
            return None
        octave = max(depth_tokens, 0).bit_length()
        key = (width, octave)
        if key not in self._curves:
            depth = (3 << octave) >> 2  # the middle of the octave: one curve serves all of it
            self._curves[key] = self._table.curve(width=width, depth_tokens=depth, max_draft_width=self._cap)
        return self._curves[key]


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
        own = self.own
        surprise = min(max(log_ratio - self.shared - own[draft_width], -clip), clip)
        for other in range(1, len(own)):
            own[other] *= config.own_cost_fade
        self.shared += config.shared_cost_weight * surprise
        own[draft_width] += config.own_cost_weight * surprise

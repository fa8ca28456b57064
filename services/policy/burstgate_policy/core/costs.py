"""Reads a lane's cost table: what one round of a width costs before any round was run.

The table was measured at a few widths, verify widths and depths. Between verify widths it is read
by straight lines; the nearest batch width and depth stand for theirs. Cells that no clock can have
given are left out. Knows nothing of acceptance and learns nothing.
"""

import itertools
import math
from collections.abc import Iterable

from burstgate_policy.core.types import CostCell


class CostTable:
    """The usable cells of a cost table."""

    __slots__ = ("_rows",)

    def __init__(self, cells: Iterable[CostCell]) -> None:
        rows: dict[tuple[int, int], dict[int, float]] = {}
        for cell in cells:
            cost_ms = cell.verify_ms + cell.draft_ms
            if math.isfinite(cost_ms) and cell.verify_ms > 0.0 and cell.draft_ms >= 0.0 and cell.draft_width >= 1:
                rows.setdefault((cell.width, cell.depth_tokens), {})[cell.draft_width] = cost_ms
        self._rows = {place: tuple(sorted(costs.items())) for place, costs in rows.items()}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def curve(self, *, width: int, depth_tokens: int, max_draft_width: int) -> tuple[float, ...] | None:
        """Verify plus draft time by verify width: element K is a round at K, element 1 a plain step.

        Element 0 only makes the index speak. None without cells.
        """
        if not self._rows:
            return None
        place = min(self._rows, key=lambda at: (_distance(at[0], width), _distance(at[1], depth_tokens), at))
        costs = self._rows[place]
        return (0.0, *(_interpolate(costs, draft_width) for draft_width in range(1, max_draft_width + 1)))

    def smallest(self) -> dict[int, float]:
        """Costs by verify width at the smallest batch width and depth; empty without cells."""
        return dict(self._rows[min(self._rows)]) if self._rows else {}


def _distance(a: int, b: int) -> float:
    """Costs move with the order of magnitude, so 8 is nearer to 16 than to 1."""
    return abs(math.log2(max(a, 1)) - math.log2(max(b, 1)))


def _interpolate(costs: tuple[tuple[int, float], ...], draft_width: int) -> float:
    if len(costs) == 1:
        return costs[0][1]
    below, above = costs[0], costs[1]
    for left, right in itertools.pairwise(costs):
        below, above = left, right
        if draft_width <= right[0]:
            break
    slope = (above[1] - below[1]) / (above[0] - below[0])
    # Beyond the ends a falling line would promise free or negative time.
    cost = below[1] + slope * (draft_width - below[0])
    return max(cost, min(below[1], above[1])) if not below[0] <= draft_width <= above[0] else cost

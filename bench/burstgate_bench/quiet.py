"""What an arm would deliver on a quiet machine, worked out from a run on a busy one. Pure.

Which rounds an arm ran and what they delivered does not depend on the machine's load; only their times do. So each step
is charged what steps of its draft width cost while nothing else ran: the lower quartile of their times. The quartile of
an arm's own steps is taken, so that what the arm itself adds to a step is in it.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from burstgate_bench.answers import Step

# Fewer times than this have no quartile worth the name.
_ENOUGH = 8


def quiet_costs_ms(own: Iterable[Step], others: Iterable[Step]) -> dict[int, float]:
    """Cost of a step by draft width, from an arm's own steps where there are enough, else from all."""
    own = list(own)
    mine, everybody = _times_ms(own), _times_ms([*own, *others])
    return {width: _lower_quartile(mine[width] if len(mine[width]) >= _ENOUGH else everybody[width]) for width in mine}


def quiet_rate(steps: Sequence[Step], costs_ms: Mapping[int, float]) -> float:
    """Tokens per second of some steps at these costs."""
    return sum(step.tokens for step in steps) * 1e3 / sum(costs_ms[step.draft_width] for step in steps)


def _times_ms(steps: Iterable[Step]) -> dict[int, list[float]]:
    times: dict[int, list[float]] = {}
    for step in steps:
        times.setdefault(step.draft_width, []).append(step.ms)
    return times


def _lower_quartile(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=4, method="inclusive")[0] if len(values) > 1 else values[0]

"""Chooses the draft width of a burst: the one that promises most tokens per millisecond.

Owns the choice, its cautious trials of neighbours, and what the best width promises over a plain step;
what is accepted and what steps cost are learned next door. A promise is arithmetic, not a measurement:
whether speculation really pays is for the gate to find out.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from burstgate_policy.core.acceptance import Acceptance
from burstgate_policy.core.config import DepthConfig
from burstgate_policy.core.regime import Regime, regime
from burstgate_policy.core.round_costs import RoundCosts
from burstgate_policy.core.types import CostCell, StepRecord


@dataclass(frozen=True, slots=True)
class DepthChoice:
    """A draft width and what it promises."""

    draft_width: int
    expected_tokens: float
    """For each row, from one round."""
    round_ms: float | None
    """None before any cost of this width is known."""
    trial: bool = False
    """Whether the width is tried to learn about it although another promises more."""


class DepthController:
    """The draft width of one lane."""

    __slots__ = ("_acceptance", "_best", "_cap", "_config", "_costs", "_since_trial", "_trial_interval", "_upwards")

    def __init__(self, *, cap: int, costs: Iterable[CostCell], config: DepthConfig) -> None:
        self._cap = max(cap, 2)
        self._config = config
        self._acceptance = Acceptance(self._cap - 1, config)
        self._costs = RoundCosts(cap=self._cap, costs=costs, config=config)
        self._best = 0
        self._since_trial = 0
        self._trial_interval = config.explore_every
        self._upwards = False

    def observe(self, step: StepRecord) -> None:
        """Takes a step: what it cost and, if it was a round, what was accepted."""
        if step.mode.speculates:
            self._acceptance.observe(step)
        self._costs.observe(step)

    def pick(self, *, width: int, depth_tokens: int, max_draft_width: int, trials: bool = True) -> DepthChoice:
        """The width for the next burst, between 2 and the least of both caps."""
        cap = max(min(max_draft_width, self._cap), 2)
        at = regime(width, depth_tokens)
        expected = self._expected(width, cap)
        costs_ms = self._costs.estimates_ms(at, cap)
        pays = {k: expected[k - 1] / cost_ms for k, cost_ms in costs_ms.items() if k >= 2}
        best = self._best_of(pays, cap)
        if best != self._best:
            self._best = best
            self._trial_interval = self._config.explore_every
        chosen = self._trial(at, best, pays, cap) if trials else best
        return DepthChoice(chosen, expected[chosen - 1], costs_ms.get(chosen), trial=chosen != best)

    def gains(self, at: Regime, max_draft_width: int) -> dict[int, float]:
        """Plain steps that a round of each width from 2 on is worth, over those that it costs.

        Empty while the costs of a plain step or of rounds are not known.
        """
        cap = max(min(max_draft_width, self._cap), 2)
        costs_ms = self._costs.estimates_ms(at, cap)
        plain_ms = costs_ms.get(1)
        if plain_ms is None:
            return {}
        expected = self._expected(1 << at[0], cap)
        return {k: expected[k - 1] * plain_ms / costs_ms[k] for k in range(2, cap + 1) if k in costs_ms}

    def plain_ms(self, at: Regime) -> float | None:
        """What a plain step costs in a regime; None while nothing tells it."""
        return self._costs.plain_ms(at)

    def plain_in_doubt(self, at: Regime, lead: float) -> bool:
        """Whether rounds alone have moved that so far that a lead, as a share, hangs on it."""
        return self._costs.plain_moved(at) > max(self._config.plain_moved, lead)

    def step_ms(self, at: Regime, draft_width: int) -> float | None:
        """What a step of a draft width costs in a regime; None while nothing tells it."""
        return self._costs.step_ms(at, draft_width)

    def measured(self, at: Regime, draft_width: int) -> int:
        """Steps of a draft width that were measured in a regime; 1 is plain."""
        return self._costs.measured(at, draft_width)

    def _expected(self, width: int, cap: int) -> list[float]:
        """Tokens of a round by draft width: of the mean row, or of the slowest one if that is the objective."""
        rows = max(width, 1) if self._config.objective == "latency" else 1
        return self._acceptance.expected_tokens(cap, slowest_of=rows)

    def _best_of(self, pays: dict[int, float], cap: int) -> int:
        if not pays:
            return min(self._config.blind_width, cap)
        best = max(pays, key=pays.__getitem__)
        present = self._best
        if present in pays and pays[best] <= pays[present] * (1.0 + self._config.keep_margin):
            return present
        return best

    def _trial(self, at: Regime, best: int, pays: dict[int, float], cap: int) -> int:
        """Now and then another width: the most promising one that never ran here, else a neighbour in turn."""
        config = self._config
        self._since_trial += 1
        unknown = [k for k in range(2, cap + 1) if k != best and self._costs.tried(at, k) < config.first_steps]
        worth_it = [k for k in unknown if pays.get(k, math.inf) * config.trial_hope >= pays.get(best, 0.0)]
        if self._since_trial < (config.explore_first if worth_it else self._trial_interval):
            return best
        self._since_trial = 0
        if worth_it:
            return max(worth_it, key=lambda k: pays.get(k, 0.0))
        self._trial_interval = min(self._trial_interval * 2, config.explore_limit)
        self._upwards = not self._upwards
        return best + 1 if best < cap and (self._upwards or best == 2) else max(best - 1, 2)

"""Chooses the draft width of a burst: the one that promises most tokens per millisecond.

Owns the choice and its cautious trials of neighbours; what is accepted and what rounds cost are
learned next door. Never judges whether speculation pays at all: whole-step throughput does that.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from burstgate_policy.core.acceptance import Acceptance
from burstgate_policy.core.config import DepthConfig
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

    __slots__ = ("_acceptance", "_best", "_cap", "_config", "_costs", "_since_trial", "_trial_interval")

    def __init__(self, *, cap: int, costs: Iterable[CostCell], config: DepthConfig) -> None:
        self._cap = max(cap, 2)
        self._config = config
        self._acceptance = Acceptance(self._cap - 1, config)
        self._costs = RoundCosts(cap=self._cap, costs=costs, config=config)
        self._best = 0
        self._since_trial = 0
        self._trial_interval = config.explore_every

    def observe(self, step: StepRecord) -> None:
        """Takes a step: what it cost and, if it was a round, what was accepted."""
        if step.mode.speculates:
            self._acceptance.observe(step)
        self._costs.observe(step)

    def pick(self, *, width: int, depth_tokens: int, max_draft_width: int) -> DepthChoice:
        """The width for the next burst, between 2 and the least of both caps."""
        cap = max(min(max_draft_width, self._cap), 2)
        expected = self._acceptance.expected_tokens(cap)
        costs_ms = self._costs.estimates_ms(width, depth_tokens, cap)
        best = self._argmax(expected, costs_ms)
        if best != self._best:
            self._best = best
            self._trial_interval = self._config.explore_every
        chosen = self._trial(best, cap)
        return DepthChoice(chosen, expected[chosen - 1], costs_ms.get(chosen), trial=chosen != best)

    def _argmax(self, expected: list[float], costs_ms: dict[int, float]) -> int:
        if not costs_ms:
            return min(self._config.blind_width, len(expected))
        pays = {draft_width: expected[draft_width - 1] / cost_ms for draft_width, cost_ms in costs_ms.items()}
        best = max(pays, key=pays.__getitem__)
        present = self._best
        if present in pays and pays[best] <= pays[present] * (1.0 + self._config.keep_margin):
            return present
        return best

    def _trial(self, best: int, cap: int) -> int:
        self._since_trial += 1
        if self._since_trial < self._trial_interval:
            return best
        self._since_trial = 0
        self._trial_interval = min(self._trial_interval * 2, self._config.explore_limit)
        return best + 1 if best < cap else max(best - 1, 2)

"""Tells what deciding has cost: the time that ran against the time of the best single mode in hindsight.

A mode is plain decoding or one draft width for everything. What a mode that did not run would have taken for
the same tokens is estimated:

* of a round, plain decoding would have taken as many plain steps of the regime as the round gave each row
  tokens, and another draft width the round's own time times the ratio of what both promise;
* of a plain step, a draft width would have taken its time over what that width promises;
* a draft width that never ran in the regime would not have been faster than what ran: a table is no evidence.

Sums over a lane's life are kept beside sums that forget, so that a lane that learned late is not held to its
first minutes for ever. Knows no modes' reasons and decides nothing.
"""

import math
from dataclasses import dataclass

from burstgate_policy.core.depth import DepthController
from burstgate_policy.core.regime import Regime, regime
from burstgate_policy.core.types import Mode, StepRecord

# Steps of one kind are priced together: pricing each would cost as much as deciding.
_BLOCK_STEPS = 16


@dataclass(frozen=True, slots=True)
class Regret:
    """Time that ran beside that of the best single mode, in milliseconds."""

    actual_ms: float = 0.0
    best_ms: float = 0.0
    best_draft_width: int = 0
    """1 for plain decoding; 0 before anything could be priced."""
    recent_share: float = 0.0
    """Share of the recent time that was lost; negative while deciding has beaten every single mode."""
    recent_best: int = 0
    """As best_draft_width, of the recent time."""
    holding: bool = False
    """Whether so much was lost that nothing is explored now."""

    @property
    def lost_ms(self) -> float:
        """Time lost against the best single mode; negative if deciding was faster than every one."""
        return self.actual_ms - self.best_ms

    @property
    def share(self) -> float:
        """Time lost over time that ran."""
        return self.lost_ms / self.actual_ms if self.actual_ms else 0.0


class RegretMeter:
    """The account of one lane."""

    __slots__ = ("_block", "_block_key", "_cap", "_depth", "_ever", "_memory_steps", "_recent", "_steps")

    def __init__(self, depth: DepthController, *, cap: int, memory_steps: int) -> None:
        self._depth = depth
        self._cap = cap
        self._memory_steps = memory_steps
        self._ever = [0.0] * (cap + 1)
        """Element 0 is the time that ran, element K that of draft width K alone."""
        self._recent = [0.0] * (cap + 1)
        self._steps = 0
        self._block_key: tuple[Regime, int] | None = None
        self._block = [0.0, 0.0, 0.0]
        """Steps, tokens of a row and time of the block under way."""

    @property
    def steps(self) -> int:
        """Steps that were priced."""
        return self._steps

    def observe(self, step: StepRecord) -> bool:
        """Takes a step; says whether a block was priced, so that the account has changed."""
        if step.mode is Mode.UNSPECIFIED or not (math.isfinite(step.wall_ms) and step.wall_ms > 0.0):
            return False
        draft_width = min(max(step.draft_width, 2), self._cap) if step.mode.speculates else 1
        key = regime(step.width, step.depth_tokens), draft_width
        changed = False
        if key != self._block_key:
            changed = self._price()
            self._block_key = key
        block = self._block
        block[0] += 1
        block[1] += step.emitted / max(step.width, 1)
        block[2] += step.wall_ms
        return self._price() or changed if block[0] >= _BLOCK_STEPS else changed

    def view(self, *, holding: bool = False) -> Regret:
        """The account so far."""
        best, recent = self._best(self._ever), self._best(self._recent)
        now_ms = self._recent[0]
        return Regret(
            actual_ms=self._ever[0],
            best_ms=self._ever[best] if best else 0.0,
            best_draft_width=best,
            recent_share=1.0 - self._recent[recent] / now_ms if recent and now_ms > 0.0 else 0.0,
            recent_best=recent,
            holding=holding,
        )

    def _best(self, sums: list[float]) -> int:
        return min(range(1, self._cap + 1), key=sums.__getitem__) if sums[0] > 0.0 else 0

    def _price(self) -> bool:
        steps, tokens, actual_ms = self._block
        self._block = [0.0, 0.0, 0.0]
        if self._block_key is None or not steps:
            return False
        at, ran = self._block_key
        gains = self._depth.gains(at, self._cap)
        plain_ms = self._depth.plain_ms(at)
        if plain_ms is None or (ran > 1 and ran not in gains):
            return False
        own = gains[ran] if ran > 1 else 1.0
        times = [actual_ms, tokens * plain_ms if ran > 1 else actual_ms]
        for k in range(2, self._cap + 1):
            estimate_ms = actual_ms * own / gains[k] if k in gains else actual_ms
            times.append(estimate_ms if self._depth.measured(at, k) else max(estimate_ms, actual_ms))
        fade = (1.0 - 1.0 / self._memory_steps) ** steps
        self._ever = [sum_ms + each for sum_ms, each in zip(self._ever, times, strict=True)]
        self._recent = [sum_ms * fade + each for sum_ms, each in zip(self._recent, times, strict=True)]
        self._steps += int(steps)
        return True

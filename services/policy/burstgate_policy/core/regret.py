"""Tells what deciding has cost: the time that ran against the time of the best single mode in hindsight.

A mode is plain decoding or one draft width for everything. What a mode that did not run would have taken for
the same tokens is estimated:

* of a round, plain decoding would have taken as many plain steps of the regime as the round gave each row
  tokens, and another draft width the round's own time times the ratio of what both promise;
* of a plain step, a draft width would have taken its time over what that width promises;
* a draft width that never ran in the regime would not have been faster than what ran: a table is no evidence.

A step counts for at most so many times its expected cost: a stall hits whatever runs, and what would not have run
is priced without any. Sums over a lane's life are kept beside sums that forget, so that a lane that learned late is not held to its
first minutes for ever. Knows no modes' reasons and decides nothing.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from burstgate_policy.core.depth import DepthController
from burstgate_policy.core.regime import Regime, regime
from burstgate_policy.core.types import Mode, StepRecord

# Steps of one kind are priced together: pricing each would cost as much as deciding.
_BLOCK_STEPS = 16


@dataclass(frozen=True, slots=True)
class Regret:
    """Time that ran beside that of each single mode, in milliseconds.

    In both tuples element 0 is the time that ran and element K what draft width K alone would have taken for
    the same tokens; 1 is plain decoding.
    """

    times_ms: tuple[float, ...] = (0.0,)
    """Since the beginning."""
    recent_ms: tuple[float, ...] = (0.0,)
    """Of sums that forget."""
    holding: bool = False
    """Whether so much was lost that nothing is explored now."""

    @property
    def actual_ms(self) -> float:
        """Time that ran, of the steps that could be priced."""
        return self.times_ms[0]

    @property
    def best_draft_width(self) -> int:
        """The best single mode: 1 for plain decoding; 0 before anything could be priced."""
        return _best(self.times_ms)

    @property
    def best_ms(self) -> float:
        """What the best single mode would have taken."""
        return self.times_ms[self.best_draft_width]

    @property
    def lost_ms(self) -> float:
        """Time lost against the best single mode; negative if deciding was faster than every one."""
        return self.actual_ms - self.best_ms

    @property
    def share(self) -> float:
        """Time lost over time that ran."""
        return _share(self.times_ms)

    @property
    def recent_best(self) -> int:
        """As best_draft_width, of the recent time."""
        return _best(self.recent_ms)

    @property
    def recent_share(self) -> float:
        """Share of the recent time that was lost; negative while deciding has beaten every single mode."""
        return _share(self.recent_ms)

    @property
    def recent_lead(self) -> float:
        """Share of the recent time by which the best draft width would have beaten plain; negative if plain wins."""
        if len(self.recent_ms) < 3 or not self.recent_ms[0] > 0.0:
            return 0.0
        return (self.recent_ms[1] - min(self.recent_ms[2:])) / self.recent_ms[0]

    def past(self) -> "Regret":
        """The account of a lane that is gone: it holds nothing, and nothing of it is recent."""
        return Regret(self.times_ms, (0.0,) * len(self.recent_ms))


def together(accounts: Iterable[Regret]) -> Regret:
    """One account for several lanes of a pairing: against the one mode that would have been best for all of them.

    It holds if one of them does. Raises ValueError for lanes that differ in their widest draft width.
    """
    priced = [account for account in accounts if account.actual_ms > 0.0]
    if not priced:
        return Regret()
    return Regret(
        times_ms=tuple(map(sum, zip(*(account.times_ms for account in priced), strict=True))),
        recent_ms=tuple(map(sum, zip(*(account.recent_ms for account in priced), strict=True))),
        holding=any(account.holding for account in priced),
    )


class RegretMeter:
    """The account of one lane."""

    __slots__ = (
        "_block",
        "_block_key",
        "_cap",
        "_depth",
        "_ever",
        "_memory_steps",
        "_recent",
        "_stall_factor",
        "_steps",
    )

    def __init__(self, depth: DepthController, *, cap: int, memory_steps: int, stall_factor: float) -> None:
        self._depth = depth
        self._cap = cap
        self._memory_steps = memory_steps
        self._stall_factor = stall_factor
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
        expected_ms = self._depth.step_ms(key[0], draft_width) or math.inf
        block[2] += min(step.wall_ms, self._stall_factor * expected_ms)
        return self._price() or changed if block[0] >= _BLOCK_STEPS else changed

    def view(self) -> Regret:
        """The account so far, less the block under way."""
        return Regret(tuple(self._ever), tuple(self._recent))

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


def _best(sums: tuple[float, ...]) -> int:
    return min(range(1, len(sums)), key=sums.__getitem__) if sums[0] > 0.0 else 0


def _share(sums: tuple[float, ...]) -> float:
    return 1.0 - sums[_best(sums)] / sums[0] if sums[0] > 0.0 else 0.0

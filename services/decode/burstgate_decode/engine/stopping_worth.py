"""Judges whether deciding within rounds pays on this machine, and rests it while it does not.

To decide, each draft's probability must be read before the next one is issued, so building the verify no longer
overlaps with drafting. What that costs is measured: now and then a round runs whole at the width that the last one
ended with, and both kinds are compared with what a round of that width is expected to cost. What it gains is
counted: each watched round also tells what rounds of every fixed width would have kept. While the best fixed width
would deliver clearly more, rounds run whole, and deciding is tried again later. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from burstgate_decode.engine.forgetting import ForgettingMean


@dataclass(frozen=True)
class WorthConfig:
    """How cautiously the rule is judged."""

    first_wholes: int = 6
    """Whole rounds run early, so that the first judgement has a comparison to rest on."""
    whole_every_first: int = 7
    """Watched rounds between those."""
    whole_every: int = 31
    """Watched rounds between later ones: what they lose is a few per cent of one round in so many."""
    cost_decay: float = 0.9
    """Memory of about 10 rounds of either kind: their costs scatter by about 5 %."""
    cost_prior: float = 2.0
    """Rounds that the expectation "deciding costs nothing" is worth."""
    cost_clip: float = 1.3
    """A round counts for at most this many times what was expected, either way: one stall must not decide."""
    decay: float = 0.99
    """Memory of about 100 rounds for what was delivered: in fewer some fixed width looks best by luck."""
    judged_after: int = 96
    """Watched rounds before the first judgement."""
    margin: float = 0.02
    """How much more the best fixed width must deliver. Picking the best of several flatters it by about as much."""
    first_rest: int = 256
    """Rounds that run whole after a judgement against the rule; doubles with each."""
    longest_rest: int = 4096


class StoppingWorth:
    """The running comparison of one pairing."""

    def __init__(self, config: WorthConfig = WorthConfig()) -> None:
        self._config = config
        self._watched: ForgettingMean
        self._whole: ForgettingMean
        self._until_whole: int
        self._wholes: int
        self._rounds: int
        self._tokens: float
        self._ms: float
        self._rest = config.first_rest
        self._rest_left = 0
        self._begin()

    @property
    def resting(self) -> bool:
        """Whether rounds run whole for now."""
        return self._rest_left > 0

    def watches_next(self) -> bool:
        """Whether the next round is one to decide in; each answer stands for a round that follows it."""
        if self._rest_left > 0:
            self._rest_left -= 1
            return False
        if self._until_whole == 0:
            self._wholes += 1
            early = self._wholes < self._config.first_wholes
            self._until_whole = self._config.whole_every_first if early else self._config.whole_every
            return False
        self._until_whole -= 1
        return True

    def ran_whole(self, wall_ms: float, expected_ms: float) -> None:
        """Takes a whole round that was run for comparison, and what a round of its width was expected to cost."""
        self._whole.add(self._log_ratio(wall_ms, expected_ms))

    def ran_watched(
        self, wall_ms: float, expected_ms: float, emitted: int, costs_ms: Sequence[float], fixed_tokens: Sequence[float]
    ) -> None:
        """Takes a watched round and what it was expected to cost.

        `costs_ms[n]` and `fixed_tokens[n]`: what a round of exactly n drafts is expected to cost, and would have
        delivered here. Elements 0 are not read.
        """
        config = self._config
        self._watched.add(self._log_ratio(wall_ms, expected_ms))
        self._rounds += 1
        # Expected costs on both sides, so that a stalled round speaks for neither.
        watched_ms = expected_ms * math.exp(self._watched.estimate(0.0, config.cost_prior))
        self._tokens = config.decay * self._tokens + emitted
        self._ms = config.decay * self._ms + watched_ms
        whole = math.exp(self._whole.estimate(0.0, config.cost_prior))
        for drafts in range(1, len(fixed_tokens)):
            self._fixed_tokens[drafts] = self._fixed_tokens.get(drafts, 0.0) * config.decay + fixed_tokens[drafts]
            self._fixed_ms[drafts] = self._fixed_ms.get(drafts, 0.0) * config.decay + costs_ms[drafts] * whole
        if self._rounds >= config.judged_after:
            self._judge()

    def _judge(self) -> None:
        config = self._config
        best = max(self._fixed_tokens[drafts] / self._fixed_ms[drafts] for drafts in self._fixed_ms)
        if best > self._tokens / self._ms * (1.0 + config.margin):
            self._rest_left = self._rest
            self._rest = min(2 * self._rest, config.longest_rest)
            self._begin()
        elif self._rounds >= 2 * config.judged_after:
            self._rest = config.first_rest

    def _begin(self) -> None:
        """Forgets everything but the rests."""
        self._watched = ForgettingMean(self._config.cost_decay)
        self._whole = ForgettingMean(self._config.cost_decay)
        self._until_whole = self._config.whole_every_first
        self._wholes = 0
        self._rounds = 0
        self._tokens = 0.0
        self._ms = 0.0
        self._fixed_tokens: dict[int, float] = {}
        self._fixed_ms: dict[int, float] = {}

    def _log_ratio(self, wall_ms: float, expected_ms: float) -> float:
        clip = math.log(self._config.cost_clip)
        return min(max(math.log(wall_ms / expected_ms), -clip), clip)


def fixed_tokens(matched: int, known: int, follows: float, drafts: int) -> list[float]:
    """Tokens that one row would have got from rounds of 0 to `drafts` drafts.

    Of its first `known` drafts the first `matched` were the target's own choice. Where all of them were, a further
    one is kept with the chance `follows`.
    """
    tokens = [1.0 + min(matched, count) for count in range(drafts + 1)]
    if matched == known:
        reached, more = 1.0, 0.0
        for count in range(known + 1, drafts + 1):
            reached *= follows
            more += reached
            tokens[count] += more
    return tokens

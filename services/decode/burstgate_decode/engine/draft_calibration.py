"""Learns what a drafter's own probability of a draft says about whether the target keeps it.

A draft's chance is asked for, and learned, given that every draft before it was kept: what was drafted after a
wrong token says nothing. Probabilities fall into bins, and a bin learns by how much its drafts did better or
worse than they said; before anything was seen, probability is taken for acceptance. A round's first drafts are
kept apart from later ones, which build on the drafter's own state instead of the target's. So are the drafts of
rows that draw their tokens: draft and target draw with the same noise, and even an unlikely draft may be kept.
Pure; knows nothing of costs.
"""

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from burstgate_decode.engine.forgetting import ForgettingMean

# Closer together where a probability decides: a draft near 0 or 1 is clear whatever the calibration says.
_EDGES = (0.05, 0.12, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95, 0.985)
_BINS = range(len(_EDGES) + 1)


@dataclass(frozen=True)
class CalibrationConfig:
    """How fast acceptance is learned."""

    decay: float = 0.99
    """What an observation is still worth one observation of its bin later: a memory of about 100 drafts, enough
    to know a share within 5 %, short enough for another kind of text."""
    prior_weight: float = 8.0
    """Observations that a bin's prior is worth."""
    first_kept: float = 0.55
    """Chance that a draft is kept, before anything was seen: what trained drafters reach on mixed text."""
    follow_decay: float = 0.95
    """The same for what followed kept drafts, also where nothing did: shorter, because it is the kind of text that
    decides it."""
    doubt: float = 0.005
    """No draft is taken for more certain than this, either way."""


class DraftCalibration:
    """Acceptance by the drafter's probability."""

    def __init__(self, config: CalibrationConfig = CalibrationConfig()) -> None:
        self._config = config
        # By whether the row draws its tokens and whether the draft is a round's first, then by bin.
        self._surprises = {
            place: [ForgettingMean(config.decay) for _ in _BINS] for place in itertools.product((False, True), repeat=2)
        }
        # By whether the row draws its tokens, then by bin of the draft before.
        self._follows = {sampled: [ForgettingMean(config.follow_decay) for _ in _BINS] for sampled in (False, True)}
        self._all_follows = {sampled: ForgettingMean(config.follow_decay) for sampled in (False, True)}
        self._firsts = {sampled: ForgettingMean(config.follow_decay) for sampled in (False, True)}

    def kept(self, probability: float, place: int, *, sampled: bool) -> float:
        """Chance that the draft at `place` (0 is a round's first) is kept, if all before it are."""
        surprise = self._surprises[sampled, place == 0][_bin(probability)]
        return self._bounded(probability + surprise.estimate(0.0, self._config.prior_weight))

    def next_kept(self, probability: float | None, *, sampled: bool) -> float:
        """Chance that a draft not made yet is kept, if the one before it, of `probability`, is.

        None asks for one further on, whose predecessor is not made yet either. Where nothing is known, first drafts
        speak for it: rounds that stop after one would never learn that text has become fluent.
        """
        config = self._config
        # Twice the doubt, since further drafts build on the drafter's own state.
        first = self._firsts[sampled].estimate(config.first_kept, 2 * config.prior_weight)
        overall = self._all_follows[sampled].estimate(first, config.prior_weight)
        if probability is None:
            return overall
        return self._bounded(self._follows[sampled][_bin(probability)].estimate(overall, config.prior_weight))

    def observe(self, probabilities: Sequence[float], matched: int, known: int, *, sampled: bool) -> None:
        """Takes a row's drafts of a round: of the first `known`, the first `matched` were what the target chose.

        The draft after them was not; what came later hung on a wrong token.
        """
        told = probabilities[: min(known, matched + 1)]
        for place, probability in enumerate(told):
            was_kept = float(place < matched)
            if place:
                self._follow(probabilities[place - 1], sampled).add(was_kept)
                self._all_follows[sampled].add(was_kept)
            else:
                self._firsts[sampled].add(was_kept)
            self._surprises[sampled, place == 0][_bin(probability)].add(was_kept - probability)
        if len(told) == 1 and matched:
            # What is known of further drafts is older now, and would be held against them forever.
            for one in (self._follow(told[0], sampled), self._all_follows[sampled]):
                one.fade()

    def _follow(self, probability: float, sampled: bool) -> ForgettingMean:
        return self._follows[sampled][_bin(probability)]

    def _bounded(self, chance: float) -> float:
        return min(max(chance, self._config.doubt), 1.0 - self._config.doubt)


def _bin(probability: float) -> int:
    return bisect_right(_EDGES, probability)

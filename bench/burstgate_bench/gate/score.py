"""Scores what a policy did to a world against every fixed mode in hindsight.

All times are for the same text. What the first steps of a cold pairing cost is a score of its own: the rest
of the text is compared alone. Knows nothing of policies.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from burstgate_bench.gate.fixed import FixedRun
from burstgate_bench.gate.play import Played

COLD_STEPS = 64
"""Steps at the start that are scored on their own."""


@dataclass(frozen=True, slots=True)
class Score:
    """One policy on one world. Ratios are of delivered tokens per second; above 1 the policy was faster."""

    score: float
    """Against the best fixed mode."""
    plain: float
    """Against always plain."""
    cold: float
    """The first steps, against the mode that was best for the rest."""
    best: int
    """K of the best fixed mode; 1 is plain."""
    regret_ms: float
    """Time lost to the best fixed mode; negative when it was beaten."""
    steps: int
    switches: int
    """Changes between plain and rounds, probes aside, over the whole world."""
    longest_wrong: int
    """Most steps in a row in a mode expected to deliver 5 % less than the best one."""
    wrong_share: float
    probe_share: float
    """Steps that ran only to be measured, of those after the cold ones."""


def score(played: Played, fixed: Mapping[int, FixedRun]) -> Score:
    """Scores a policy; `fixed` by K."""
    cold = min(COLD_STEPS, len(played.tokens) - 1)
    cold_tokens, cold_ms = int(played.tokens[cold - 1]), float(played.busy_ms[cold - 1])
    rest_ms = float(played.busy_ms[-1]) - cold_ms
    best, best_ms = best_fixed(fixed, cold_tokens)
    chosen = played.chosen[cold:]
    wrong = played.wrong[cold:]
    return Score(
        score=best_ms / rest_ms,
        plain=(fixed[1].total_ms - fixed[1].ms_until(cold_tokens)) / rest_ms,
        cold=fixed[best].ms_until(cold_tokens) / cold_ms,
        best=best,
        regret_ms=rest_ms - best_ms,
        steps=len(played.tokens),
        switches=int(played.switched.sum()),
        longest_wrong=_longest(wrong[chosen]),
        wrong_share=float(wrong.mean()),
        probe_share=float(played.probes[cold:].mean()),
    )


def score_fixed(run: FixedRun, fixed: Mapping[int, FixedRun]) -> Score:
    """Scores a fixed mode by the same rules; it never probes, and it does not know when it is wrong."""
    steps = len(run.tokens)
    nothing = np.zeros(steps, bool)
    return score(Played(run.tokens, run.busy_ms, nothing, nothing, nothing, nothing), fixed)


def best_fixed(fixed: Mapping[int, FixedRun], after_tokens: int) -> tuple[int, float]:
    """The mode that is fastest on the text after so many tokens, and its time there."""
    rest_ms = {k: run.total_ms - run.ms_until(after_tokens) for k, run in fixed.items()}
    best = min(rest_ms, key=rest_ms.__getitem__)
    return best, rest_ms[best]


def _longest(flags: np.ndarray) -> int:
    """Length of the longest run of true elements."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(np.int8), [0]))))
    return int((edges[1::2] - edges[::2]).max()) if len(edges) else 0

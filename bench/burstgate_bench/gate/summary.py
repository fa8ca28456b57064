"""Summarises matches by family and arm. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from burstgate_bench.gate.score import Score
from burstgate_bench.gate.tournament import Match

_RATE_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Summary:
    """One arm over many worlds."""

    worlds: int
    median: float
    p10: float
    least: float
    plain_p5: float
    """5th percentile of the ratio to always plain."""
    cold_median: float
    lost: float
    """Mean share of the time that was lost to the best fixed mode; negative where that was beaten."""
    lost_ms: float
    """Mean time lost to it."""
    switches_rate: float
    """In 20,000 steps, over all worlds."""
    switches_most: int
    """In one world."""
    longest_wrong: int
    """Median over worlds of the longest stretch."""
    wrong_share: float
    probe_share: float
    """Mean over worlds."""
    probe_share_most: float

    @classmethod
    def of(cls, scores: Sequence[Score]) -> "Summary":
        """Summarises; not empty."""
        ratios = np.array([one.score for one in scores])
        return cls(
            worlds=len(scores),
            median=_round(np.median(ratios)),
            p10=_round(np.percentile(ratios, 10)),
            least=_round(ratios.min()),
            plain_p5=_round(np.percentile([one.plain for one in scores], 5)),
            cold_median=_round(np.median([one.cold for one in scores])),
            lost=_round(np.mean(1.0 - ratios)),
            lost_ms=_round(np.mean([one.regret_ms for one in scores])),
            switches_rate=_round(_RATE_STEPS * sum(one.switches for one in scores) / sum(one.steps for one in scores)),
            switches_most=max(one.switches for one in scores),
            longest_wrong=int(np.median([one.longest_wrong for one in scores])),
            wrong_share=_round(np.mean([one.wrong_share for one in scores])),
            probe_share=_round(np.mean([one.probe_share for one in scores])),
            probe_share_most=_round(max(one.probe_share for one in scores)),
        )


def is_fixed(arm: str) -> bool:
    """Whether an arm is a mode held to the end."""
    return arm == "plain" or arm.startswith("K=")


def by_family(matches: Sequence[Match]) -> dict[str, dict[str, Summary]]:
    """Summaries by family, then arm, in the order they were played."""
    families: dict[str, dict[str, list[Score]]] = {}
    for one in matches:
        arms = families.setdefault(one.family, {})
        for arm, score in one.scores.items():
            arms.setdefault(arm, []).append(score)
    return {family: {arm: Summary.of(scores) for arm, scores in arms.items()} for family, arms in families.items()}


def overall(matches: Sequence[Match], arm: str) -> Summary | None:
    """An arm over all worlds; None if it did not play."""
    scores = [one.scores[arm] for one in matches if arm in one.scores]
    return Summary.of(scores) if scores else None


def line_of(matches: Sequence[Match]) -> dict[str, Any]:
    """The last line of the output."""

    def numbers(some: Sequence[Match]) -> dict[str, Any]:
        default, seed = overall(some, "default"), overall(some, "seed")
        line: dict[str, Any] = {}
        if default is not None:
            line = {name: asdict(default)[name] for name in ("median", "p10", "plain_p5", "probe_share")}
        if seed is not None:
            line["seed_median"] = seed.median
        return line

    families = dict.fromkeys(one.family for one in matches)
    return {
        **numbers(matches),
        "by_family": {family: numbers([one for one in matches if one.family == family]) for family in families},
    }


def _round(value: float | np.floating[Any]) -> float:
    return round(float(value), 4)

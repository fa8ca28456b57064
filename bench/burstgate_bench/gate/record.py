"""Turns a tournament into a record for a file: the options and seeds that make it again, and what came out."""

import importlib.metadata
import json
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from burstgate_bench.gate.summary import Summary, by_family, is_fixed, line_of, overall
from burstgate_bench.gate.tournament import Match, Options
from burstgate_bench.noise import usable_cores

_TIMES = ("worlds", "median", "p10", "least", "plain_p5", "cold_median", "lost", "lost_ms")


def record_of(matches: Sequence[Match], options: Options, now: datetime, seconds: float) -> dict[str, Any]:
    """Everything that was counted. Worlds are numbered by `index`; with the seed that makes each of them again."""
    arms = tuple(dict.fromkeys(arm for one in matches for arm in one.scores))
    return {
        "date": now.isoformat(timespec="seconds"),
        "options": {**asdict(options), "traces": [file.name for file in options.traces]},
        "machine": {
            "cores": usable_cores(),
            "python": platform.python_version(),
            "versions": {name: importlib.metadata.version(name) for name in ("burstgate", "numpy")},
            "seconds": round(seconds, 1),
        },
        "line": line_of(matches),
        "all": {arm: _summary(arm, summary) for arm in arms if (summary := overall(matches, arm)) is not None},
        "families": {
            family: {arm: _summary(arm, summary) for arm, summary in summaries.items()}
            for family, summaries in by_family(matches).items()
        },
        "worlds": {
            family: _worlds([one for one in matches if one.family == family], options)
            for family in dict.fromkeys(one.family for one in matches)
        },
    }


def _summary(arm: str, summary: Summary) -> dict[str, Any]:
    """Of a fixed mode only what its times say: nobody asked whether it was wrong."""
    numbers = asdict(summary)
    return {name: numbers[name] for name in _TIMES} if is_fixed(arm) else numbers


def text_of(record: dict[str, Any]) -> str:
    """The record as it is kept: a list of numbers takes one line, not one line a number."""
    text = json.dumps(record, indent=1)
    return re.sub(r"\[[^\[\]{}]*\]", lambda numbers: f"[{' '.join(numbers[0][1:-1].split())}]", text) + "\n"


def _worlds(matches: Sequence[Match], options: Options) -> dict[str, Any]:
    """By world and in order of index: the best fixed K and each policy's main numbers."""
    return {
        "tokens": [one.tokens for one in matches],
        "best": [next(iter(one.scores.values())).best for one in matches],
        **{
            arm: {
                "score": [round(one.scores[arm].score, 4) for one in matches],
                "plain": [round(one.scores[arm].plain, 4) for one in matches],
                "switches": [one.scores[arm].switches for one in matches],
            }
            for arm in options.arms
        },
    }

"""The line about an answer counts as people do."""

from dataclasses import replace

import pytest

from burstgate.cli._statistics import statistics
from burstgate.results import DraftWidthCount, FinishReason, Result, SpeculationStats, Timings, Usage

STATS = SpeculationStats(0, 0, 0, 0, (), 0.0, (), (), "", 0, 0, ())
RESULT = Result(0, "", (), (), (), FinishReason.EOS, None, None, Usage(5, 0, 0), Timings(*[0.0] * 6), STATS, 1, "id")


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (1, ("1 token,", "1 round,", "1 plain step;", "1 position decided")),
        (2, ("2 tokens,", "2 rounds,", "2 plain steps;", "2 positions decided")),
    ],
)
def test_one_is_no_plural(count: int, says: tuple[str, ...]) -> None:
    stats = replace(STATS, rounds=count, plain_steps=count, redecided=count, draft_widths=(DraftWidthCount(2, count),))
    usage = replace(RESULT.usage, completion_tokens=count)
    line = statistics(replace(RESULT, usage=usage, speculation=stats))
    for part in says:
        assert part in line

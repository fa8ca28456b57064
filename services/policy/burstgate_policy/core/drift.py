"""Notices that rounds no longer deliver what the verdict was settled on.

Watched is the yield: tokens of a row for each millisecond of a round. It falls when acceptance falls
and when a round gets dearer, and stays when the draft width trades one for the other, which is no
reason to doubt a verdict. Batch widths and depths are kept apart, because a wider batch makes every
round dearer without anything having drifted; where the verdict saw too few rounds nothing is judged.
Knows nothing of plain steps, lanes or time.
"""

import math
from collections.abc import Iterable

from burstgate_policy.core.evidence import depth_bucket
from burstgate_policy.core.profile import ProfileSample
from burstgate_policy.core.types import Evidence, StepRecord
from burstgate_policy.core.verdict_config import DriftConfig, VerdictConfig


class DriftWatch:
    """The running yield of one settled pairing at each place its verdict knows."""

    __slots__ = ("_config", "_high", "_low", "_places", "_verdict_config")

    def __init__(
        self, bursts: Iterable[ProfileSample], evidence: Evidence, config: DriftConfig, verdict_config: VerdictConfig
    ) -> None:
        self._config = config
        self._verdict_config = verdict_config
        speedup = evidence.speedup
        self._low = evidence.speedup_low / speedup * (1.0 - config.margin) if speedup else 0.0
        self._high = evidence.speedup_high / speedup * (1.0 + config.margin) if speedup else math.inf
        self._places = self._baselines(bursts)

    def note(self, step: StepRecord) -> str:
        """Takes a round; the sentence that says what drifted, or nothing."""
        place = self._places.get(self._place(step.width, step.depth_tokens))
        if place is None:
            return ""
        place.take(step, self._config)
        ratio = place.tokens / place.cost_ms / place.baseline
        if self._low <= ratio <= self._high:
            place.outside = max(place.outside - 1, 0)
            return ""
        place.outside += 1
        if place.outside < self._config.sustained_rounds:
            return ""
        return (
            f"rounds now give {place.tokens:.2f} tokens a row in {place.cost_ms:.1f} ms where the verdict "
            f"rests on {place.tokens_then:.2f} in {place.cost_ms_then:.1f} ms"
        )

    def _baselines(self, bursts: Iterable[ProfileSample]) -> dict[tuple[int, int], "_Place"]:
        sums: dict[tuple[int, int], list[float]] = {}
        for burst in bursts:
            place = sums.setdefault(self._place(burst.width, burst.depth_tokens), [0.0] * 4)
            cost_ms = burst.draft_ms + burst.verify_ms + burst.overhead_ms
            for index, part in enumerate((burst.rounds, burst.row_rounds, burst.emitted, cost_ms)):
                place[index] += part
        return {
            place: _Place(emitted / row_rounds, cost_ms / rounds)
            for place, (rounds, row_rounds, emitted, cost_ms) in sums.items()
            if rounds >= self._config.baseline_rounds
            and row_rounds > 0
            and emitted > 0
            and math.isfinite(cost_ms)
            and cost_ms > 0.0
        }

    def _place(self, width: int, depth_tokens: int) -> tuple[int, int]:
        return (max(width, 1) - 1).bit_length(), depth_bucket(depth_tokens, self._verdict_config)


class _Place:
    """One batch width and depth, in power-of-two buckets."""

    __slots__ = ("baseline", "cost_ms", "cost_ms_then", "outside", "tokens", "tokens_then")

    def __init__(self, tokens: float, cost_ms: float) -> None:
        self.tokens = self.tokens_then = tokens
        self.cost_ms = self.cost_ms_then = cost_ms
        self.baseline = tokens / cost_ms
        self.outside = 0

    def take(self, step: StepRecord, config: DriftConfig) -> None:
        cost_ms = max(step.wall_ms, step.draft_ms + step.verify_ms + step.overhead_ms)
        if not (math.isfinite(cost_ms) and cost_ms > 0.0):
            return
        self.tokens += config.weight * (step.emitted / max(step.width, 1) - self.tokens)
        self.cost_ms += config.weight * (min(cost_ms, config.cost_clip * self.cost_ms) - self.cost_ms)

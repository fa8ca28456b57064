"""Notices that rounds no longer deliver what the verdict was settled on.

Watched is the yield: tokens of a row for each millisecond of a round. It falls when acceptance falls
and when a round gets dearer, and stays when the draft width trades one for the other, which is no
reason to doubt a verdict. Batch widths and depths are kept apart, because a wider batch makes every
round dearer without anything having drifted; where the verdict saw too few rounds nothing is judged.
Knows nothing of plain steps, lanes or time.
"""

import math
from collections.abc import Iterable

from burstgate_policy.core.profile import ProfileSample
from burstgate_policy.core.types import Evidence, StepRecord
from burstgate_policy.core.verdict_config import DriftConfig, VerdictConfig


class DriftWatch:
    """The running yield of one settled pairing at each place its verdict knows."""

    __slots__ = ("_at", "_config", "_floor_tokens", "_here", "_high", "_low", "_places")

    def __init__(
        self, bursts: Iterable[ProfileSample], evidence: Evidence, config: DriftConfig, verdict_config: VerdictConfig
    ) -> None:
        self._config = config
        self._floor_tokens = verdict_config.kind_depth_floor_tokens
        speedup = evidence.speedup
        self._low = evidence.speedup_low / speedup * (1.0 - config.margin) if speedup else 0.0
        self._high = evidence.speedup_high / speedup * (1.0 + config.margin) if speedup else math.inf
        self._places = self._baselines(bursts)
        self._at = (0, 0)
        self._here: _Place | None = None

    def note(self, step: StepRecord) -> str:
        """Takes a round; the sentence that says what drifted, or nothing."""
        at = step.width, step.depth_tokens // self._floor_tokens
        if at != self._at:
            self._at, self._here = at, self._places.get(_place(*at))
        place = self._here
        cost_ms, parts_ms = step.wall_ms, step.draft_ms + step.verify_ms + step.overhead_ms
        if parts_ms > cost_ms:
            cost_ms = parts_ms
        if place is None or not 0.0 < cost_ms < math.inf:
            return ""
        place.block_rounds += 1
        place.block_rows += max(step.width, 1)
        place.block_emitted += step.emitted
        place.block_cost_ms += cost_ms
        return self._judge(place) if place.block_rounds >= self._config.block_rounds else ""

    def _judge(self, place: "_Place") -> str:
        config = self._config
        place.fold_block(config)
        ratio = place.tokens / place.cost_ms / place.baseline
        if self._low <= ratio <= self._high:
            place.outside = max(place.outside - config.block_rounds, 0)
            return ""
        place.outside += config.block_rounds
        if place.outside < config.sustained_rounds:
            return ""
        place.outside = 0
        return (
            f"rounds now give {place.tokens:.2f} tokens a row in {place.cost_ms:.1f} ms where the verdict "
            f"rests on {place.tokens_then:.2f} in {place.cost_ms_then:.1f} ms"
        )

    def _baselines(self, bursts: Iterable[ProfileSample]) -> dict[tuple[int, int], "_Place"]:
        sums: dict[tuple[int, int], list[float]] = {}
        for burst in bursts:
            place = sums.setdefault(_place(burst.width, burst.depth_tokens // self._floor_tokens), [0.0] * 4)
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


class _Place:
    """One batch width and depth, in power-of-two buckets."""

    __slots__ = (
        "baseline",
        "block_cost_ms",
        "block_emitted",
        "block_rounds",
        "block_rows",
        "cost_ms",
        "cost_ms_then",
        "outside",
        "tokens",
        "tokens_then",
    )

    def __init__(self, tokens: float, cost_ms: float) -> None:
        self.tokens = self.tokens_then = tokens
        self.cost_ms = self.cost_ms_then = cost_ms
        self.baseline = tokens / cost_ms
        self.outside = 0
        self._empty_block()

    def fold_block(self, config: DriftConfig) -> None:
        tokens = self.block_emitted / max(self.block_rows, 1)
        cost_ms = min(self.block_cost_ms / self.block_rounds, config.cost_clip * self.cost_ms)
        self.tokens += config.weight * (tokens - self.tokens)
        self.cost_ms += config.weight * (cost_ms - self.cost_ms)
        self._empty_block()

    def _empty_block(self) -> None:
        self.block_rounds = self.block_rows = self.block_emitted = 0
        self.block_cost_ms = 0.0


def _place(width: int, depth_floors: int) -> tuple[int, int]:
    """Power-of-two buckets of the batch width and of the depth in floors."""
    return (max(width, 1) - 1).bit_length(), max(depth_floors, 0).bit_length()

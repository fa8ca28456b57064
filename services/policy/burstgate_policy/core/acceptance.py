"""Learns how likely the draft at each position is kept, given that all before it were.

Recent rounds weigh most, everything the lane ever saw stands behind them, and a position that was
never reached is expected to do as well as the one before it. Knows nothing of time or cost.
"""

from burstgate_policy.core.config import DepthConfig
from burstgate_policy.core.types import StepRecord


class Acceptance:
    """Conditional acceptance by draft position of one lane."""

    __slots__ = ("_config", "_kept", "_lane_kept", "_lane_tried", "_tried")

    def __init__(self, positions: int, config: DepthConfig) -> None:
        self._config = config
        self._kept = [0.0] * positions
        self._tried = [0.0] * positions
        self._lane_kept = [0.0] * positions
        self._lane_tried = [0.0] * positions

    def observe(self, step: StepRecord) -> None:
        """Takes a round. Counts that contradict each other are cut to what is possible."""
        width = max(step.width, 1)
        drafted = min(step.draft_width - 1, -(-step.proposed // width), len(self._kept))
        tried = min(width, step.proposed)
        accepted = step.accepted_by_position
        decay = self._config.decay
        all_kept, all_tried, lane_kept, lane_tried = self._kept, self._tried, self._lane_kept, self._lane_tried
        for position, kept_before in enumerate(all_kept):
            if position >= drafted or tried < 1:
                # What was not drafted was not seen, and what was known of it grows old all the same.
                all_kept[position] = kept_before * decay
                all_tried[position] *= decay
                continue
            kept = accepted[position] if position < len(accepted) else 0
            if kept > tried:
                kept = tried
            all_kept[position] = kept_before * decay + kept
            all_tried[position] = all_tried[position] * decay + tried
            lane_kept[position] += kept
            lane_tried[position] += tried
            tried = kept

    def expected_tokens(self, max_draft_width: int, slowest_of: int = 1) -> list[float]:
        """Tokens a row gets from a round: element K-1 is a round of K verify rows; element 0 is 1.

        Of several rows, taken as independent, the slowest gets draft i only where all of them do.
        """
        config = self._config
        rate, reach, tokens = config.first_rate, 1.0, 1.0
        expected = [tokens]
        for position in range(max_draft_width - 1):
            lane_kept = self._lane_kept[position] + config.prior_weight * rate
            lane = lane_kept / (self._lane_tried[position] + config.prior_weight)
            # A lane's history mixes kinds of text; the position before speaks of this one. A draft is
            # not kept more often than the one before it, so hearsay may not claim that it is.
            hearsay = min(0.5 * (lane + rate), rate) if position else lane
            kept = self._kept[position] + config.lane_weight * hearsay
            rate = kept / (self._tried[position] + config.lane_weight)
            reach *= rate**slowest_of
            tokens += reach
            expected.append(tokens)
        return expected

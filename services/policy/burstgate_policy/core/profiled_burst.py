"""The profiled burst a lane has under way: a few plain probe steps, then rounds.

Its ends are counted in steps, so it does not matter over how many grants, requests or outcomes
they were spread. Judges nothing.
"""

import math

from burstgate_policy.core.profile import ProfileSample
from burstgate_policy.core.types import StepRecord


class ProfiledBurst:
    """Sums of one profiled burst."""

    __slots__ = (
        "_accepted",
        "_depth_tokens",
        "_draft_ms",
        "_emitted",
        "_overhead_ms",
        "_plain_ms",
        "_proposed",
        "_row_rounds",
        "_timed_plain_steps",
        "_tried",
        "_verify_ms",
        "_width",
        "plain_steps",
        "rounds",
    )

    def __init__(self) -> None:
        self.plain_steps = 0
        """Plain probe steps that ran, timed or not."""
        self.rounds = 0
        self._timed_plain_steps = 0
        self._plain_ms = 0.0
        self._row_rounds = 0
        self._emitted = 0
        self._proposed = 0
        self._accepted = 0
        self._tried = 0
        self._draft_ms = 0.0
        self._verify_ms = 0.0
        self._overhead_ms = 0.0
        self._width = 1
        self._depth_tokens = 0

    def add_plain(self, step: StepRecord) -> None:
        """Takes a plain probe step."""
        self.plain_steps += 1
        if math.isfinite(step.wall_ms) and step.wall_ms > 0.0:
            self._timed_plain_steps += 1
            self._plain_ms += step.wall_ms

    def add_round(self, step: StepRecord) -> None:
        """Takes a round. A time that is no number spoils the sums, and so the estimate, on purpose.

        A round is charged for its whole wall time: what no part accounts for was spent all the same.
        """
        self.rounds += 1
        width, kept = max(step.width, 1), sum(step.accepted_by_position)
        whole = step.accepted_by_position[-1] if 0 < len(step.accepted_by_position) == step.draft_width - 1 else 0
        self._row_rounds += width
        self._emitted += step.emitted
        self._proposed += step.proposed
        self._accepted += kept
        self._tried += kept + max(width - whole, 0) if step.proposed else 0
        self._draft_ms += step.draft_ms
        self._verify_ms += step.verify_ms
        self._overhead_ms += max(step.overhead_ms, step.wall_ms - step.draft_ms - step.verify_ms)
        self._width = max(self._width, step.width)
        self._depth_tokens = max(self._depth_tokens, step.depth_tokens)

    def sample(self) -> ProfileSample:
        """The burst as the policy takes it."""
        timed = self._timed_plain_steps
        return ProfileSample(
            rounds=self.rounds,
            row_rounds=self._row_rounds,
            emitted=self._emitted,
            proposed=self._proposed,
            accepted=self._accepted,
            draft_ms=self._draft_ms,
            verify_ms=self._verify_ms,
            overhead_ms=self._overhead_ms,
            plain_step_ms=self._plain_ms / timed if timed else None,
            tried=self._tried,
            plain_steps=timed,
            width=self._width,
            depth_tokens=self._depth_tokens,
        )

"""Accumulates profiled bursts until they can carry a verdict.

Sums are kept over rounds and divided once, so that every round weighs the same and a long burst
says more than a short one. The plain step is the median over bursts of each burst's mean, because
the first steps a process runs can be twenty times slower than all later ones. Knows nothing of
thresholds or verdicts.
"""

import math
import statistics
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ProfileSample:
    """One profiled burst: its plain probe steps and its rounds."""

    rounds: int
    row_rounds: int
    """Rounds counted once for each row that took part: a round at batch width 4 is 4."""
    emitted: int
    """Tokens the rounds emitted over all rows."""
    proposed: int
    accepted: int
    draft_ms: float
    verify_ms: float
    overhead_ms: float
    """Everything else the rounds cost; a verdict must charge a round for all of it."""
    plain_step_ms: float | None
    """Mean of the burst's plain probe steps; None when it had none."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The sums of the bursts so far."""

    samples: int = 0
    rounds: int = 0
    row_rounds: int = 0
    emitted: int = 0
    proposed: int = 0
    accepted: int = 0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    overhead_ms: float = 0.0
    plain_means_ms: tuple[float, ...] = ()

    def with_sample(self, sample: ProfileSample, *, probe_means_kept: int) -> "Profile":
        """This profile with one more burst; a burst without rounds adds only its plain mean."""
        means = self.plain_means_ms
        mean = sample.plain_step_ms
        if mean is not None and math.isfinite(mean) and mean > 0.0 and len(means) < probe_means_kept:
            means = (*means, mean)
        if sample.rounds < 1:
            return replace(self, plain_means_ms=means)
        return Profile(
            samples=self.samples + 1,
            rounds=self.rounds + sample.rounds,
            row_rounds=self.row_rounds + sample.row_rounds,
            emitted=self.emitted + sample.emitted,
            proposed=self.proposed + sample.proposed,
            accepted=self.accepted + sample.accepted,
            draft_ms=self.draft_ms + sample.draft_ms,
            verify_ms=self.verify_ms + sample.verify_ms,
            overhead_ms=self.overhead_ms + sample.overhead_ms,
            plain_means_ms=means,
        )

    @property
    def accepted_len(self) -> float:
        """Drafts kept in one round of one row: tokens emitted / row rounds - 1, never below 0.

        Counting emitted tokens by row makes batches of every width comparable with a plain step,
        which also emits one token a row, and does not credit drafts that a stop cut off.
        """
        if self.row_rounds < 1:
            return 0.0
        return max(self.emitted / self.row_rounds - 1.0, 0.0)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over proposed drafts; None before the first round, 0 when nothing was proposed."""
        if self.rounds < 1:
            return None
        return min(self.accepted / self.proposed, 1.0) if self.proposed > 0 else 0.0

    @property
    def plain_step_ms(self) -> float | None:
        """Median of the bursts' plain means."""
        return statistics.median(self.plain_means_ms) if self.plain_means_ms else None

    @property
    def mean_draft_ms(self) -> float:
        """Drafting time of a round."""
        return self.draft_ms / max(self.rounds, 1)

    @property
    def mean_verify_ms(self) -> float:
        """Verify time of a round."""
        return self.verify_ms / max(self.rounds, 1)

    @property
    def round_cost_ms(self) -> float:
        """Everything a round costs."""
        return (self.draft_ms + self.verify_ms + self.overhead_ms) / max(self.rounds, 1)

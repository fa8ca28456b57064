"""Accumulates profiled bursts until they can carry a verdict.

Sums run over rounds and are divided once, so that every round weighs the same and a long burst
says more than a short one. The plain step is the median over bursts of each burst's mean, because
the first steps a process runs can be twenty times slower than all later ones. The bursts are kept
one by one (a verdict needs few) so that their disagreement can be measured. Knows nothing of
thresholds or verdicts.
"""

import math
import statistics
from collections.abc import Callable, Iterable
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
    tried: int = 0
    """Drafts that were looked at: those kept, and of each row the first that was not."""
    plain_steps: int = 0
    width: int = 1
    """Most rows of a round."""
    depth_tokens: int = 0
    """Deepest context of a round."""

    @property
    def round_ms(self) -> float:
        """Everything one of its rounds cost."""
        return (self.draft_ms + self.verify_ms + self.overhead_ms) / max(self.rounds, 1)

    def at_most(self, round_ms: float) -> "ProfileSample":
        """This burst with rounds that cost no more than so much, each part of it cut alike."""
        if not self.round_ms > round_ms:
            return self
        share = round_ms / self.round_ms
        return replace(
            self,
            draft_ms=self.draft_ms * share,
            verify_ms=self.verify_ms * share,
            overhead_ms=self.overhead_ms * share,
        )


@dataclass(frozen=True, slots=True)
class Profile:
    """The bursts so far."""

    bursts: tuple[ProfileSample, ...] = ()
    """Those with rounds."""
    plain_means_ms: tuple[float, ...] = ()
    plain_steps: int = 0
    first_seen_s: float | None = None
    last_seen_s: float | None = None

    def with_sample(self, sample: ProfileSample, *, probe_means_kept: int, now_s: float = 0.0) -> "Profile":
        """This profile with one more burst; a burst without rounds adds only its plain mean."""
        means, mean = self.plain_means_ms, sample.plain_step_ms
        if mean is not None and math.isfinite(mean) and mean > 0.0 and len(means) < probe_means_kept:
            means = (*means, mean)
        return replace(
            self,
            bursts=(*self.bursts, sample) if sample.rounds >= 1 else self.bursts,
            plain_means_ms=means,
            plain_steps=self.plain_steps + sample.plain_steps,
            first_seen_s=now_s if self.first_seen_s is None else self.first_seen_s,
            last_seen_s=now_s,
        )

    def without_burst(self, index: int) -> "Profile":
        """This profile as if one burst's rounds had not run; the plain steps stay."""
        return replace(self, bursts=self.bursts[:index] + self.bursts[index + 1 :])

    def tamed(self, stall_factor: float) -> "Profile":
        """This profile with no burst's rounds costing more than so many times the median burst's."""
        if len(self.bursts) < 3:
            return self
        most_ms = stall_factor * statistics.median(burst.round_ms for burst in self.bursts)
        if not (math.isfinite(most_ms) and most_ms > 0.0):
            return self
        return replace(self, bursts=tuple(burst.at_most(most_ms) for burst in self.bursts))

    def only(self, bursts: Iterable[ProfileSample]) -> "Profile":
        """This profile with the rounds of these bursts alone; the plain steps stay."""
        return replace(self, bursts=tuple(bursts))

    @property
    def samples(self) -> int:
        """Bursts with rounds."""
        return len(self.bursts)

    @property
    def rounds(self) -> int:
        """Rounds of all bursts."""
        return sum(burst.rounds for burst in self.bursts)

    @property
    def accepted_len(self) -> float:
        """Drafts kept in one round of one row: tokens emitted / row rounds - 1, never below 0.

        Counting emitted tokens by row makes batches of every width comparable with a plain step,
        which also emits one token a row, and does not credit drafts that a stop cut off.
        """
        row_rounds = sum(burst.row_rounds for burst in self.bursts)
        if row_rounds < 1:
            return 0.0
        return max(sum(burst.emitted for burst in self.bursts) / row_rounds - 1.0, 0.0)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over proposed drafts; None before the first round, 0 when nothing was proposed."""
        if not self.bursts:
            return None
        proposed = sum(burst.proposed for burst in self.bursts)
        return min(sum(burst.accepted for burst in self.bursts) / proposed, 1.0) if proposed > 0 else 0.0

    @property
    def plain_step_ms(self) -> float | None:
        """Median of the bursts' plain means."""
        return statistics.median(self.plain_means_ms) if self.plain_means_ms else None

    @property
    def mean_draft_ms(self) -> float:
        """Drafting time of a round."""
        return self._mean(lambda burst: burst.draft_ms)

    @property
    def mean_verify_ms(self) -> float:
        """Verify time of a round."""
        return self._mean(lambda burst: burst.verify_ms)

    @property
    def round_cost_ms(self) -> float:
        """Everything a round costs."""
        return self._mean(lambda burst: burst.draft_ms + burst.verify_ms + burst.overhead_ms)

    def _mean(self, part_ms: Callable[[ProfileSample], float]) -> float:
        return sum(map(part_ms, self.bursts)) / max(self.rounds, 1)

"""Evidence by batch width and context depth: one pairing may pay for one row and not for eight.

A place is a power-of-two bucket of the batch width and one of the depth. It has a say only where it
has seen enough by itself and its whole interval lies on one side; everywhere else the pairing's verdict
rules. The newest bursts of a place count, and only so many places are kept. Knows no lanes and no stages.
"""

from dataclasses import dataclass

from burstgate_policy.core import estimate
from burstgate_policy.core.evidence import depth_bucket, weigh
from burstgate_policy.core.profile import Profile, ProfileSample
from burstgate_policy.core.types import Evidence, Situation, Verdict
from burstgate_policy.core.verdict_config import VerdictConfig

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PlaceVerdict:
    """What one place's own evidence says."""

    verdict: Verdict
    evidence: Evidence
    explanation: str


class Places:
    """The places of one pairing."""

    __slots__ = ("_bursts", "_config", "_static_default", "_verdicts")

    def __init__(self, *, static_default: bool, config: VerdictConfig) -> None:
        self._static_default = static_default
        self._config = config
        # Seen longest ago first.
        self._bursts: dict[Place, tuple[tuple[float, ProfileSample], ...]] = {}
        self._verdicts: dict[Place, PlaceVerdict] = {}

    def add(self, sample: ProfileSample, now_s: float) -> None:
        """Takes a profiled burst; a burst without rounds says nothing."""
        if sample.rounds < 1:
            return
        config, place = self._config, self._place(sample.width, sample.depth_tokens)
        kept = (*self._bursts.pop(place, ()), (now_s, sample))[-config.patience_samples :]
        self._bursts[place] = kept
        if len(self._bursts) > config.places_kept:
            forgotten = next(iter(self._bursts))
            del self._bursts[forgotten]
            self._verdicts.pop(forgotten, None)
        verdict = self._judge(kept)
        if verdict is None:
            self._verdicts.pop(place, None)
        else:
            self._verdicts[place] = verdict

    def verdict(self, situation: Situation, now_s: float) -> PlaceVerdict | None:
        """What the situation's own place says; None where the pairing's verdict rules."""
        if not self._verdicts:
            return None
        found = self._verdicts.get(self._place(situation.width, situation.depth_tokens))
        return None if found is None or self._too_old(found, now_s) else found

    def unlike(self, verdict: Verdict, now_s: float) -> list[str]:
        """In words, the places that disagree with a verdict."""
        return [
            f"{_words(place, self._config)} {each.explanation}"
            for place, each in sorted(self._verdicts.items())
            if each.verdict is not verdict and not self._too_old(each, now_s)
        ]

    def clear(self) -> None:
        """Forgets everything."""
        self._bursts.clear()
        self._verdicts.clear()

    def _judge(self, bursts: tuple[tuple[float, ProfileSample], ...]) -> PlaceVerdict | None:
        config = self._config
        profile = Profile()
        for seen_s, burst in bursts:
            profile = profile.with_sample(burst, probe_means_kept=len(bursts), now_s=seen_s)
        if profile.samples < config.samples_required or profile.rounds < config.rounds_required:
            return None
        weighed = weigh(profile, config)
        if weighed.speedup is None or not weighed.measured:
            return None
        evidence = weighed.evidence
        verdict, *ends = (
            estimate.resolve(
                estimate.classify(speedup, enable_at=config.enable_at, decline_at=config.decline_at),
                static_default=self._static_default,
            )
            for speedup in (evidence.speedup, evidence.speedup_low, evidence.speedup_high)
        )
        if any(end is not verdict for end in ends):
            return None
        pays = "pays" if verdict is Verdict.ENABLE else "does not pay"
        explanation = (
            f"speculation {pays}: {evidence.speedup:.2f} times plain speed "
            f"({evidence.speedup_low:.2f} to {evidence.speedup_high:.2f}) over {evidence.rounds} rounds there"
        )
        return PlaceVerdict(verdict, evidence, explanation)

    def _too_old(self, found: PlaceVerdict, now_s: float) -> bool:
        return now_s - found.evidence.last_seen_at >= self._config.ttl_s

    def _place(self, width: int, depth_tokens: int) -> Place:
        return (max(width, 1) - 1).bit_length(), depth_bucket(depth_tokens, self._config)


def _words(place: Place, config: VerdictConfig) -> str:
    width, depth = place
    rows = "1 row" if width == 0 else f"{(1 << width - 1) + 1} to {1 << width} rows" if width > 1 else "2 rows"
    floor = config.kind_depth_floor_tokens
    tokens = f"under {floor} tokens" if depth == 0 else f"{floor << depth - 1} to {(floor << depth) - 1} tokens"
    return f"at {rows} and {tokens} of context"

"""Decides once for each pairing whether speculation pays, from a few profiled bursts.

Owns the verdict of one pairing; every lane of that pairing shares it. A forced policy neither
profiles nor has anything to persist. A settled policy ignores further samples. Knows nothing of
lanes, steps, storage or time.
"""

from dataclasses import dataclass

from burstgate_policy.core import estimate
from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.hint import Hint
from burstgate_policy.core.profile import Profile, ProfileSample
from burstgate_policy.core.types import PolicyKey, Snapshot, State, Verdict


@dataclass(frozen=True, slots=True)
class Forced:
    """An operator decides."""

    enabled: bool


@dataclass(frozen=True, slots=True)
class Profiling:
    """Bursts are being measured."""

    profile: Profile


@dataclass(frozen=True, slots=True)
class Settled:
    """The verdict stands."""

    verdict: Verdict
    acceptance_rate: float
    samples: int
    speedup: float | None
    from_hint: bool
    explanation: str


@dataclass(frozen=True, slots=True)
class Static:
    """Adaptive profiling is off: the static gate alone decides."""

    enabled: bool


PolicyStage = Forced | Profiling | Settled | Static


class MtpPolicy:
    """The verdict of one pairing."""

    __slots__ = ("_config", "_probe_steps_left", "_settled_hint", "_stage", "_static_default", "key")

    def __init__(self, key: PolicyKey, stage: PolicyStage, *, static_default: bool, config: CoreConfig) -> None:
        self.key = key
        self._stage = stage
        self._static_default = static_default
        self._config = config.verdict
        self._settled_hint: Hint | None = None
        self._probe_steps_left = config.verdict.samples_required * config.verdict.probe_steps

    @classmethod
    def start(
        cls,
        key: PolicyKey,
        *,
        force: bool | None,
        adaptive: bool,
        static_default: bool,
        hint: Hint | None,
        config: CoreConfig,
    ) -> "MtpPolicy":
        """The policy of a pairing that has just been opened; a hint of another key is ignored."""
        stage: PolicyStage
        if force is not None:
            stage = Forced(force)
        elif not adaptive:
            stage = Static(static_default)
        elif hint is not None and hint.key == key:
            stage = Settled(
                verdict=hint.verdict,
                acceptance_rate=hint.acceptance_rate,
                samples=hint.samples,
                speedup=None,
                from_hint=True,
                explanation=(
                    f"{_answer(hint.verdict)}: an earlier profile of {hint.samples} bursts said so, "
                    f"with {hint.acceptance_rate:.0%} of the drafts accepted"
                ),
            )
        else:
            stage = Profiling(Profile())
        return cls(key, stage, static_default=static_default, config=config)

    @property
    def stage(self) -> PolicyStage:
        """The state, as one of its four types."""
        return self._stage

    @property
    def static_default(self) -> bool:
        """What the static gate answers for this pairing."""
        return self._static_default

    def record(self, sample: ProfileSample) -> None:
        """Takes a profiled burst; the last one needed settles the verdict."""
        match self._stage:
            case Profiling(profile):
                config = self._config
                profile = profile.with_sample(sample, probe_means_kept=config.probe_means_kept)
                if profile.samples < config.samples_required:
                    self._stage = Profiling(profile)
                else:
                    self._settle(profile)
            case Forced() | Settled() | Static():
                pass

    def claim_probe_steps(self, wanted: int) -> int:
        """Takes plain probe steps out of the pairing's allowance, at most those that are left.

        Lanes profile at the same time; without a common allowance each would slow its own text down.
        """
        granted = min(max(wanted, 0), self._probe_steps_left)
        self._probe_steps_left -= granted
        return granted

    def take_settled(self) -> Hint | None:
        """The hint to persist, once after this policy has settled by its own measurement."""
        hint, self._settled_hint = self._settled_hint, None
        return hint

    def snapshot(self) -> Snapshot:
        """What the policy holds."""
        state, verdict, enabled = State.FORCED, Verdict.UNSPECIFIED, False
        acceptance_rate: float | None = None
        samples, speedup, from_hint = 0, None, False
        match self._stage:
            case Forced(enabled):
                explanation = f"an operator forces speculation {'on' if enabled else 'off'}"
            case Static(enabled):
                state = State.STATIC
                explanation = f"adaptive profiling is off; the static gate answers {'on' if enabled else 'off'}"
            case Profiling(profile):
                state, enabled = State.PROFILING, True
                acceptance_rate, samples = profile.acceptance_rate, profile.samples
                explanation = f"measuring: {samples} of {self._config.samples_required} bursts profiled"
            case Settled() as settled:
                state, verdict, enabled = State.SETTLED, settled.verdict, settled.verdict is Verdict.ENABLE
                acceptance_rate, samples = settled.acceptance_rate, settled.samples
                speedup, from_hint, explanation = settled.speedup, settled.from_hint, settled.explanation
        return Snapshot(
            key=self.key,
            state=state,
            verdict=verdict,
            speculation_enabled=enabled,
            acceptance_rate=acceptance_rate,
            samples=samples,
            samples_required=self._config.samples_required,
            speedup=speedup,
            static_default=self._static_default,
            key_hash=self.key.hash,
            from_hint=from_hint,
            explanation=explanation,
        )

    def _settle(self, profile: Profile) -> None:
        config = self._config
        plain_ms = profile.plain_step_ms
        speedup, measured = None, False
        if plain_ms is not None:
            speedup = estimate.measured_speedup(profile.accepted_len, plain_ms, profile.round_cost_ms)
            measured = speedup is not None
        if speedup is None:
            speedup = estimate.closed_form_speedup(profile.accepted_len, profile.mean_draft_ms, profile.mean_verify_ms)
        zone = estimate.classify(speedup, enable_at=config.enable_at, decline_at=config.decline_at)
        verdict = estimate.resolve(zone, static_default=self._static_default)
        hint = Hint(
            key=self.key,
            verdict=verdict,
            acceptance_rate=profile.acceptance_rate or 0.0,
            samples=profile.samples,
        )
        self._stage = Settled(
            verdict=verdict,
            acceptance_rate=hint.acceptance_rate,
            samples=profile.samples,
            speedup=speedup,
            from_hint=False,
            explanation=self._explain(profile, zone, verdict, speedup, measured=measured),
        )
        self._settled_hint = hint

    def _explain(
        self,
        profile: Profile,
        zone: estimate.Zone,
        verdict: Verdict,
        speedup: float | None,
        *,
        measured: bool,
    ) -> str:
        config = self._config
        answer = _answer(verdict)
        if zone is estimate.Zone.NO_ESTIMATE or speedup is None:
            return f"{answer}: the profile gave no usable times, so the static gate decided"
        tokens = profile.accepted_len + 1.0
        evidence = f"{tokens:.2f} tokens a row in a round of {profile.round_cost_ms:.1f} ms"
        if measured:
            evidence += f" against one in a plain step of {profile.plain_step_ms:.1f} ms"
        else:
            evidence += " (no plain step was measured, so this is an upper bound)"
        if zone is estimate.Zone.BETWEEN:
            between = f"between {config.decline_at:g} and {config.enable_at:g} the static gate decides"
            return f"{answer}: {evidence} is a speed-up of {speedup:.2f}, and {between}"
        return f"{answer}: {evidence} is a speed-up of {speedup:.2f}"


def _answer(verdict: Verdict) -> str:
    return "speculation pays" if verdict is Verdict.ENABLE else "speculation does not pay"

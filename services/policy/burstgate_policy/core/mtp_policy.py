"""Decides for each pairing whether speculation pays, from profiled bursts, and goes on doubting it.

Owns the verdict of one pairing; every lane of that pairing shares it. A verdict expires, is challenged
with growing waits and is demoted by drift, but it only changes by a whole new measurement, and rules
until then. A forced policy neither profiles nor has anything to persist. Time comes in as an argument,
in seconds since the epoch. Knows nothing of lanes or storage.
"""

from dataclasses import replace

from burstgate_policy.core import stages
from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.drift import DriftWatch
from burstgate_policy.core.evidence import traffic_kinds, weigh
from burstgate_policy.core.hint import Hint
from burstgate_policy.core.places import Places
from burstgate_policy.core.profile import Profile, ProfileSample
from burstgate_policy.core.stages import Forced, Profiling, Settled, Stage, Static
from burstgate_policy.core.starvation import NoRound, Starvation
from burstgate_policy.core.types import Evidence, Pin, PolicyKey, Situation, Snapshot, State, StepRecord, Verdict


class MtpPolicy:
    """The verdict of one pairing."""

    __slots__ = (
        "_config",
        "_drift",
        "_pin",
        "_places",
        "_probe_steps_left",
        "_stage",
        "_starvation",
        "_static_default",
        "_to_persist",
        "campaign",
        "key",
        "version",
    )

    def __init__(
        self, key: PolicyKey, stage: Stage, *, static_default: bool, config: CoreConfig, version: int = 1
    ) -> None:
        self.key = key
        self.version = version
        """Increases with every change."""
        self.campaign = 0
        """Number of the measurement under way; bursts of an earlier one do not belong to it."""
        self._stage = stage
        self._static_default = static_default
        self._config = config
        self._pin: Pin | None = None
        self._to_persist = False
        self._drift: DriftWatch | None = None
        self._starvation = Starvation()
        self._places = Places(static_default=static_default, config=config.verdict)
        self._probe_steps_left = self._probe_steps()

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
        now_s: float,
    ) -> "MtpPolicy":
        """The policy of a pairing that has just been opened; a hint of another key is ignored."""
        stage: Stage
        version = 1
        if force is not None:
            stage = Forced(force)
        elif not adaptive:
            stage = Static(static_default)
        elif hint is not None and hint.key == key:
            stage, version = stages.from_hint(hint, now_s, config.verdict), hint.version
        else:
            stage = Profiling(Profile())
        return cls(key, stage, static_default=static_default, config=config, version=version)

    @property
    def stage(self) -> Stage:
        """The state, as one of its four types, as of the last time that was told."""
        return self._stage

    @property
    def static_default(self) -> bool:
        """What the static gate answers for this pairing."""
        return self._static_default

    def advance(self, now_s: float) -> None:
        """Lets time pass: pins and verdicts expire, challenges begin."""
        stage = stages.at_time(self._stage, now_s, self._config.verdict)
        if stage is not self._stage:
            self._begin(stage)
        if self._pin is not None and self.active_pin(now_s) is None:
            self.unpin()

    def active_pin(self, now_s: float) -> Pin | None:
        """The pin that holds now."""
        pin = self._pin
        return None if pin is None or (pin.expires_at is not None and now_s >= pin.expires_at) else pin

    def ruling(self, settled: Settled, situation: Situation, now_s: float) -> tuple[Verdict, str]:
        """What rules a situation and why: its own batch width and depth if they know enough, else the verdict."""
        place = self._places.verdict(situation, now_s)
        if place is None or place.verdict is settled.verdict:
            return settled.verdict, settled.explanation
        return place.verdict, f"at this batch width and depth {place.explanation}, whatever the pairing does elsewhere"

    def pin(self, pin: Pin) -> None:
        """Takes a person's decision; it replaces an earlier one and rules above all but an operator's force."""
        self._pin = pin
        self.version += 1

    def unpin(self) -> bool:
        """Takes the pin back; says whether there was one."""
        if self._pin is None:
            return False
        self._pin = None
        self.version += 1
        return True

    def reset(self) -> None:
        """Forgets what was measured: the pairing is profiled again. Force, pin and static gate stay."""
        if not isinstance(self._stage, Forced | Static):
            self._to_persist = False
            self._places.clear()
            self._begin(Profiling(Profile()))

    def adopt(self, hint: Hint, now_s: float) -> bool:
        """Takes what another policy of this pairing settled, if it settled later; says whether it did.

        Either way the version moves past the hint's, so that what is persisted next counts as newer.
        """
        stage = self._stage
        if hint.key != self.key or isinstance(stage, Forced | Static):
            return False
        own = stage.held if isinstance(stage, Profiling) else stage
        self.version = max(self.version, hint.version + 1)
        if own is not None and not own.starved_because and (hint.settled_at_s or 0.0) <= own.settled_at_s:
            return False
        self._to_persist, self._drift = False, None
        self._starvation.reset()
        self._change(stages.from_hint(hint, now_s, self._config.verdict))
        return True

    def record(self, sample: ProfileSample, now_s: float) -> None:
        """Takes a profiled burst; the last one needed settles, confirms or overturns the verdict."""
        if sample.rounds >= 1:
            self.note_measurable()
        match self._stage:
            case Profiling(profile, held, why):
                self._places.add(sample, now_s)
                profile = self._grown(profile, sample, now_s)
                if not self._settle_if_enough(profile, held, now_s):
                    self._change(Profiling(profile, held, why))
            case Settled(challenge=Profile() as profile) as settled:
                self._places.add(sample, now_s)
                profile = self._grown(profile, sample, now_s)
                if not self._settle_if_enough(profile, settled, now_s):
                    self._change(replace(settled, challenge=profile))
            case Forced() | Static() | Settled():
                pass

    def note_round(self, step: StepRecord, now_s: float) -> None:
        """Takes a round that ran under the verdict; drift that lasts sends the pairing back to profiling."""
        stage, drift = self._stage, self._drift
        if drift is None or not isinstance(stage, Settled) or now_s < stage.drift_armed_at_s:
            return
        drifted = drift.note(step)
        if drifted:
            self._places.clear()
            self._begin(Profiling(Profile(), stage, drifted))

    def doubt(self, now_s: float) -> None:
        """Takes that a lane measures speculation ahead where the verdict declines: it is challenged now."""
        stage = self._stage
        if isinstance(stage, Settled) and stage.challenge is None and now_s >= stage.drift_armed_at_s:
            self._begin(replace(stage, challenge=Profile()))

    def note_no_round(self, why: NoRound, now_s: float) -> None:
        """Takes a burst that ran no round although one was to be measured; too many in a row end profiling."""
        stage = self._stage
        if not isinstance(stage, Profiling) and not (isinstance(stage, Settled) and stage.challenge is not None):
            return
        self._starvation.note(why)
        config = self._config.verdict
        if self._starvation.total < config.starved_bursts:
            if self._starvation.total == self._starved_from():
                self.version += 1
            return
        because = self._starvation.sentence()
        self._starvation.reset()
        self._change(stages.starve(stage, because, static_default=self._static_default, now_s=now_s, config=config))

    def note_measurable(self) -> None:
        """A round is being measured: profiling does not starve."""
        if self._starvation.total:
            if self._starvation.total >= self._starved_from():
                self.version += 1
            self._starvation.reset()

    def claim_probe_steps(self, wanted: int) -> int:
        """Takes plain probe steps out of the measurement's allowance, at most those that are left.

        Lanes profile at the same time; without a common allowance each would slow its own text down.
        """
        granted = min(max(wanted, 0), self._probe_steps_left)
        self._probe_steps_left -= granted
        return granted

    def take_settled(self) -> Hint | None:
        """The hint to persist, once after every measurement of its own that settled or confirmed a verdict."""
        hint = self.hint() if self._to_persist else None
        self._to_persist = False
        return hint

    def hint(self) -> Hint | None:
        """The verdict as it is remembered; None unless it rests on a measurement."""
        stage = self._stage
        if not isinstance(stage, Settled) or stage.samples < 1 or stage.evidence is None:
            return None
        return Hint(
            key=self.key,
            verdict=stage.verdict,
            acceptance_rate=stage.acceptance_rate,
            samples=stage.samples,
            evidence=stage.evidence,
            settled_at_s=stage.settled_at_s,
            expires_at_s=stage.expires_at_s,
            version=self.version,
        )

    def snapshot(self, now_s: float) -> Snapshot:
        """What the policy holds at a time; asking changes nothing."""
        config = self._config.verdict
        state, verdict, enabled = State.FORCED, Verdict.UNSPECIFIED, False
        acceptance_rate: float | None = None
        samples, speedup, from_hint = 0, None, False
        evidence: Evidence | None = None
        expires_at = rechallenge_at = None
        starved_because = self._starvation.sentence() if self._starvation.total >= self._starved_from() else ""
        match stages.at_time(self._stage, now_s, config):
            case Forced(enabled):
                explanation = f"an operator forces speculation {'on' if enabled else 'off'}"
            case Static(enabled):
                state = State.STATIC
                explanation = f"adaptive profiling is off; the static gate answers {'on' if enabled else 'off'}"
            case Profiling(profile, held, why):
                state, enabled = State.PROFILING, held is None or held.verdict is Verdict.ENABLE
                acceptance_rate, samples = profile.acceptance_rate, profile.samples
                evidence = weigh(profile, config).evidence if samples else None
                explanation = f"measuring: {self._progress(profile)}"
                if held is not None:
                    explanation += f"; {why}, and until then it rules as before: {stages.answer(held.verdict)}"
            case Settled() as settled:
                state, verdict, enabled = State.SETTLED, settled.verdict, settled.verdict is Verdict.ENABLE
                acceptance_rate, samples, evidence = settled.acceptance_rate, settled.samples, settled.evidence
                speedup, from_hint, explanation = settled.speedup, settled.from_hint, settled.explanation
                expires_at, rechallenge_at = settled.expires_at_s, settled.rechallenge_at_s
                starved_because = starved_because or settled.starved_because
                explanation = "; ".join([explanation, *self._places.unlike(verdict, now_s)])
                if settled.challenge is not None:
                    explanation += f"; being challenged, {self._progress(settled.challenge)}"
        pin = self.active_pin(now_s)
        if pin is not None and state is not State.FORCED:
            enabled = pin.speculate
            explanation = f"{stages.pinned(pin)}; measured so far: {explanation}"
        return Snapshot(
            key=self.key,
            state=state,
            verdict=verdict,
            speculation_enabled=enabled,
            acceptance_rate=acceptance_rate,
            samples=samples,
            samples_required=config.samples_required,
            speedup=speedup,
            static_default=self._static_default,
            key_hash=self.key.hash,
            from_hint=from_hint,
            explanation=explanation,
            evidence=evidence,
            version=self.version,
            expires_at=expires_at,
            rechallenge_at=rechallenge_at,
            pin=pin,
            starved_because=starved_because,
        )

    def _grown(self, profile: Profile, sample: ProfileSample, now_s: float) -> Profile:
        return profile.with_sample(sample, probe_means_kept=self._config.verdict.probe_means_kept, now_s=now_s)

    def _settle_if_enough(self, profile: Profile, held: Settled | None, now_s: float) -> bool:
        config = self._config.verdict
        if not stages.enough(profile, traffic_kinds(profile, config), config):
            return False
        settled = stages.settle(profile, held=held, static_default=self._static_default, now_s=now_s, config=config)
        self._change(settled)
        if settled.evidence is None or (held is not None and settled.evidence is held.evidence):
            return True  # The times were unusable: nothing new is known.
        if held is not None and settled.verdict is not held.verdict:
            # What overturned the verdict is not to be weighed against what it overturned.
            self._places.clear()
            for burst in profile.bursts:
                self._places.add(burst, now_s)
        self._drift = None
        if settled.verdict is Verdict.ENABLE:
            self._drift = DriftWatch(profile.bursts, settled.evidence, self._config.drift, config)
        self._to_persist = True
        return True

    def _begin(self, stage: Stage) -> None:
        """Enters a stage in which a new measurement starts."""
        self._change(stage)
        self.campaign += 1
        self._probe_steps_left = self._probe_steps()
        self._starvation.reset()

    def _change(self, stage: Stage) -> None:
        self._stage = stage
        self.version += 1

    def _probe_steps(self) -> int:
        return self._config.verdict.samples_required * self._config.verdict.probe_steps

    def _starved_from(self) -> int:
        """Bursts without a round from which a reader is told."""
        return max(self._config.verdict.starved_bursts // 8, 1)

    def _progress(self, profile: Profile) -> str:
        config = self._config.verdict
        done = f"{profile.samples} of {config.samples_required} bursts profiled"
        if profile.samples < config.samples_required:
            return done
        if profile.rounds < config.rounds_required:
            return f"{done}, {profile.rounds} of {config.rounds_required} rounds"
        if traffic_kinds(profile, config) >= config.kinds_required or profile.samples >= config.patience_samples:
            return (
                f"{profile.samples} bursts profiled, and they hold both answers; "
                f"the static gate decides if that is still so at {config.vague_samples} bursts"
            )
        return (
            f"{profile.samples} bursts profiled, all of one kind of traffic; "
            f"it settles at another kind or at {config.patience_samples} bursts"
        )

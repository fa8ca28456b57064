"""The stages of a pairing's policy, and how one follows from another.

Values and pure functions: a stage is replaced, never changed. What is measured is judged here; who asks
for measurements, and what is persisted, is the policy's business.
"""

from dataclasses import dataclass, replace

from burstgate_policy.core import estimate
from burstgate_policy.core.evidence import Weighed, weigh
from burstgate_policy.core.hint import Hint
from burstgate_policy.core.profile import Profile
from burstgate_policy.core.types import Evidence, Pin, Verdict
from burstgate_policy.core.verdict_config import VerdictConfig


@dataclass(frozen=True, slots=True)
class Forced:
    """An operator decides."""

    enabled: bool


@dataclass(frozen=True, slots=True)
class Static:
    """Adaptive profiling is off: the static gate alone decides."""

    enabled: bool


@dataclass(frozen=True, slots=True)
class Settled:
    """The verdict stands."""

    verdict: Verdict
    acceptance_rate: float
    samples: int
    speedup: float | None
    from_hint: bool
    explanation: str
    evidence: Evidence | None
    settled_at_s: float
    expires_at_s: float
    rechallenge_at_s: float
    wait_s: float
    """Between the last measurement and the next challenge."""
    drift_armed_at_s: float
    """Drift before this is left to the next challenge, so that one drift cannot demote twice in a row."""
    contradictions: int = 0
    """Measurements in a row that spoke against the verdict without being sure."""
    challenge: Profile | None = None
    """What the challenge under way has measured; None while none is."""
    starved_because: str = ""


@dataclass(frozen=True, slots=True)
class Profiling:
    """Bursts are being measured."""

    profile: Profile
    held: Settled | None = None
    """A verdict that does not stand any more but rules until there is another, so that nobody waits
    for the measurement; None before the first."""
    why: str = ""
    """Why it does not stand any more."""


Stage = Forced | Static | Profiling | Settled


def at_time(stage: Stage, now_s: float, config: VerdictConfig) -> Stage:
    """The stage that time alone makes of one."""
    if not isinstance(stage, Settled):
        return stage
    if _due(stage.expires_at_s, now_s, config.ttl_s):
        return Profiling(Profile(), replace(stage, challenge=None), "the verdict is too old to stand")
    if stage.challenge is None and _due(stage.rechallenge_at_s, now_s, config.rechallenge_limit_s):
        return replace(stage, challenge=Profile())
    return stage


def from_hint(hint: Hint, now_s: float, config: VerdictConfig) -> Settled:
    """The verdict as it was remembered; what it rests on and when it expires come with it."""
    settled_at_s = now_s if hint.settled_at_s is None else min(hint.settled_at_s, now_s)
    longest_s = settled_at_s + config.ttl_s
    weak = hint.evidence is not None and hint.evidence.traffic_kinds < config.kinds_required
    wait_s = _afforded(_first_wait_s(config, weak=weak), hint.verdict, hint.evidence, config)
    return Settled(
        verdict=hint.verdict,
        acceptance_rate=hint.acceptance_rate,
        samples=hint.samples,
        speedup=None,
        from_hint=True,
        explanation=(
            f"{answer(hint.verdict)}: an earlier profile of {hint.samples} bursts said so, "
            f"with {hint.acceptance_rate:.0%} of the drafts accepted"
        ),
        evidence=hint.evidence,
        settled_at_s=settled_at_s,
        expires_at_s=longest_s if hint.expires_at_s is None else min(hint.expires_at_s, longest_s),
        rechallenge_at_s=now_s + wait_s,
        wait_s=wait_s,
        drift_armed_at_s=now_s,
    )


def enough(profile: Profile, traffic_kinds: int, config: VerdictConfig) -> bool:
    """Whether a profile can carry a verdict."""
    return (
        profile.samples >= config.samples_required
        and profile.rounds >= config.rounds_required
        and (traffic_kinds >= config.kinds_required or profile.samples >= config.patience_samples)
        and (profile.samples >= config.vague_samples or not _vague(weigh(profile, config), config))
    )


def settle(
    profile: Profile, *, held: Settled | None, static_default: bool, now_s: float, config: VerdictConfig
) -> Settled:
    """The verdict of a profile; a held one is only overruled clearly or repeatedly."""
    weighed = weigh(profile, config)
    vague = _vague(weighed, config)
    if (weighed.speedup is None or vague) and held is not None:
        return _put_off(held, held.wait_s, now_s, config)
    evidence = weighed.evidence

    def verdict_at(speedup: float | None) -> Verdict:
        zone = estimate.classify(speedup, enable_at=config.enable_at, decline_at=config.decline_at)
        return estimate.resolve(zone, static_default=static_default)

    verdict = verdict_at(None if vague else weighed.speedup)
    sure = weighed.speedup is not None and (
        verdict_at(evidence.speedup_low) is verdict is verdict_at(evidence.speedup_high)
    )
    explanation = _explain(weighed, profile, verdict, config, vague=vague)
    wait_s = _first_wait_s(config, weak=not sure or evidence.traffic_kinds < config.kinds_required)
    contradictions = 0
    if held is not None and verdict is held.verdict:
        wait_s = _longer_wait_s(held.wait_s, config)
    elif held is not None:
        contradictions = held.contradictions + 1
        if sure or contradictions >= config.contradictions_to_change:
            contradictions = 0
        else:
            wait_s, verdict = held.wait_s, held.verdict
            explanation = f"{answer(verdict)}, as before: {_doubt(evidence, contradictions, config)}"
    wait_s = _afforded(wait_s, verdict, evidence, config)
    return Settled(
        verdict=verdict,
        acceptance_rate=round(profile.acceptance_rate or 0.0, 2),
        samples=profile.samples,
        speedup=weighed.speedup,
        from_hint=False,
        explanation=explanation,
        evidence=evidence,
        settled_at_s=now_s,
        expires_at_s=now_s + config.ttl_s,
        rechallenge_at_s=now_s + wait_s,
        wait_s=wait_s,
        drift_armed_at_s=now_s if held is None else now_s + config.rechallenge_first_s,
        contradictions=contradictions,
    )


def starve(
    stage: Profiling | Settled, because: str, *, static_default: bool, now_s: float, config: VerdictConfig
) -> Settled:
    """Gives up measuring for now: a verdict that rules goes on ruling, else the static gate decides."""
    held = stage if isinstance(stage, Settled) else stage.held
    if held is not None:
        return replace(_put_off(held, _longer_wait_s(held.wait_s, config), now_s, config), starved_because=because)
    profile = stage.profile if isinstance(stage, Profiling) else Profile()
    verdict = Verdict.ENABLE if static_default else Verdict.DECLINE
    return Settled(
        verdict=verdict,
        acceptance_rate=round(profile.acceptance_rate or 0.0, 2),
        samples=profile.samples,
        speedup=None,
        from_hint=False,
        explanation=f"the static gate answers that {answer(verdict)}, because profiling does not progress: {because}",
        evidence=None,
        settled_at_s=now_s,
        expires_at_s=now_s + config.ttl_s,
        rechallenge_at_s=now_s + config.rechallenge_first_s,
        wait_s=config.rechallenge_first_s,
        drift_armed_at_s=now_s,
        starved_because=because,
    )


def answer(verdict: Verdict) -> str:
    """A verdict in words."""
    return "speculation pays" if verdict is Verdict.ENABLE else "speculation does not pay"


def pinned(pin: Pin) -> str:
    """A pin in words."""
    return f"{pin.author} pinned speculation {'on' if pin.speculate else 'off'}: {pin.reason}"


def _put_off(held: Settled, wait_s: float, now_s: float, config: VerdictConfig) -> Settled:
    """A verdict that could not be measured again: an old one is still better than none."""
    # What had expired rules on and is tried again soon, not at once.
    expires_at_s = now_s + config.ttl_s if _due(held.expires_at_s, now_s, config.ttl_s) else held.expires_at_s
    return replace(
        held,
        challenge=None,
        wait_s=wait_s,
        expires_at_s=expires_at_s,
        rechallenge_at_s=now_s + wait_s,
        drift_armed_at_s=now_s + config.rechallenge_first_s,
    )


def _due(at_s: float, now_s: float, longest_s: float) -> bool:
    """Whether an instant has come.

    One twice as far ahead as the longest wait was set before the clock jumped back by that much; a clock
    that is put right by less only lengthens the wait.
    """
    return now_s >= at_s or at_s - now_s > 2.0 * longest_s


def _first_wait_s(config: VerdictConfig, *, weak: bool) -> float:
    return config.rechallenge_first_s * (config.weak_factor if weak else 1.0)


def _longer_wait_s(wait_s: float, config: VerdictConfig) -> float:
    return min(wait_s * 2.0, config.rechallenge_limit_s)


def _afforded(wait_s: float, verdict: Verdict, evidence: Evidence | None, config: VerdictConfig) -> float:
    """A wait that keeps what such a measurement loses within its share of the time."""
    if evidence is None or evidence.speedup <= 0.0:
        return wait_s
    if verdict is Verdict.ENABLE:
        lost_ms = evidence.plain_steps * evidence.plain_step_ms * (1.0 - 1.0 / evidence.speedup)
    else:
        lost_ms = evidence.rounds * evidence.round_ms * (1.0 - evidence.speedup)
    return max(wait_s, min(lost_ms / 1000.0 / config.challenge_budget, config.rechallenge_limit_s))


def _vague(weighed: Weighed, config: VerdictConfig) -> bool:
    """Whether the interval reaches from one verdict to the other: whatever its middle is, nothing was measured."""
    evidence = weighed.evidence
    return (
        config.interval_rules
        and weighed.speedup is not None
        and evidence.speedup_low <= config.decline_at
        and evidence.speedup_high >= config.enable_at
    )


def _explain(weighed: Weighed, profile: Profile, verdict: Verdict, config: VerdictConfig, *, vague: bool) -> str:
    says = answer(verdict)
    if weighed.speedup is None:
        return f"{says}: the profile gave no usable times, so the static gate decided"
    evidence = weighed.evidence
    found = f"{profile.accepted_len + 1.0:.2f} tokens a row in a round of {evidence.round_ms:.1f} ms"
    if weighed.measured:
        found += f" against one in a plain step of {evidence.plain_step_ms:.1f} ms"
    else:
        found += " (no plain step was measured, so this is an upper bound)"
    found += f" is a speed-up of {_interval(evidence)}"
    if vague:
        return f"{says}: {found}, which decides nothing, so the static gate does"
    zone = estimate.classify(weighed.speedup, enable_at=config.enable_at, decline_at=config.decline_at)
    if zone is estimate.Zone.BETWEEN:
        found += f", and between {config.decline_at:g} and {config.enable_at:g} the static gate decides"
    return f"{says}: {found}"


def _doubt(evidence: Evidence, contradictions: int, config: VerdictConfig) -> str:
    return (
        f"the new measurement, a speed-up of {_interval(evidence)}, speaks against it but not clearly; "
        f"{contradictions} of the {config.contradictions_to_change} in a row that would change it"
    )


def _interval(evidence: Evidence) -> str:
    return (
        f"{evidence.speedup:.2f} ({evidence.speedup_low:.2f} to {evidence.speedup_high:.2f} "
        f"at {evidence.confidence:.0%} confidence)"
    )

"""The policies that are compared: the default, the plain gate, and two simple rules.

Each is driven as the decode service drives a lane. The lanes are real: nothing of the decision core is
replaced. Always plain and always K need no policy; they are computed.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

from burstgate_bench.gate.play import START_S, Policy
from burstgate_bench.gate.world import World
from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.gate_config import GateConfig
from burstgate_policy.core.hint import Hint
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.static_gate import static_gate
from burstgate_policy.core.types import BurstOutcome, Evidence, Grant, Mode, Reason, Situation, Verdict
from burstgate_policy.core.verdict_config import VerdictConfig

_FIXED_WIDTH = 4
"""K of the arms that do not choose one."""
_BURST_STEPS = 8


def default_policy(world: World) -> Policy:
    """A lane with the default settings, of a pairing that nothing is known of."""
    return _lane(world, CoreConfig(), hint=None)


def seed_gate(world: World) -> Policy:
    """The plain gate alone, at K=4: an enabling verdict stands in front of it and is never doubted."""
    never_s = 1e12
    verdict = replace(VerdictConfig.seed(), ttl_s=never_s, rechallenge_first_s=never_s, rechallenge_limit_s=never_s)
    evidence = Evidence(
        rounds=32,
        plain_steps=8,
        traffic_kinds=2,
        speedup=2.0,
        speedup_low=2.0,
        speedup_high=2.0,
        confidence=1.0,
        spread=0.0,
        first_seen_at=START_S,
        last_seen_at=START_S,
        round_ms=1.0,
        plain_step_ms=1.0,
    )
    hint = Hint(
        key=world.key,
        verdict=Verdict.ENABLE,
        acceptance_rate=0.7,
        samples=4,
        evidence=evidence,
        settled_at_s=START_S,
        expires_at_s=START_S + never_s,
        version=1,
    )
    config = CoreConfig(gate=GateConfig.seed(), verdict=verdict, entry_pin_tokens=8)
    lane = _lane(world, config, hint=hint)
    return _FixedWidth(lane, _FIXED_WIDTH)


def fixed(draft_width: int) -> Callable[[World], Policy]:
    """One K throughout; 1 is plain."""
    return lambda _world: FixedMode(draft_width)


class FixedMode:
    """Always the same mode."""

    def __init__(self, draft_width: int) -> None:
        self._draft_width = draft_width

    def decide(self, situation: Situation, now_s: float) -> Grant:
        """The mode."""
        return _grant(self._draft_width)

    def observe(self, outcome: BurstOutcome, now_s: float) -> None:
        """Nothing to learn."""


class AcceptanceRule:
    """Speculates while the acceptance rate stays above a threshold; blind to cost."""

    def __init__(self, threshold: float = 0.6, weight: float = 0.1, probe_every_steps: int = 64) -> None:
        self._threshold = threshold
        self._weight = weight
        self._probe_every = probe_every_steps
        self._rate: float | None = None
        self._plain_steps = 0

    def decide(self, situation: Situation, now_s: float) -> Grant:
        """A round while the rate is high or unknown, else plain steps with a burst of rounds in between."""
        if self._rate is None or self._rate > self._threshold:
            return _grant(_FIXED_WIDTH)
        if self._plain_steps >= self._probe_every:
            self._plain_steps = 0
            return _grant(_FIXED_WIDTH, Mode.PROBE_SPECULATIVE)
        return _grant(1)

    def observe(self, outcome: BurstOutcome, now_s: float) -> None:
        """Takes acceptance of rounds and counts plain steps."""
        for step in outcome.steps:
            if step.proposed:
                rate = sum(step.accepted_by_position) / step.proposed
                self._rate = rate if self._rate is None else self._rate + self._weight * (rate - self._rate)
            elif not step.excluded:
                self._plain_steps += 1


class Bandit:
    """UCB over plain and every K; the reward is tokens per millisecond, over the best mean so far."""

    def __init__(self, cap: int, exploration: float = 0.1) -> None:
        self._cap = cap
        self._exploration = exploration
        self._pulls = [0.0] * (cap + 1)
        """In bursts."""
        self._means = [0.0] * (cap + 1)

    def decide(self, situation: Situation, now_s: float) -> Grant:
        """The mode with the highest upper bound; each is tried once first."""
        total, best = sum(self._pulls), max(self._means) or 1.0

        def bound(k: int) -> float:
            pulls = self._pulls[k]
            if pulls == 0.0:
                return math.inf
            return self._means[k] / best + self._exploration * math.sqrt(2.0 * math.log(max(total, 1.0)) / pulls)

        return _grant(max(range(1, self._cap + 1), key=bound))

    def observe(self, outcome: BurstOutcome, now_s: float) -> None:
        """Takes the reward of what ran."""
        steps = [step for step in outcome.steps if not step.excluded]
        for k, some in itertools.groupby(steps, key=lambda step: step.draft_width):
            ran = list(some)
            pulls = len(ran) / _BURST_STEPS
            reward = sum(step.emitted for step in ran) / sum(step.wall_ms for step in ran)
            self._pulls[k] += pulls
            self._means[k] += (reward - self._means[k]) * pulls / self._pulls[k]


ARMS: dict[str, Callable[[World], Policy]] = {
    "default": default_policy,
    "seed": seed_gate,
    "acceptance": lambda _world: AcceptanceRule(),
    "bandit": lambda world: Bandit(world.cap),
}


class _FixedWidth:
    """A policy that decides only whether to speculate: every round has one K."""

    def __init__(self, policy: Policy, draft_width: int) -> None:
        self._policy = policy
        self._draft_width = draft_width

    def decide(self, situation: Situation, now_s: float) -> Grant:
        grant = self._policy.decide(situation, now_s)
        return replace(grant, draft_width=self._draft_width) if grant.mode.speculates else grant

    def observe(self, outcome: BurstOutcome, now_s: float) -> None:
        self._policy.observe(outcome, now_s)


def _lane(world: World, config: CoreConfig, *, hint: Hint | None) -> Lane:
    policy = MtpPolicy.start(
        world.key,
        force=None,
        adaptive=True,
        static_default=static_gate(world.capabilities, world.cells).enabled,
        hint=hint,
        config=config,
        now_s=START_S,
    )
    return Lane(policy, world.capabilities, world.cells, config)


def _grant(draft_width: int, mode: Mode | None = None) -> Grant:
    if mode is None:
        mode = Mode.SPECULATIVE if draft_width > 1 else Mode.PLAIN
    reason = Reason.STATIC_ON if draft_width > 1 else Reason.STATIC_OFF
    return Grant(mode, draft_width, _BURST_STEPS, reason, "")

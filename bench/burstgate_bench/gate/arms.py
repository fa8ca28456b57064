"""The policies that are compared: the default, the plain gate, and two simple rules.

Each is driven as the decode service drives a lane. The lane and the gate are those of the decision core, and
nothing of them is replaced. Always plain and always K need no policy; they are computed.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

from burstgate_bench.gate.play import START_S, Policy
from burstgate_bench.gate.world import World
from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.eligibility import pinned_steps
from burstgate_policy.core.gate import MtpGate
from burstgate_policy.core.gate_config import GateConfig
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.static_gate import static_gate
from burstgate_policy.core.types import BurstOutcome, Grant, Mode, Reason, Situation

_FIXED_WIDTH = 4
"""K of the arms that do not choose one."""
_BURST_STEPS = 8
_PIN_TOKENS = 8
"""Opening of an answer that the plain gate has verified whatever it believes."""


def default_policy(world: World) -> Lane:
    """A lane with the default settings, of a pairing that nothing is known of."""
    config = CoreConfig()
    policy = MtpPolicy.start(
        world.key,
        force=None,
        adaptive=True,
        static_default=static_gate(world.capabilities, world.cells).enabled,
        hint=None,
        config=config,
        now_s=START_S,
    )
    return Lane(policy, world.capabilities, world.cells, config)


class PlainGate:
    """The plain gate alone, without a verdict in front of it, at K=4; the opening of an answer is verified."""

    def __init__(self) -> None:
        self._gate = MtpGate(GateConfig.seed())

    def decide(self, situation: Situation, now_s: float) -> Grant:
        """As the gate wants it, as long as it cannot want anything else."""
        outlook = self._gate.outlook(replace(situation, max_draft_width=_FIXED_WIDTH))
        pinned = pinned_steps(situation.min_emitted_tokens, _PIN_TOKENS)
        if not outlook.speculates and pinned > 0:
            return _grant(_FIXED_WIDTH, Mode.PINNED, pinned)
        if outlook.speculates:
            mode = Mode.PROBE_SPECULATIVE if outlook.probing else Mode.SPECULATIVE
            return _grant(_FIXED_WIDTH, mode, outlook.steps)
        return _grant(1, Mode.PROBE_PLAIN if outlook.probing else Mode.PLAIN, outlook.steps)

    def observe(self, outcome: BurstOutcome, now_s: float) -> None:
        """Takes every step; the gate leaves out those that count for neither mode."""
        for step in outcome.steps:
            self._gate.observe(step)


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
    "seed": lambda _world: PlainGate(),
    "acceptance": lambda _world: AcceptanceRule(),
    "bandit": lambda world: Bandit(world.cap),
}


def _grant(draft_width: int, mode: Mode | None = None, steps: int = _BURST_STEPS) -> Grant:
    if mode is None:
        mode = Mode.SPECULATIVE if draft_width > 1 else Mode.PLAIN
    reason = Reason.STATIC_ON if draft_width > 1 else Reason.STATIC_OFF
    return Grant(mode, draft_width, min(steps, _BURST_STEPS), reason, "")

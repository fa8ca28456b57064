"""Small worlds whose arithmetic fits in the head."""

import numpy as np

from burstgate_bench.gate.costs import StepCosts
from burstgate_bench.gate.machine import Machine, Slowdown
from burstgate_bench.gate.texts import Kind
from burstgate_bench.gate.world import Text, World
from burstgate_policy.core.types import BurstOutcome, Grant, Mode, Reason, Situation

PLAIN_MS = 10.0
ROUND_MS = 20.0


def flat_costs() -> StepCosts:
    """A plain step takes 10 ms, a round of any K 20 ms, at every width and depth."""
    return StepCosts("flat", verify=lambda _width, k: ROUND_MS if k > 1 else PLAIN_MS, draft_ms=0.0, overhead_ms=0.0)


def flat_world(tokens: int, *, kept: int, texts: int = 1, slots: int = 1, slowdown: Slowdown | None = None) -> World:
    """Every round keeps `kept` drafts, as far as it drafts; no noise."""
    text = Text(context_tokens=50, accepted=bytes([kept]) * tokens, kinds=bytes(tokens))
    return World(
        name="flat",
        kinds=(Kind("flat", 0.5, 1.0),),
        texts=(text,) * texts,
        slots=slots,
        visitors=(),
        machine=Machine(flat_costs(), [1.0], slowdown),
        cells=(),
        cap=8,
    )


class Script:
    """Grants that follow a list of modes, a burst each; the last one goes on. Keeps what it is told."""

    def __init__(self, *grants: tuple[Mode, int], burst_steps: int = 8) -> None:
        self.grants = list(grants)
        self.burst_steps = burst_steps
        self.situations: list[Situation] = []
        self.outcomes: list[BurstOutcome] = []
        self.times: list[float] = []

    def decide(self, situation: Situation, now_s: float) -> Grant:
        mode, draft_width = self.grants[min(len(self.situations), len(self.grants) - 1)]
        self.situations.append(situation)
        self.times.append(now_s)
        return Grant(mode, draft_width, self.burst_steps, Reason.STATIC_ON, "")

    def observe(self, outcome: BurstOutcome, now_s: float) -> None:
        self.outcomes.append(outcome)


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)

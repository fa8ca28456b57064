"""A simulated machine: step costs, and all that makes a step slower or faster than its cost.

Noise is keyed by the number of the step and slow changes by busy time, so that two policies that run as
many steps meet the same machine. Knows nothing of text.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from burstgate_bench.gate.costs import StepCosts
from burstgate_bench.gate.texts import Random

Floats = NDArray[np.float64]
NOISE_STEPS = 1 << 15
"""Steps after which the noise repeats: longer than most workloads."""
_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Slow changes by busy time, as steps of `every_ms`; the last element repeats from the start."""

    every_ms: float
    whole: list[float]
    """Factor of every step."""
    rows: list[float]
    """Factor of what a round costs beyond a plain step: a machine without power left slows wide verifies most."""

    def at(self, busy_ms: float) -> tuple[float, float]:
        """Both factors at a busy time."""
        index = int(busy_ms / self.every_ms) % len(self.whole)
        return self.whole[index], self.rows[index]


@dataclass(frozen=True, slots=True)
class Machine:
    """What runs the steps."""

    costs: StepCosts
    noise: list[float]
    """Factor of each step's time, by the number of the step, from the start again after the last."""
    slowdown: Slowdown | None = None
    compile_factors: dict[tuple[int, int], float] = field(default_factory=dict)
    """By width bucket and K: what the first such step costs in its own time; absent where nothing compiles."""

    def fresh(self) -> "Running":
        """This machine before its first step."""
        return Running(self)


class Running:
    """A machine in use: what it has compiled, how many steps it ran and for how long it was busy."""

    __slots__ = ("_compile", "_costs", "_machine", "_noise", "_slowdown", "busy_ms", "steps")

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._costs = machine.costs
        self._noise = machine.noise
        self._slowdown = machine.slowdown
        self._compile = dict(machine.compile_factors)
        self.busy_ms = 0.0
        self.steps = 0

    def rows_factor(self) -> float:
        """Present factor of what a round costs beyond a plain step."""
        return 1.0 if self._slowdown is None else self._slowdown.at(self.busy_ms)[1]

    def step(self, width: int, draft_width: int, depth_tokens: int) -> tuple[float, float, float]:
        """Runs a step; draft, verify and overhead time."""
        costs = self._costs.at(width)
        draft_ms = costs.draft_ms[draft_width]
        verify_ms = costs.verify_ms[draft_width] + costs.depth_ms[draft_width] * depth_tokens
        overhead_ms = costs.overhead_ms
        factor = self._noise[self.steps % len(self._noise)]
        if self._slowdown is not None:
            whole, rows = self._slowdown.at(self.busy_ms)
            factor *= whole
            if rows != 1.0 and draft_width > 1:
                plain_ms = costs.verify_ms[1] + costs.depth_ms[1] * depth_tokens
                draft_ms *= rows
                verify_ms = plain_ms + (verify_ms - plain_ms) * rows
        if self._compile:
            factor *= self._compile.pop((bucket(width), draft_width), 1.0)
        draft_ms *= factor
        verify_ms *= factor
        overhead_ms *= factor
        self.steps += 1
        self.busy_ms += draft_ms + verify_ms + overhead_ms
        return draft_ms, verify_ms, overhead_ms

    def run(
        self, widths: NDArray[np.int64], draft_widths: NDArray[np.int64], base_ms: Floats, plain_ms: Floats
    ) -> Floats:
        """Runs many steps whose costs without noise are known; busy time after each of them.

        `base_ms` and `plain_ms`: the steps at their K and as plain steps. All of one shape.
        """
        count = len(base_ms)
        noise = np.array(self._noise)
        factor = noise[(self.steps + np.arange(count)) % len(noise)]
        if self._compile:
            factor = factor.copy()
            for (width_bucket, draft_width), slow in list(self._compile.items()):
                buckets = 1 << np.ceil(np.log2(widths)).astype(np.int64)
                hits = np.flatnonzero((buckets == width_bucket) & (draft_widths == draft_width))
                if len(hits):
                    factor[hits[0]] *= slow
                    del self._compile[width_bucket, draft_width]
        self.steps += count
        if self._slowdown is None:
            ends: Floats = self.busy_ms + np.cumsum(base_ms * factor)
        else:
            plain, beyond = (plain_ms * factor).tolist(), ((base_ms - plain_ms) * factor).tolist()
            ends = _run_slowed(self._slowdown, self.busy_ms, plain, beyond)
        if count:
            self.busy_ms = float(ends[-1])
        return ends


def bucket(width: int) -> int:
    """The power of two that a batch width is padded to."""
    return 1 << (width - 1).bit_length()


def iid_noise(random: Random, deviation: float) -> list[float]:
    """Lognormal factors of mean 1, each step by itself."""
    return _lognormal(random.standard_normal(NOISE_STEPS), deviation)


def correlated_noise(random: Random, deviation: float, steps: float = 16.0) -> list[float]:
    """Lognormal factors of mean 1 that follow each other: an AR(1) process that forgets in `steps`."""
    keep = np.exp(-1.0 / steps)
    fresh = random.standard_normal(NOISE_STEPS) * np.sqrt(1.0 - keep * keep)
    # Within a block x[t] = keep^t * cumsum(fresh[t] * keep^-t); the blocks are then chained.
    powers = keep ** np.arange(1, _BLOCK + 1)
    blocks = np.cumsum(fresh.reshape(-1, _BLOCK) / powers, axis=1) * powers
    last = float(random.standard_normal())
    for number in range(len(blocks)):
        blocks[number] += last * powers
        last = float(blocks[number, -1])
    return _lognormal(blocks.ravel(), deviation)


def with_stalls(random: Random, noise: list[float], share: float, factor: float) -> list[float]:
    """This noise with a share of the steps `factor` times slower: a neighbour, a page fault, a collector."""
    stalled = random.random(len(noise)) < share
    return [float(slow) for slow in np.where(stalled, np.array(noise) * factor, np.array(noise))]


def drifting(random: Random, plain_ms: float) -> Slowdown:
    """Slow waves of the whole machine and of what rows cost, a few thousand plain steps long."""
    steps = 12_000
    at = np.arange(0, steps, 8.0)
    waves = [random.uniform(2000.0, 6000.0) for _ in range(2)]
    phases = random.uniform(0.0, 2.0 * np.pi, 2)
    whole = 1.0 + random.uniform(0.05, 0.25) * np.sin(2.0 * np.pi * at / waves[0] + phases[0])
    rows = np.exp(random.uniform(0.2, 0.7) * np.sin(2.0 * np.pi * at / waves[1] + phases[1]))
    return Slowdown(plain_ms * 8.0, whole.tolist(), rows.tolist())


def throttling(random: Random, plain_ms: float) -> Slowdown:
    """Runs cool at first, then loses speed, wide verifies most, and wins some back now and then."""
    steps = 12_000
    at = np.arange(0, steps, 8.0)
    first, ramp, period = random.uniform(500.0, 2500.0), random.uniform(50.0, 500.0), random.uniform(1500.0, 4000.0)
    hot = np.clip((at - first) / ramp, 0.0, 1.0)
    cooled = 0.5 * (((at - first) % period) > 0.7 * period)
    heat = np.where(at > first + ramp, hot - cooled, hot)
    whole = 1.0 + random.uniform(0.1, 0.6) * heat
    rows = 1.0 + random.uniform(0.0, 1.5) * heat
    return Slowdown(plain_ms * 8.0, whole.tolist(), rows.tolist())


def compiling(random: Random, low: float = 5.0, high: float = 15.0) -> dict[tuple[int, int], float]:
    """Factors of the first step of each width bucket and K."""
    return {(1 << b, k): float(random.uniform(low, high)) for b in range(6) for k in range(1, 9)}


def _run_slowed(slowdown: Slowdown, busy_ms: float, plain_ms: list[float], beyond_ms: list[float]) -> Floats:
    whole, rows, count, every_ms = slowdown.whole, slowdown.rows, len(slowdown.whole), slowdown.every_ms
    ends = []
    for plain, beyond in zip(plain_ms, beyond_ms, strict=True):
        index = int(busy_ms / every_ms) % count
        busy_ms += whole[index] * (plain + beyond * rows[index])
        ends.append(busy_ms)
    return np.array(ends)


def _lognormal(normal: Floats, deviation: float) -> list[float]:
    factors: list[float] = np.exp(deviation * normal - 0.5 * deviation * deviation).tolist()
    return factors

"""Every constant of the decision core in one frozen value, each with the reason for its size.

A constant out of range is refused when the value is built, with its name and what is allowed, so
nothing below has to check again.
"""

from dataclasses import dataclass, field
from typing import Literal

from burstgate_policy.core.gate_config import GateConfig, SeedGateConfig
from burstgate_policy.core.verdict_config import DriftConfig, VerdictConfig


@dataclass(frozen=True, slots=True)
class DepthConfig:
    """How the draft width of a burst is chosen."""

    decay: float = 0.87
    """What an observation is still worth one round later: a memory of about 8 rounds, so the width
    follows a text that turns from list to prose, or back, within about 20 rounds."""
    first_rate: float = 0.75
    """Acceptance of the first draft before anything was seen: what trained drafters reach on mixed text."""
    prior_weight: float = 8.0
    """Observations that the expectation "as good as the position before" is worth."""
    lane_weight: float = 4.0
    """Observations that everything the lane ever saw at a position is worth."""
    shared_cost_weight: float = 0.1
    """Share of a step's surprise taken by the cost of all draft widths: a busy machine slows them all."""
    own_cost_weight: float = 0.05
    """Share taken by the cost of its own width: larger, or a lane would never leave a width that its
    table prices far too low."""
    own_cost_fade: float = 0.998
    """What the own correction of a width that does not run is worth one step later: forgotten after some
    thousand steps, so a width that was slow once is looked at again."""
    stale_steps: int = 256
    """Steps of a regime after which a width that did not run there is measured as if for the first time:
    machines and their neighbours change."""
    plain_moved: float = 0.05
    """Share of the cost of a plain step that rounds alone may have added before it is a guess: rounds compute and
    plain steps wait for memory, so that a neighbour or a hot machine may slow one and not the other."""
    first_steps: int = 3
    """First steps of a width in a regime that vote together with what was expected of them: the middle
    one is taken, so one that compiles does not count and a wrong table is noticed at once."""
    cost_clip: float = 1.3
    """A step counts for at most this many times what was expected, either way: one stall must not decide."""
    keep_margin: float = 0.01
    """A new width must promise this much more than the present one: changing shapes is not free."""
    explore_every: int = 32
    """Decisions between two trials of a neighbouring width."""
    explore_first: int = 8
    """The same while a width was never measured where the lane runs, and might be better than it looks."""
    trial_hope: float = 1.15
    """How much better than expected a width that never ran may be: where first uses compile, a try is dear."""
    explore_limit: int = 512
    """The interval doubles up to this while trials change nothing."""
    blind_width: int = 4
    """Width before any cost is known: loses little anywhere that speculation pays at all."""
    objective: Literal["throughput", "latency"] = "throughput"
    """What a round is judged by: the tokens of all its rows, or those of its slowest row."""

    def __post_init__(self) -> None:
        _at_least(1, explore_every=self.explore_every, explore_limit=self.explore_limit)
        _at_least(1, explore_first=self.explore_first, trial_hope=self.trial_hope)
        _at_least(1, stale_steps=self.stale_steps)
        _at_least(1, first_steps=self.first_steps)
        _at_least(2, blind_width=self.blind_width)
        _at_least(0, prior_weight=self.prior_weight, lane_weight=self.lane_weight)
        _at_least(0, keep_margin=self.keep_margin, plain_moved=self.plain_moved)
        if not self.cost_clip > 1.0:
            raise ValueError(f"cost_clip must be above 1, not {self.cost_clip}")
        for name in ("decay", "first_rate", "shared_cost_weight", "own_cost_weight", "own_cost_fade"):
            value = getattr(self, name)
            if not 0.0 < value < 1.0:
                raise ValueError(f"{name} must lie in (0, 1), not {value}")


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """Everything a lane needs to know besides its pairing."""

    gate: GateConfig | SeedGateConfig = field(default_factory=GateConfig)
    verdict: VerdictConfig = field(default_factory=VerdictConfig)
    drift: DriftConfig = field(default_factory=DriftConfig)
    depth: DepthConfig = field(default_factory=DepthConfig)
    burst_steps: int = 8
    """Most steps of a grant: half a gate window, so that a grant never outlives what it was based on."""
    entry_pin_tokens: int = 0
    """Tokens at the opening of an answer that a verify decides even while plain runs; 0 disables it. Where
    one-row and many-row forwards break near-ties differently, openings steer everything after; the text does
    not depend on the mode here, so it would only cost."""

    def __post_init__(self) -> None:
        _at_least(1, burst_steps=self.burst_steps)
        _at_least(0, entry_pin_tokens=self.entry_pin_tokens)

    @classmethod
    def seed(cls) -> "CoreConfig":
        """The plain rules throughout: of the verdict, of the gate, and eight pinned tokens."""
        return cls(gate=GateConfig.seed(), verdict=VerdictConfig.seed(), entry_pin_tokens=8)


def _at_least(least: float, **values: float) -> None:
    for name, value in values.items():
        if not value >= least:
            raise ValueError(f"{name} must be at least {least:g}, not {value}")

"""The constants of the throughput gate, each with the reason for its value."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class GateConfig:
    """Constants of the gate.

    The defaults repair what is known to be weak in the plain rules; `seed()` is the plain rules.
    """

    window_steps: int = 16
    """Steps of one throughput window: long enough to average host jitter, short enough to probe cheaply."""
    ewma_weight: float = 0.3
    """Weight of a new window in an estimate: a memory of about three windows."""
    margin: float = 0.05
    """The other mode must lead by this fraction: smaller leads are measurement noise."""
    deviation_weight: float = 0.5
    """Share of both modes' spread that the lead must also exceed: a noisy machine needs a clearer lead."""
    dwell_windows: int = 2
    """Independent measurements that must agree before the mode changes: one slow window is an accident."""
    reprobe_tokens: int = 256
    """Plain tokens between two measurements of speculation while plain runs."""
    refresh_tokens: int = 1024
    """Tokens of a row between two measurements of plain decoding while speculation runs: in
    tokens, because a reader waits for tokens."""
    first_probe_tokens: int = 128
    """As refresh_tokens, until plain has been measured once: a mode that loses is otherwise not noticed
    for a thousand tokens, longer than most answers."""
    reprobe_scales_with_width: bool = True
    """Count the plain re-probe interval by row too: counted over the batch, two thirds of all steps
    of a wide batch would be probes of a mode that was just found to lose."""
    backoff_limit: int = 4
    """Each probe that confirms the present mode doubles the interval to the next up to this factor. At
    eight tokens a round an interval in tokens is short in steps: without it a tenth of them were probes."""
    depth_factor: int = 2
    """A context that grew or shrank by this factor is another regime: attention costs have moved."""
    depth_floor_tokens: int = 512
    """Contexts below this cost the same; both depths are raised to it before they are compared."""
    settle_steps: int = 8
    """Steps left out after a width change: joining rows still start their drafters."""
    min_partial_steps: int = 8
    """A window cut short by a due probe counts from this many steps on, else it is thrown away."""
    one_regime_per_comparison: bool = True
    """Never compare or average across regimes: a depth change also drops the open window and the counted
    losses, a width change also ends a running probe, and both estimates must be fresh to be compared."""

    def __post_init__(self) -> None:
        if not 0.0 < self.ewma_weight <= 1.0:
            raise ValueError(f"ewma_weight must lie in (0, 1], not {self.ewma_weight}")
        least = {
            "settle_steps": 0,
            "min_partial_steps": 0,
            "deviation_weight": 0,
            "margin": 0,
            "depth_factor": 2,
        }
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "ewma_weight" and not value >= least.get(field.name, 0 if field.type is bool else 1):
                raise ValueError(f"{field.name} must be at least {least.get(field.name, 1)}, not {value}")

    @classmethod
    def seed(cls) -> "GateConfig":
        """The plain rules of step-wise throughput arbitration, without the repairs."""
        return cls(
            first_probe_tokens=1024,
            reprobe_scales_with_width=False,
            backoff_limit=1,
            settle_steps=16,
            one_regime_per_comparison=False,
        )

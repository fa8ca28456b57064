"""The constants of the gates, each with the reason for its value."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class SeedGateConfig:
    """Constants of the plain rules: windows of throughput, compared with a margin and a dwell."""

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
    """Tokens of a row between two measurements of plain decoding while speculation runs."""
    depth_factor: int = 2
    """A context that grew or shrank by this factor is another regime: attention costs have moved."""
    depth_floor_tokens: int = 512
    """Contexts below this cost the same; both depths are raised to it before they are compared."""
    settle_steps: int = 16
    """Steps left out after a width change: joining rows still start their drafters."""
    min_partial_steps: int = 8
    """A window cut short by a due probe counts from this many steps on, else it is thrown away."""

    def __post_init__(self) -> None:
        _check(self, least={"settle_steps": 0, "min_partial_steps": 0, "depth_factor": 2, "margin": 0.0})


@dataclass(frozen=True, slots=True)
class GateConfig:
    """Constants of the arbiter. Times are counted in plain steps of the regime, waits in steps that ran there."""

    window_steps: int = 16
    """Rounds that are judged together: long enough to average host jitter, short enough to react."""
    margin: float = 0.02
    """Speculation may be slower by this fraction before it counts as losing, and must lead by it to win:
    smaller differences are not worth a change of mode."""
    bank_steps: float = 48.0
    """Most plain steps of gain that speculation may lose again before it is left. Text that drafts well and
    badly in turn is best speculated on throughout; without a bank each bad stretch would end it, and the
    good one after it would run plain."""
    leave_steps: float = 12.0
    """Plain steps that speculation must at least have lost beyond its bank: one bad window costs less."""
    patience: float = 2.25
    """How much luck is allowed for: a walk without drift of variance v a round, credited the margin m a round,
    reaches patience * v / m with a chance of about exp(-2 * patience)."""
    leave_at_most: float = 64.0
    """Plain steps beyond which no luck is an excuse."""
    variance_weight: float = 0.1
    """Weight of a new window in that variance: a memory of about four windows."""
    probe_steps: int = 4
    """Plain steps of a probe: what a plain step costs has no luck in it, so few tell."""
    look_rounds: int = 4
    """Rounds between two looks at a probe of rounds."""
    sure_rounds: int = 16
    """Rounds, those of earlier probes included, before speculation can be entered."""
    probe_rounds: int = 32
    """Longest probe of rounds: it only lasts while it does not lose, so it costs nothing."""
    probe_loss: float = 3.0
    """Plain steps that a probe of rounds may lose before it ends."""
    deviations: float = 2.75
    """Standard errors by which rounds must lead before speculation is entered: it is looked often, and equal
    modes must not change places."""
    pool_weight: float = 0.7
    """What earlier probes of rounds still count for beside the newest: they sampled the text elsewhere."""
    first_probe_steps: int = 16
    """Steps in a regime before the mode that was never measured there is: early at every width and depth."""
    refresh_steps: int = 256
    """Rounds between two measurements of plain decoding while speculation runs, unless its price is in doubt before."""
    reprobe_steps: int = 256
    """Plain steps between two measurements of speculation while plain runs."""
    declined_factor: int = 2
    """A verdict that declines is worth this many waits: its own rounds have just shown that it loses."""
    backoff_limit: int = 2
    """Each probe that confirms the present mode doubles the wait for the next up to this factor."""
    probe_budget: float = 0.01
    """Share of time that probes of rounds may lose: a probe that lost more makes the next one wait longer."""
    probe_share: float = 0.03
    """Share of steps that probes of rounds may take."""
    longest_wait_steps: int = 4096
    """Most that such a loss may make it wait: a world that changed is noticed some time."""
    stall_factor: float = 2.0
    """A step counts for at most this many times its expected cost: one stall or compilation must not decide,
    and what it is compared with is priced without any."""
    settle_steps: int = 1
    """Steps left out after a change of mode or width: the drafter catches up and pipelines refill in them."""
    alike_within: float = 0.2
    """Regimes whose promises differ by no more than this are alike: a text that stopped paying in one does
    not pay in the other."""
    expiry_steps: int = 8192
    """Steps of the lane after which what a regime believed is only a guess: texts and machines change."""
    regret_ceiling: float = 0.03
    """Share of time lost against the best single mode beyond which nothing is explored and the cheaper mode
    is held; 0 holds always."""
    regret_memory_steps: int = 4096
    """Steps that this share looks back on."""

    def __post_init__(self) -> None:
        zeros = ("settle_steps", "regret_ceiling", "bank_steps", "leave_steps", "probe_loss")
        _check(self, least=dict.fromkeys(zeros, 0.0))

    @classmethod
    def seed(cls) -> SeedGateConfig:
        """The plain rules of step-wise throughput arbitration."""
        return SeedGateConfig()


_SHARES = {
    "ewma_weight",
    "deviation_weight",
    "variance_weight",
    "pool_weight",
    "probe_budget",
    "probe_share",
    "margin",
    "alike_within",
}
_FROM_ZERO = {"deviation_weight", "deviations", "patience", "pool_weight"}


def _check(config: SeedGateConfig | GateConfig, *, least: dict[str, float]) -> None:
    for field in fields(config):
        name, value = field.name, getattr(config, field.name)
        if name in _SHARES and not (0.0 <= value <= 1.0 and (value > 0.0 or name in _FROM_ZERO)):
            raise ValueError(f"{name} must lie in (0, 1], not {value}")
        lowest = least.get(name, 0.0 if name in _SHARES or name in _FROM_ZERO else 1.0)
        if not lowest <= value < float("inf"):
            raise ValueError(f"{name} must be at least {lowest:g} and finite, not {value}")

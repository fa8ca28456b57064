"""The constants of the verdict, each with the reason for its value."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class VerdictConfig:
    """When a pairing settles, to what, and how long that holds.

    The defaults ask for more than the plain rules do; `seed()` is the plain rules.
    """

    samples_required: int = 4
    """Profiled bursts before a verdict: enough to see past a cold start, few enough to be over soon."""
    rounds_required: int = 32
    """Rounds before a verdict, whatever the bursts: an error near 0.2 tokens a round. Four answers of
    one round each would otherwise decide for all traffic."""
    kinds_required: int = 2
    """Kinds of traffic before a verdict: four bursts of one odd prompt are one observation."""
    patience_samples: int = 8
    """Bursts after which a single kind of traffic settles too: many lanes only ever see one."""
    stall_factor: float = 2.0
    """A burst's rounds count for at most so many times the median burst's cost: drafting wider or deeper
    moves a burst's cost by half, and what goes beyond twice is the machine's doing, not the pairing's."""
    vague_samples: int = 16
    """Bursts up to which a measurement goes on while its interval reaches from one verdict to the other; after
    them the static gate decides. A machine that stalls at random says nothing, and soon or never stops."""
    interval_rules: bool = True
    """Whether such an interval keeps the point estimate from deciding."""
    kind_band: float = 0.4
    """Shares of kept drafts further apart than this are two kinds of traffic: chance moves the share of
    eight rounds by a tenth, lists and prose differ by half."""
    kind_depth_floor_tokens: int = 512
    """Contexts below this cost the same; above it every doubling is another kind of traffic."""
    places_kept: int = 16
    """Batch widths and depths with evidence of their own: more than a lane visits in a week."""
    enable_at: float = 1.5
    """Measured speed-up from which speculation is on whatever the static gate says."""
    decline_at: float = 1.0
    """Measured speed-up up to which it is off; between the two the static gate decides."""
    probe_steps: int = 2
    """Plain steps of a profiled burst: one could be an outlier, more would cost time for nothing."""
    probe_means_kept: int = 8
    """Most bursts whose plain means enter the median: twice the bursts a verdict needs."""
    rounds: int = 8
    """Rounds of a profiled burst: four bursts give the 32 rounds that a verdict needs."""
    rest_steps: int = 32
    """Plain steps between two measured bursts of a declined pairing: a challenge takes a fifth of the
    steps while it runs, so that nobody waits noticeably for it."""
    ttl_s: float = 7 * 86_400.0
    """Age at which a verdict stops holding: drivers, neighbours and traffic change within weeks."""
    rechallenge_first_s: float = 600.0
    """Wait before a new verdict is measured again: long against the few seconds a challenge takes."""
    rechallenge_limit_s: float = 6 * 3600.0
    """The wait doubles with every confirmation up to this: four challenges a day cost nothing."""
    challenge_budget: float = 0.01
    """Share of time that challenges may lose: one that lost more makes the next one wait longer, up to that
    limit. Where a step takes a second, ten minutes are not long against a challenge."""
    weak_factor: float = 0.5
    """What the first wait shrinks to when the evidence is weak: one kind of traffic, or an interval
    that reaches over to the other verdict."""
    contradictions_to_change: int = 3
    """Challenges in a row that must contradict a verdict when none does so with its whole interval; one
    that does suffices. At a threshold half of all measurements contradict, and nothing may flap."""
    starved_bursts: int = 256
    """Bursts in a row without a round after which profiling gives up for now: some minutes of decoding."""

    def __post_init__(self) -> None:
        if not 0.0 < self.decline_at < self.enable_at < float("inf"):
            raise ValueError(
                f"decline_at must be above 0 and below enable_at, not {self.decline_at} and {self.enable_at}"
            )
        for name in ("weak_factor", "challenge_budget"):
            value = getattr(self, name)
            if not 0.0 < value <= 1.0:
                raise ValueError(f"{name} must lie in (0, 1], not {value}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int and not value >= 1:
                raise ValueError(f"{field.name} must be at least 1, not {value}")
            if field.name.endswith("_s") and not 0.0 < value < float("inf"):
                raise ValueError(f"{field.name} must be above 0 and finite, not {value}")
        if not self.stall_factor >= 1.0:
            raise ValueError(f"stall_factor must be at least 1, not {self.stall_factor}")
        if not self.kind_band > 0.0:
            raise ValueError(f"kind_band must be above 0, not {self.kind_band}")
        if self.patience_samples < self.samples_required:
            raise ValueError(
                f"patience_samples must be at least samples_required ({self.samples_required}), "
                f"not {self.patience_samples}"
            )
        if self.rechallenge_limit_s < self.rechallenge_first_s:
            raise ValueError(
                f"rechallenge_limit_s must be at least rechallenge_first_s ({self.rechallenge_first_s:g}), "
                f"not {self.rechallenge_limit_s}"
            )

    @classmethod
    def seed(cls) -> "VerdictConfig":
        """The plain rules: four bursts settle, of whatever traffic and however few rounds."""
        return cls(
            rounds_required=1, kinds_required=1, interval_rules=False, stall_factor=float("inf"), challenge_budget=1.0
        )


@dataclass(frozen=True, slots=True)
class DriftConfig:
    """When a verdict no longer fits what its rounds deliver."""

    block_rounds: int = 8
    """Rounds that are judged together: judging each would cost a hundredth of a millisecond a burst for nothing."""
    weight: float = 0.25
    """Weight of a new block in the running means: a memory of about 32 rounds, as many as a verdict needs."""
    margin: float = 0.25
    """How far past the ends of the verdict's interval the yield must be: texts differ from one another."""
    sustained_rounds: int = 64
    """Rounds beyond the margin, less those within it: a paragraph that drafts badly is not drift."""
    baseline_rounds: int = 16
    """Rounds that the verdict must have seen at a batch width and depth to judge there."""
    cost_clip: float = 4.0
    """A block counts for at most this many times the running cost: one stall must not look like drift."""

    def __post_init__(self) -> None:
        if not 0.0 < self.weight < 1.0:
            raise ValueError(f"weight must lie in (0, 1), not {self.weight}")
        if not 0.0 <= self.margin < 1.0:
            raise ValueError(f"margin must lie in [0, 1), not {self.margin}")
        if not self.cost_clip > 1.0:
            raise ValueError(f"cost_clip must be above 1, not {self.cost_clip}")
        for name in ("block_rounds", "sustained_rounds", "baseline_rounds"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

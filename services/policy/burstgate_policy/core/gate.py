"""The plain rules: arbitrates step by step by the throughput of windows, as the seed of this project did.

Owns the two throughput estimates of a lane and the choice between them. The mode changes only in
`_arbitrate`, only on estimates of both modes, and only after the other mode has won by the margin
on several independent measurements. A window never mixes width buckets. The gate knows nothing of
drafts, costs of parts, verdicts or clients: a step is its wall time and the tokens it delivered. It is the
baseline that the arbiter is measured against.
"""

import enum
import math
from dataclasses import dataclass

from burstgate_policy.core.gate_config import SeedGateConfig
from burstgate_policy.core.gating import Because, Outlook
from burstgate_policy.core.types import Mode, Situation, StepRecord

# Where nobody says how wide a verify may be; wider ones only make grants shorter than they need be.
_WIDEST_VERIFY = 64


class GateStep(enum.Enum):
    """The step the gate wants next."""

    PLAIN = "plain"
    VERIFY = "verify"


class GateDecision(enum.Enum):
    """A change of mode, handed out once."""

    SPECULATE = "speculate"
    DECODE_PLAIN = "decode plain"


class GateMode(enum.Enum):
    """The mode that the gate believes faster."""

    SPECULATIVE = "speculative"
    PLAIN = "plain"

    # Members are singletons and keys of a dictionary that every step reads; hashing names takes longer.
    __hash__ = object.__hash__

    @property
    def step(self) -> GateStep:
        """The step that runs in this mode."""
        return GateStep.VERIFY if self is GateMode.SPECULATIVE else GateStep.PLAIN

    @property
    def other(self) -> "GateMode":
        """The mode this one is compared with."""
        return GateMode.PLAIN if self is GateMode.SPECULATIVE else GateMode.SPECULATIVE


class GatePhase(enum.Enum):
    """Whether the gate runs its mode or measures the other one for a window."""

    RUNNING = "running"
    PROBING = "probing"


@dataclass(frozen=True, slots=True)
class GateSnapshot:
    """What the gate believes."""

    mode: GateMode
    phase: GatePhase
    plain_tokens_per_second: float | None
    speculative_tokens_per_second: float | None
    plain_stale: bool
    speculative_stale: bool
    losses: int
    window_steps: int
    depth_regime_changes: int


class MtpGate:
    """The gate of one lane; lives as long as the lane, across requests and batch changes."""

    __slots__ = (
        "_config",
        "_decision",
        "_depth_regime_changes",
        "_estimates",
        "_losses",
        "_lost_to_window",
        "_measured_depth_tokens",
        "_mode",
        "_observed_depth_tokens",
        "_phase",
        "_settle_left",
        "_since_event_tokens",
        "_width_bucket",
        "_window",
    )

    def __init__(self, config: SeedGateConfig) -> None:
        self._config = config
        self._mode = GateMode.SPECULATIVE
        self._phase = GatePhase.RUNNING
        self._estimates = {GateMode.SPECULATIVE: _Estimate(), GateMode.PLAIN: _Estimate()}
        self._window = _Window()
        self._since_event_tokens = 0
        self._losses = 0
        self._lost_to_window = 0
        self._settle_left = 0
        self._width_bucket = 0
        self._observed_depth_tokens = 0
        self._measured_depth_tokens = 0
        self._depth_regime_changes = 0
        self._decision: GateDecision | None = None

    @property
    def plain_tps(self) -> float | None:
        """Delivered throughput of plain decoding; None before its first window."""
        return self.tokens_per_second(GateMode.PLAIN)

    @property
    def speculative_tps(self) -> float | None:
        """Delivered throughput of speculation; None before its first window."""
        return self.tokens_per_second(GateMode.SPECULATIVE)

    @property
    def overrules(self) -> bool:
        """The verdict comes first; this gate only chooses where speculation is enabled."""
        return False

    def lean(self, situation: Situation, *, speculates: bool, doubtful: bool) -> None:
        """Starts speculating whatever the verdict is."""

    def hold(self, *, speculates: bool | None) -> None:
        """Knows no ceiling of regret."""

    def outlook(self, situation: Situation) -> Outlook:
        """What to run next; `max_draft_width` bounds the tokens of a step."""
        steps = self.steps_until_change(situation.width, situation.max_draft_width or _WIDEST_VERIFY)
        verifies = self.next_step() is GateStep.VERIFY
        return Outlook(verifies, probing=self.probing, steps=steps, because=Because.MEASURED)

    def observe(self, step: StepRecord) -> None:
        """Takes a step; one that it did not ask for would count for the wrong mode and is left out."""
        if step.excluded or step.mode is Mode.PINNED or step.mode is Mode.UNSPECIFIED:
            return
        self.maybe_remeasure(step.depth_tokens)
        self.note_depth(step.depth_tokens)
        if self.next_step() is GateStep.VERIFY:
            if step.mode.speculates:
                self.record_verify(step.wall_ms, step.emitted, step.width)
        elif not step.mode.speculates:
            self.record_plain(step.wall_ms, step.width)

    def next_step(self) -> GateStep:
        """The step to run next; asking changes nothing."""
        return self._runs().step

    @property
    def probing(self) -> bool:
        """Whether the next step only measures the mode the gate does not believe in."""
        return self._phase is GatePhase.PROBING

    def take_decision(self) -> GateDecision | None:
        """The last change of mode, once."""
        decision, self._decision = self._decision, None
        return decision

    def snapshot(self) -> GateSnapshot:
        """What the gate believes now."""
        plain, speculative = self._estimates[GateMode.PLAIN], self._estimates[GateMode.SPECULATIVE]
        return GateSnapshot(
            mode=self._mode,
            phase=self._phase,
            plain_tokens_per_second=plain.tps,
            speculative_tokens_per_second=speculative.tps,
            plain_stale=plain.stale,
            speculative_stale=speculative.stale,
            losses=self._losses,
            window_steps=self._window.steps,
            depth_regime_changes=self._depth_regime_changes,
        )

    def tokens_per_second(self, mode: GateMode) -> float | None:
        """Delivered throughput of a mode; None before its first window."""
        return self._estimates[mode].tps

    def note_depth(self, depth_tokens: int) -> None:
        """Takes the context depth that the next switch will be measured at."""
        self._observed_depth_tokens = depth_tokens

    def maybe_remeasure(self, depth_tokens: int) -> bool:
        """Starts a new depth regime if the context grew or shrank enough; says whether it did."""
        config = self._config
        measured = max(self._measured_depth_tokens, config.depth_floor_tokens)
        live = max(depth_tokens, config.depth_floor_tokens)
        if live < measured * config.depth_factor and measured < live * config.depth_factor:
            return False
        self._mark_stale()
        self._measured_depth_tokens = depth_tokens
        self._depth_regime_changes += 1
        self._make_probe_due()
        return True

    def record_plain(self, wall_ms: float, width: int) -> None:
        """Takes a plain step: it delivered one token for each of its rows."""
        self._record(wall_ms, max(width, 1), max(width, 1))

    def record_verify(self, wall_ms: float, emitted: int, width: int) -> None:
        """Takes a round; one that emitted nothing (a drafter starting) still counts as one token."""
        self._record(wall_ms, max(emitted, 1), max(width, 1))

    def steps_until_change(self, width: int, max_draft_width: int) -> int:
        """How many steps may run before the answer of next_step can be another one: never too many.

        Holds while the width stays in its bucket and the context in its depth regime. At least 1.
        """
        config = self._config
        bucket = _bucket(max(width, 1))
        if self._width_bucket not in {0, bucket}:
            return config.settle_steps + config.window_steps
        to_window_end = config.window_steps - self._window.steps
        if not self.probing and not self._estimates[self._mode].stale:
            step_tokens = bucket * (max(max_draft_width, 1) if self._runs() is GateMode.SPECULATIVE else 1)
            missing_tokens = self._event_interval_tokens(bucket) - self._since_event_tokens
            to_window_end = min(to_window_end, -(-missing_tokens // step_tokens))
        return self._settle_left + max(to_window_end, 1)

    def _runs(self) -> GateMode:
        return self._mode if self._phase is GatePhase.RUNNING else self._mode.other

    def _record(self, wall_ms: float, tokens: int, width: int) -> None:
        if not (math.isfinite(wall_ms) and wall_ms > 0.0):
            return  # No clock gives this; a window with it would be worth nothing.
        self._note_width(width)
        if self._settle_left > 0:
            self._settle_left -= 1
            return
        window = self._window
        window.tokens += tokens
        window.wall_ms += wall_ms
        window.steps += 1
        if self.probing:
            if window.steps >= self._config.window_steps:
                self._close_probe()
            return
        self._since_event_tokens += tokens
        probe_due = self._since_event_tokens >= self._event_interval_tokens(self._width_bucket)
        # A stale estimate is replaced by the next window whole, so that window must be a full one.
        if window.steps >= self._config.window_steps or (probe_due and not self._estimates[self._mode].stale):
            self._close_running(probe_due=probe_due)

    def _close_running(self, *, probe_due: bool) -> None:
        window = self._window
        if window.steps >= min(self._config.min_partial_steps, self._config.window_steps):
            estimate = self._estimates[self._mode]
            estimate.fold(window, self._config.ewma_weight, replace=estimate.stale)
        self._window = _Window()
        if probe_due:
            self._phase = GatePhase.PROBING
        else:
            self._arbitrate()

    def _close_probe(self) -> None:
        self._estimates[self._mode.other].fold(self._window, self._config.ewma_weight, replace=True)
        self._window = _Window()
        self._phase = GatePhase.RUNNING
        # Before arbitration, which may make a confirming probe due at once.
        self._since_event_tokens = 0
        self._arbitrate()

    def _arbitrate(self) -> None:
        config = self._config
        current, other = self._estimates[self._mode], self._estimates[self._mode.other]
        if current.tps is None or other.tps is None or other.stale:
            return
        spread = config.deviation_weight * (current.deviation + other.deviation)
        if not other.tps > current.tps + max(config.margin * current.tps, spread):
            self._losses = 0
            return
        if self._losses > 0 and other.windows == self._lost_to_window:
            return  # The same measurement twice is one measurement.
        self._losses += 1
        self._lost_to_window = other.windows
        if self._losses < config.dwell_windows:
            self._make_probe_due()
            return
        self._mode = self._mode.other
        self._losses = 0
        self._since_event_tokens = 0
        self._measured_depth_tokens = self._observed_depth_tokens
        speculates = self._mode is GateMode.SPECULATIVE
        self._decision = GateDecision.SPECULATE if speculates else GateDecision.DECODE_PLAIN

    def _note_width(self, width: int) -> None:
        bucket = _bucket(width)
        if bucket == self._width_bucket:
            return
        first = self._width_bucket == 0
        self._width_bucket = bucket
        if first:
            return
        self._mark_stale()
        self._window = _Window()
        self._losses = 0
        self._settle_left = self._config.settle_steps
        self._make_probe_due()

    def _event_interval_tokens(self, bucket: int) -> int:
        if self._mode is GateMode.PLAIN:
            return self._config.reprobe_tokens
        return self._config.refresh_tokens * max(bucket, 1)

    def _make_probe_due(self) -> None:
        interval = self._event_interval_tokens(self._width_bucket)
        self._since_event_tokens = max(self._since_event_tokens, interval)

    def _mark_stale(self) -> None:
        for estimate in self._estimates.values():
            estimate.stale = True


@dataclass(slots=True)
class _Window:
    tokens: int = 0
    wall_ms: float = 0.0
    steps: int = 0


@dataclass(slots=True)
class _Estimate:
    tps: float | None = None
    deviation: float = 0.0
    stale: bool = False
    windows: int = 0

    def fold(self, window: _Window, weight: float, *, replace: bool) -> None:
        tps = window.tokens / window.wall_ms * 1000.0
        if not math.isfinite(tps):
            return
        if self.tps is None or replace:
            # Blending a baseline that may have drifted would count the drift as noise.
            self.tps = tps
            self.deviation *= 0.5
        else:
            self.tps = (1.0 - weight) * self.tps + weight * tps
            self.deviation = (1.0 - weight) * self.deviation + weight * abs(tps - self.tps)
        self.stale = False
        self.windows += 1


def _bucket(width: int) -> int:
    return 1 << (width - 1).bit_length()

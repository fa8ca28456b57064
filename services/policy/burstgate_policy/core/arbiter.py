"""Arbitrates between plain decoding and speculation by time lost and won, regime by regime.

Every round is priced in plain steps of its own regime: it is worth the plain steps that its tokens would have
taken there, and costs its wall time in such steps. So nothing has to be thrown away when the batch or the
context changes: each regime keeps its window, its mode and its waits, and goes on where it stopped.

While speculation runs, gains fill a bounded bank and losses empty it; speculation is left when the bank is
overdrawn by more than noise explains, and only after plain decoding has been measured anew. While plain
runs, short probes of rounds are priced the same way, and speculation is entered after several in a row show
it ahead. Probes come early where a mode was never measured, then ever more rarely while they confirm, and a
probe that loses time makes the next one wait. Owns modes and probes; costs and acceptance are the depth
controller's. Knows no verdicts beyond what it is told to lean to.
"""

import math
from dataclasses import dataclass, field

from burstgate_policy.core.depth import DepthController
from burstgate_policy.core.gate_config import GateConfig
from burstgate_policy.core.gating import Because, Outlook
from burstgate_policy.core.judged_rounds import JudgedRounds
from burstgate_policy.core.regime import Regime, regime
from burstgate_policy.core.types import Mode, Situation, StepRecord

# No round costs more plain steps than this, whatever a clock says; its square is still a number.
_DEAREST = 1e6


@dataclass(slots=True)
class _Believed:
    """What the arbiter believes of one regime."""

    speculates: bool
    because: Because
    seen_at: int
    wait_steps: int
    probing: bool = False
    since_probe: int = 0
    backoff: int = 1
    probe_left: int = 0
    bank: float = 0.0
    mean: float | None = None
    """What a round usually gains; None before the first window."""
    variance: float = 0.0
    doubted: bool = False
    doubted_at_ms: float = 0.0
    """What a plain step was thought to cost when the window lost."""
    delivered: tuple[float, float] | None = None
    """Running means of what a round emitted and took."""
    told: tuple[bool, bool] | None = None
    judged_at: int = 0
    """Step of the lane at which a measurement last spoke for the mode."""
    window: JudgedRounds = field(default_factory=JudgedRounds)
    """Rounds since the last judgement while speculation runs."""
    probe: JudgedRounds = field(default_factory=JudgedRounds)
    """Rounds of the probe under way while plain runs, or that ran there unasked."""
    pool: JudgedRounds = field(default_factory=JudgedRounds)
    """Rounds of earlier probes."""


class Arbiter:
    """The gate of one lane; lives as long as the lane, across requests and batch changes."""

    __slots__ = (
        "_at",
        "_believed",
        "_config",
        "_depth",
        "_held",
        "_last",
        "_settling",
        "_steps",
        "_unrest",
        "_unrest_at",
        "_width",
    )

    def __init__(self, depth: DepthController, config: GateConfig) -> None:
        self._depth = depth
        self._config = config
        self._believed: dict[Regime, _Believed] = {}
        self._steps = 0
        self._at: Regime | None = None
        self._width = 1
        self._last: tuple[bool, int] | None = None
        """Whether the latest step speculated, and the bucket of its width."""
        self._settling = 0
        """Steps still to be left out; below zero, steps to be judged before others may be left out."""
        self._held: bool | None = None
        self._unrest, self._unrest_at = 0.0, 0
        """Changes of mode by measurement, those long ago counting for less, and the step they were counted at."""

    @property
    def plain_tps(self) -> float | None:
        """Tokens per second of plain decoding in the latest regime; None before it was measured there."""
        if self._at is None or self._depth.measured(self._at, 1) == 0:
            return None
        plain_ms = self._depth.plain_ms(self._at)
        return None if plain_ms is None else self._width * 1000.0 / plain_ms

    @property
    def speculative_tps(self) -> float | None:
        """Tokens per second of speculation in the latest regime; None before its first round there."""
        delivered = None if self._at is None else self._believed[self._at].delivered
        return None if delivered is None else delivered[0] * 1000.0 / delivered[1]

    @property
    def overrules(self) -> bool:
        """Rounds are sampled where a verdict declines, so that a text that drafts well is noticed."""
        return True

    def lean(self, situation: Situation, *, speculates: bool, doubtful: bool) -> None:
        """Takes the verdict for the situation's regime, if nothing was measured there since the last one."""
        believed = self._believe(regime(situation.width, situation.depth_tokens))
        told = speculates, doubtful
        if told == believed.told:
            return
        believed.told = told
        if believed.because is not Because.MEASURED:
            self._tell(believed, speculates=speculates, doubtful=doubtful)

    def hold(self, *, speculates: bool | None) -> None:
        """Holds a mode and stops exploring; None lets go."""
        self._held = speculates

    def outlook(self, situation: Situation) -> Outlook:
        """What to run next in a situation."""
        at = regime(situation.width, situation.depth_tokens)
        believed = self._believe(at)
        config = self._config
        held = self._held
        # Speculation is not held where it was measured to lose: there the account only guesses.
        if held is not None and held <= believed.speculates:
            return Outlook(held, probing=False, steps=config.window_steps, because=Because.HELD)
        runs = believed.speculates != believed.probing
        if believed.probing:
            steps = believed.probe_left if believed.speculates else self._rounds_to_look(believed)
        elif believed.speculates:
            steps = config.window_steps - believed.window.count
        else:
            steps = believed.wait_steps - believed.since_probe
        return Outlook(runs, probing=believed.probing, steps=max(steps, 1), because=believed.because)

    def observe(self, step: StepRecord) -> None:
        """Takes a step that ran, whoever asked for it; its costs are the depth controller's already."""
        mode = step.mode
        if mode is Mode.UNSPECIFIED or not (math.isfinite(step.wall_ms) and step.wall_ms > 0.0):
            return
        self._steps += 1
        at = regime(step.width, step.depth_tokens)
        believed = self._believe(at)
        self._at, self._width = at, max(step.width, 1)
        believed.seen_at = self._steps
        settling = self._settles(mode.speculates, at)
        self._last = mode.speculates, at[0]
        if not mode.speculates:
            self._plain_step(at, believed)
        elif not step.excluded or mode is Mode.PINNED:
            self._round(at, believed, step, settling=settling)

    def _believe(self, at: Regime) -> _Believed:
        believed = self._believed.get(at)
        if at != self._at and self._at is not None:
            return self._arrive(at, self._at)
        if believed is None:
            believed = self._believed[at] = _Believed(True, Because.PROMISED, self._steps, 0)
            self._guess(at, believed)
        elif self._steps - believed.seen_at > self._config.expiry_steps:
            believed.seen_at = self._steps
            believed.since_probe = self._config.refresh_steps * self._config.backoff_limit
            self._guess(at, believed)
        return believed

    def _arrive(self, at: Regime, left: Regime) -> _Believed:
        """The belief of a regime that another one is left for: what was learned there may hold here as well."""
        believed, before = self._believed.get(at), self._believed[left]
        fresh = believed is None or self._steps - believed.seen_at > self._config.expiry_steps
        if believed is None:
            believed = self._believed[at] = _Believed(True, Because.PROMISED, self._steps, 0)
        if fresh:
            self._guess(at, believed)
        learned = (fresh or before.judged_at > believed.judged_at) and before.because is not Because.PROMISED
        if learned and before.speculates != believed.speculates and self._alike(at, left):
            self._enter(believed, speculates=before.speculates)
            believed.because = before.because
        return believed

    def _alike(self, at: Regime, other: Regime) -> bool:
        """Whether costs make so little of a difference that two regimes are judged by the same text."""
        depth = self._depth
        here, there = depth.gains(at, 1 << 16), depth.gains(other, 1 << 16)
        if not here or not there:
            return True
        # What ran in both tells more than promises: a table knows little of a regime that it does not hold.
        ran = [k for k in here if k in there and depth.measured(at, k) and depth.measured(other, k)]
        one, two = (max(gains[k] for k in ran or gains) for gains in (here, there))
        return max(one, two) <= (1.0 + self._config.alike_within) * min(one, two)

    def _guess(self, at: Regime, believed: _Believed) -> None:
        """The mode of a regime that nothing was measured in: as told, or as costs and acceptance promise."""
        believed.bank, believed.mean, believed.variance = 0.0, None, 0.0
        believed.probing = believed.doubted = False
        believed.window, believed.probe, believed.pool = JudgedRounds(), JudgedRounds(), JudgedRounds()
        believed.wait_steps = self._config.first_probe_steps
        believed.told = None
        gains = self._depth.gains(at, 1 << 16)
        believed.because = Because.PROMISED
        believed.speculates = not gains or max(gains.values()) >= 1.0

    def _tell(self, believed: _Believed, *, speculates: bool, doubtful: bool) -> None:
        config = self._config
        if speculates and not believed.speculates and believed.because is Because.PROMISED:
            return  # The pairing pays, but costs say not here.
        if believed.speculates != speculates:
            believed.probing, believed.since_probe, believed.bank = False, 0, 0.0
        believed.speculates, believed.because = speculates, Because.TOLD
        if not speculates:
            believed.backoff = 1 if doubtful else config.declined_factor
            believed.wait_steps = config.first_probe_steps if doubtful else config.reprobe_steps * believed.backoff

    def _settles(self, speculates: bool, at: Regime) -> bool:
        """Whether the next step only takes up what a change left behind."""
        # As many steps are judged after as were left out, so that no flapping can stop the learning.
        if self._settling == 0 and self._last != (speculates, at[0]):
            self._settling = self._config.settle_steps
        if self._settling > 0:
            self._settling = self._settling - 1 or -self._config.settle_steps
            return True
        self._settling = min(self._settling + 1, 0)
        return False

    def _round(self, at: Regime, believed: _Believed, step: StepRecord, *, settling: bool) -> None:
        config = self._config
        rounds = believed.window if believed.speculates else believed.probe
        rounds.count += 1
        plain_ms = self._depth.plain_ms(at)
        if not settling:
            self._rate(believed, step)
            if plain_ms is not None:
                expected_ms = self._depth.step_ms(at, step.draft_width) or math.inf
                wall_ms = min(step.wall_ms, config.stall_factor * expected_ms)
                tokens = min(step.emitted / self._width, float(step.draft_width))
                rounds.add(tokens, min(wall_ms / plain_ms, _DEAREST))
        if believed.speculates:
            believed.since_probe += 1
            if believed.probing and rounds.count >= 2 * config.window_steps:
                # The plain steps that were asked for go elsewhere: nothing may wait for them for ever.
                believed.probing, believed.doubted, believed.since_probe = False, False, 0
                believed.window = JudgedRounds()
            elif rounds.count >= config.window_steps and not believed.probing:
                self._judge_window(at, believed)
        elif rounds.count % config.look_rounds == 0:
            self._judge_probe(believed)

    def _plain_step(self, at: Regime, believed: _Believed) -> None:
        if not believed.speculates:
            believed.since_probe += 1
            if believed.probing:
                if believed.since_probe >= 2 * self._config.window_steps:
                    self._end_probe(believed)  # The rounds that were asked for go elsewhere.
            elif believed.since_probe >= believed.wait_steps:
                self._keep(believed)
                believed.probing, believed.since_probe = True, 0
        elif believed.probing:
            believed.probe_left -= 1
            if believed.probe_left <= 0:
                believed.probing, believed.since_probe = False, 0
                believed.backoff = min(believed.backoff * 2, self._config.backoff_limit)
                if believed.doubted:
                    self._judge_doubt(at, believed)

    def _judge_window(self, at: Regime, believed: _Believed) -> None:
        config, window = self._config, believed.window
        if self._depth.measured(at, 1) < config.probe_steps:
            self._start_plain_probe(believed)
        if not window.judged:
            believed.window = JudgedRounds()
            return
        # Windows tell of luck that lasts longer than a round, rounds of luck that does not.
        mean = window.gain / window.judged
        usual = mean if believed.mean is None else believed.mean
        variance = max(window.variance, window.judged * (mean - usual) ** 2)
        if believed.mean is not None:
            variance = believed.variance + config.variance_weight * (variance - believed.variance)
        believed.variance, believed.mean = variance, usual + config.variance_weight * (mean - usual)
        believed.bank = min(believed.bank + window.gain + config.margin * window.cost, config.bank_steps)
        slack = max(config.margin * window.cost / window.judged, math.ulp(1.0))
        limit = min(max(config.leave_steps, config.patience * believed.variance / slack), config.leave_at_most)
        if believed.bank < -limit:
            believed.doubted, believed.doubted_at_ms = True, self._depth.plain_ms(at) or 0.0
            self._start_plain_probe(believed)
            return
        if believed.bank > 0.0:
            believed.judged_at, believed.because = self._steps, Because.MEASURED
        believed.window = JudgedRounds()
        in_doubt = self._depth.plain_in_doubt(at, abs(window.gain) / window.cost)
        if in_doubt or believed.since_probe >= config.refresh_steps * believed.backoff:
            self._start_plain_probe(believed)

    def _judge_doubt(self, at: Regime, believed: _Believed) -> None:
        """Leaves speculation if its last window loses by the plain cost that was just measured."""
        window, believed.window, believed.doubted = believed.window, JudgedRounds(), False
        plain_ms = self._depth.plain_ms(at)
        price = believed.doubted_at_ms / plain_ms if plain_ms else 1.0
        if window.worth >= (1.0 - self._config.margin) * window.cost * price:
            believed.bank = 0.0
            return
        self._change(believed, speculates=False)

    def _judge_probe(self, believed: _Believed) -> None:
        """Looks at a probe of rounds: it goes on while it loses little and is not sure."""
        config, probe = self._config, believed.probe
        together = probe.plus(believed.pool, config.pool_weight)
        # Modes that have changed places of late cost about the same: a small lead is luck until long shown.
        patience = 1.0 + self._restless()
        leads = together.wins(config.margin, config.deviations, patience=patience, clear=config.alike_within)
        sure = together.judged >= config.sure_rounds and leads
        if not believed.probing:
            if probe.count >= config.sure_rounds:
                self._keep(believed)
                if sure:  # Nobody asked for these rounds, so whether to speculate is for a probe to find out.
                    believed.wait_steps = min(believed.wait_steps, believed.since_probe + 1)
            return
        if sure:
            self._change(believed, speculates=True)
        elif probe.count >= config.probe_rounds or probe.gain < -config.probe_loss:
            self._end_probe(believed)

    def _end_probe(self, believed: _Believed) -> None:
        config, lost = self._config, max(-believed.probe.gain, 0.0)
        by_length = math.ceil(believed.probe.count / config.probe_share)
        self._keep(believed)
        believed.judged_at = self._steps
        believed.because, believed.probing, believed.since_probe = Because.MEASURED, False, 0
        believed.backoff = min(believed.backoff * 2, config.backoff_limit)
        by_loss = min(math.ceil(lost / config.probe_budget), config.longest_wait_steps)
        believed.wait_steps = max(config.reprobe_steps * believed.backoff, by_loss, by_length)

    def _keep(self, believed: _Believed) -> None:
        """Puts the rounds seen while plain runs to those of earlier probes."""
        believed.pool = believed.probe.plus(believed.pool, self._config.pool_weight)
        believed.probe = JudgedRounds()

    def _enter(self, believed: _Believed, *, speculates: bool) -> None:
        believed.judged_at = self._steps
        believed.speculates, believed.because = speculates, Because.MEASURED
        believed.probing, believed.since_probe = False, 0
        believed.bank, believed.backoff = 0.0, 1
        believed.mean, believed.variance = None, 0.0
        believed.wait_steps = self._config.reprobe_steps
        believed.window, believed.probe, believed.pool = JudgedRounds(), JudgedRounds(), JudgedRounds()

    def _change(self, believed: _Believed, *, speculates: bool) -> None:
        """Changes a mode because of what was measured."""
        self._unrest, self._unrest_at = self._restless() + 1.0, self._steps
        self._enter(believed, speculates=speculates)

    def _restless(self) -> float:
        """How often modes have changed of late."""
        return self._unrest * math.exp((self._unrest_at - self._steps) / self._config.expiry_steps)

    def _start_plain_probe(self, believed: _Believed) -> None:
        believed.probing = True
        believed.probe_left = self._config.probe_steps

    def _rounds_to_look(self, believed: _Believed) -> int:
        """Rounds before the probe under way is looked at."""
        return self._config.look_rounds - believed.probe.count % self._config.look_rounds

    def _rate(self, believed: _Believed, step: StepRecord) -> None:
        """Delivered throughput, over about the last window."""
        weight = 1.0 / self._config.window_steps
        tokens, wall_ms = believed.delivered or (step.emitted, step.wall_ms)
        believed.delivered = tokens + weight * (step.emitted - tokens), wall_ms + weight * (step.wall_ms - wall_ms)

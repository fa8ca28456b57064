"""Decides the next burst of one lane and learns from the last ones.

Owns what a lane learned: its gate, its draft widths and the profiled burst under way; shares the
pairing's policy with the other lanes of its key. Outcomes are replayed step by step, so cutting the
same steps into other bursts leaves the same state. Time comes in with every call, in seconds since the
epoch. Knows no client, clock or storage.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from burstgate_policy.core import explain
from burstgate_policy.core.arbiter import Arbiter
from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.consulted import Consulted, rule_answers
from burstgate_policy.core.depth import DepthChoice, DepthController
from burstgate_policy.core.eligibility import pinned_steps
from burstgate_policy.core.gate import MtpGate
from burstgate_policy.core.gate_config import GateConfig
from burstgate_policy.core.gating import Because, Gate, Outlook
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.profile import Profile
from burstgate_policy.core.profiled_burst import ProfiledBurst
from burstgate_policy.core.regime import Regime, regime
from burstgate_policy.core.regret import Regret, RegretMeter
from burstgate_policy.core.stages import Forced, Profiling, Settled, Stage, Static, pinned
from burstgate_policy.core.standing import Premises, StandingGrant
from burstgate_policy.core.starvation import NoRound
from burstgate_policy.core.types import (
    BurstOutcome,
    CostCell,
    Grant,
    LaneCapabilities,
    Mode,
    Pin,
    Reason,
    RuleAnswer,
    Situation,
    StepRecord,
    Verdict,
)

# A share of time lost says nothing before this many steps: the first ones are spent on measuring.
_JUDGED_AFTER_STEPS = 512


@dataclass(slots=True)
class _HeldWidth:
    """A draft width that was chosen, and the rounds that it is still good for."""

    choice: DepthChoice
    at: tuple[Regime, int]
    rounds_left: int


class Lane:
    """One running batch loop of one decode instance."""

    def __init__(
        self,
        policy: MtpPolicy,
        capabilities: LaneCapabilities,
        costs: Sequence[CostCell],
        config: CoreConfig,
    ) -> None:
        self._policy = policy
        self._capabilities = capabilities
        self._config = config
        self._cap = policy.key.draft_width
        self._depth = DepthController(cap=self._cap, costs=costs, config=config.depth)
        gate = config.gate
        self._gate: Gate = Arbiter(self._depth, gate) if isinstance(gate, GateConfig) else MtpGate(gate)
        self._ceiling = gate.regret_ceiling if isinstance(gate, GateConfig) else math.inf
        account = gate if isinstance(gate, GateConfig) else GateConfig()
        self._meter = RegretMeter(
            self._depth,
            cap=max(self._cap, 1),
            memory_steps=account.regret_memory_steps,
            stall_factor=account.stall_factor,
        )
        self._held_width: _HeldWidth | None = None
        self._campaign = policy.campaign
        self._burst = ProfiledBurst()
        self._claimed_probe_steps: int | None = None
        self._measured_steps = 0
        self._asked_at: tuple[int, int] | None = None
        """All steps and measured steps seen when the last grant asked to measure; None if it did not."""
        self._choice: DepthChoice | None = None
        self._ruling: tuple[Verdict, str] | None = None
        self._outlook: Outlook | None = None
        self._asking: Situation | None = None
        self._consulted: Consulted | None = None
        self._standing: StandingGrant | None = None
        self._last_sequence = 0
        self.last_grant: Grant | None = None
        """The grant given last; None before the first."""
        self.regret = Regret()
        """Time lost so far against the best single mode in hindsight; replaced as a whole."""
        self.grants = 0
        self.steps = 0
        self.dropped_steps = 0

    @property
    def policy(self) -> MtpPolicy:
        """The policy of the lane's pairing."""
        return self._policy

    @property
    def plain_tokens_per_second(self) -> float | None:
        """Delivered throughput of plain steps; None before the first window."""
        return self._gate.plain_tps

    @property
    def speculative_tokens_per_second(self) -> float | None:
        """Delivered throughput of rounds; None before the first window."""
        return self._gate.speculative_tps

    def observe(self, outcome: BurstOutcome, now_s: float) -> None:
        """Takes the outcome of a burst; one that is not newer than the last one taken changes nothing."""
        if outcome.sequence <= self._last_sequence:
            return
        self._last_sequence = outcome.sequence
        self.dropped_steps += outcome.dropped_steps
        if self._standing is not None and not self._standing.followed(outcome.steps, self.steps):
            self._standing = None
        self.steps += len(outcome.steps)
        for step in outcome.steps:
            self._replay(step, now_s)

    def decide(self, situation: Situation, now_s: float) -> Grant:
        """The next burst: what is left of the grant that stands, else what the first rule with an opinion says."""
        pin = self._policy.active_pin(now_s)
        premises = Premises.of(situation, pin_tokens=self._config.entry_pin_tokens, pin=pin)
        step = self.steps + situation.steps_in_flight
        grant = self._standing.rest(premises, step) if self._standing is not None else None
        if grant is None:
            grant = self._decide(situation, now_s)
            self._standing = StandingGrant(grant, premises, step, step + grant.max_steps)
        self.grants += 1
        self.last_grant = grant
        return grant

    def _decide(self, situation: Situation, now_s: float) -> Grant:
        """A new grant."""
        policy, self._asking = self._policy, situation
        policy.advance(now_s)
        self._join_campaign()
        self._note_not_measured(now_s)
        self._choice, self._ruling, self._outlook = None, None, None
        stage, pin = policy.stage, policy.active_pin(now_s)
        grant = self._without_draft() or self._by_rules(situation, stage, pin, now_s)
        self._consulted = Consulted(
            grant=grant,
            situation=situation,
            stage=stage,
            pin=pin,
            choice=self._choice,
            ruling=self._ruling,
            plain_tps=self.plain_tokens_per_second,
            speculative_tps=self.speculative_tokens_per_second,
            outlook=self._outlook,
            regret=self.regret,
        )
        return grant

    def preview(self, situation: Situation, now_s: float) -> Grant:
        """What decide would answer; nothing changes."""
        return copy.deepcopy(self).decide(situation, now_s)

    def explain(self, situation: Situation | None, now_s: float) -> tuple[RuleAnswer, ...]:
        """The rules behind the answer to a situation, or behind the last grant; nothing changes.

        Empty if there is no last grant.
        """
        if situation is not None:
            lane = copy.deepcopy(self)
            lane.decide(situation, now_s)
            return lane.explain(None, now_s)
        if self._consulted is None:
            return ()
        return rule_answers(self._consulted, self._capabilities, self._cap, self._config)

    def _without_draft(self) -> Grant | None:
        """Rules that hold whatever any policy says: there is nothing to draft with."""
        if not self._capabilities.drafter_kind:
            return self._plain(Reason.NO_DRAFTER, "the lane has no drafter")
        if self._cap < 2:
            return self._plain(Reason.NO_DRAFTER, "the lane's widest verify is one row, which leaves no draft")
        return None

    def _by_rules(self, situation: Situation, stage: Stage, pin: Pin | None, now_s: float) -> Grant:
        """An operator's force for the process, then a person's pin for the pairing, then what was measured."""
        if isinstance(stage, Forced):
            why = f"an operator forces speculation {'on' if stage.enabled else 'off'}"
            return self._on_or_off(situation, stage.enabled, (Reason.FORCED_ON, Reason.FORCED_OFF), why)
        if pin is not None:
            return self._on_or_off(situation, pin.speculate, (Reason.PINNED_ON, Reason.PINNED_OFF), pinned(pin))
        match stage:
            case Static(enabled):
                why = f"adaptive profiling is off and the static gate {'allows' if enabled else 'declines'} speculation"
                return self._on_or_off(situation, enabled, (Reason.STATIC_ON, Reason.STATIC_OFF), why)
            case Profiling() as profiling:
                return self._while_profiling(situation, profiling, now_s)
            case Settled() as settled:
                if settled.challenge is not None:
                    reasons, why = (Reason.RECHALLENGE, Reason.RECHALLENGE), "the verdict is challenged"
                    return self._measure_in_passing(situation, settled, settled.challenge, why, reasons, now_s)
                return self._by_gate(situation, self._rule(settled, situation, now_s), now_s)

    def _while_profiling(self, situation: Situation, profiling: Profiling, now_s: float) -> Grant:
        profile, held, why = profiling.profile, profiling.held, f"{profiling.why}, so it is measured again"
        if held is None:
            unmeasurable = self._cannot_measure(situation, now_s)
            if unmeasurable is not None or profile.samples < self._config.verdict.samples_required:
                return unmeasurable or self._profile(situation, profile)
            # What is still in doubt after so many bursts is measured without making everybody wait for it.
            why = "the profile goes on"
        reasons = Reason.PROFILING_PLAIN, Reason.PROFILING_SPECULATIVE
        return self._measure_in_passing(situation, held, profile, why, reasons, now_s)

    def _on_or_off(self, situation: Situation, on: bool, reasons: tuple[Reason, Reason], why: str) -> Grant:
        if not on:
            return self._plain(reasons[1], why)
        return self._ineligible(situation) or self._speculate(situation, reasons[0], why)

    def _measure_in_passing(
        self,
        situation: Situation,
        settled: Settled | None,
        profile: Profile,
        why: str,
        reasons: tuple[Reason, Reason],
        now_s: float,
    ) -> Grant:
        """Runs as the gate and the verdict say and measures besides: only what would not run anyway is asked for."""
        config, burst = self._config.verdict, self._burst
        declined = self._rule(settled, situation, now_s) if settled is not None else None
        if self.regret.holding:
            return self._by_gate(situation, declined, now_s)
        outlook = self._gate.outlook(situation)
        believes_plain = outlook.speculates == outlook.probing
        unmeasurable = self._cannot_measure(situation, now_s)
        if believes_plain or (declined is not None and not self._gate.overrules):
            # Rounds in between; the plain steps around them are the ones to compare with.
            if unmeasurable or (burst.rounds == 0 and burst.plain_steps < config.rest_steps):
                return self._by_gate(situation, declined, now_s)
            choice = self._choose(situation)
            rounds = config.rounds - burst.rounds
            explanation = explain.passing_rounds(why, rounds, profile.samples, config.samples_required, choice)
            return self._measured_rounds(choice, reasons[1], explanation, rounds)
        if unmeasurable:
            return unmeasurable
        steps = self._probe_steps_due()
        if steps > 0:
            explanation = explain.passing_plain(why, steps, profile.samples, config.samples_required)
            return self._plain(reasons[0], explanation, Mode.PROBE_PLAIN, steps)
        return self._by_gate(situation, declined, now_s)

    def _rule(self, settled: Settled, situation: Situation, now_s: float) -> str | None:
        """Tells the gate what rules the situation; the sentence that declines it, or nothing."""
        verdict, why = self._ruling = self._policy.ruling(settled, situation, now_s)
        declines = verdict is Verdict.DECLINE
        evidence = settled.evidence
        doubtful = declines and evidence is not None and evidence.speedup > 1.0
        self._gate.lean(situation, speculates=not declines, doubtful=doubtful)
        return why if declines else None

    def _cannot_measure(self, situation: Situation, now_s: float) -> Grant | None:
        """As _ineligible, where a round is wanted for a measurement: the policy is told that it did not run."""
        grant = self._ineligible(situation)
        if grant is not None:
            why = NoRound.NO_ROOM if situation.eligible else NoRound.INELIGIBLE
            self._policy.note_no_round(why, now_s)
        return grant

    def _ineligible(self, situation: Situation) -> Grant | None:
        if not situation.eligible:
            return self._plain(Reason.INELIGIBLE, "a row of the batch may not speculate now")
        if situation.max_draft_width == 1:
            return self._plain(Reason.INELIGIBLE, explain.no_room(self._cap, situation))
        return None

    def _profile(self, situation: Situation, profile: Profile) -> Grant:
        config = self._config.verdict
        steps = self._probe_steps_due()
        if steps > 0:
            explanation = explain.profiling_plain(steps, profile.samples, config.samples_required)
            return self._plain(Reason.PROFILING_PLAIN, explanation, Mode.PROBE_PLAIN, steps)
        choice = self._choose(situation)
        rounds = config.rounds - self._burst.rounds
        explanation = explain.profiling_speculative(rounds, profile.samples, config.samples_required, choice)
        return self._measured_rounds(choice, Reason.PROFILING_SPECULATIVE, explanation, rounds)

    def _probe_steps_due(self) -> int:
        if self._claimed_probe_steps is None:
            self._claimed_probe_steps = self._policy.claim_probe_steps(self._config.verdict.probe_steps)
        # Asked again only if no step came back: the last of them may still be running.
        if self._claimed_probe_steps == 0 or self._burst.plain_steps > 0:
            return 0
        self._asked_at = self.steps, self._measured_steps
        return self._claimed_probe_steps

    def _measured_rounds(self, choice: DepthChoice, reason: Reason, explanation: str, rounds: int) -> Grant:
        self._asked_at = self.steps, self._measured_steps
        return self._rounds_grant(choice, reason, explanation, Mode.PROBE_SPECULATIVE, rounds)

    def _by_gate(self, situation: Situation, declined: str | None, now_s: float) -> Grant:
        """What the gate wants; `declined` is what a verdict says against speculation."""
        gate, rates = self._gate, (self.plain_tokens_per_second, self.speculative_tokens_per_second)
        if declined is not None and not gate.overrules:
            return self._plain(Reason.VERDICT_DECLINED, declined)
        outlook = self._outlook = gate.outlook(situation)
        if not outlook.speculates:
            return self._gate_plain(situation, outlook, declined, rates)
        ineligible = self._ineligible(situation)
        if ineligible is not None:
            return ineligible if declined is None else self._plain(Reason.VERDICT_DECLINED, declined)
        if declined is not None and not outlook.probing:
            self._policy.doubt(now_s)
        choice = self._choose(situation)
        if outlook.probing:
            explanation = explain.gate_probe_speculative(*rates, choice)
            reason, mode = Reason.GATE_PROBE_SPECULATIVE, Mode.PROBE_SPECULATIVE
            return self._rounds_grant(choice, reason, explanation, mode, outlook.steps)
        explanation = explain.gate_speculative(*rates, choice)
        return self._rounds_grant(choice, Reason.GATE_SPECULATIVE, explanation, Mode.SPECULATIVE, outlook.steps)

    def _gate_plain(
        self,
        situation: Situation,
        outlook: Outlook,
        declined: str | None,
        rates: tuple[float | None, float | None],
    ) -> Grant:
        if declined is not None and not outlook.probing:
            return self._plain(Reason.VERDICT_DECLINED, declined, max_steps=outlook.steps)
        # Before the pin and the promise, as rows that may not speculate are left out of both.
        ineligible = self._ineligible(situation)
        if ineligible is not None:
            return ineligible
        pinned = pinned_steps(situation.min_emitted_tokens, self._config.entry_pin_tokens)
        if pinned > 0:
            choice = self._choose(situation)
            explanation = explain.entry_pin(situation, self._config.entry_pin_tokens, choice)
            return self._rounds_grant(choice, Reason.ENTRY_PIN, explanation, Mode.PINNED, pinned)
        if outlook.probing:
            explanation = explain.gate_probe_plain(*rates)
            return self._plain(Reason.GATE_PROBE_PLAIN, explanation, Mode.PROBE_PLAIN, outlook.steps)
        if outlook.because is Because.PROMISED:
            gains = self._depth.gains(regime(situation.width, situation.depth_tokens), self._cap)
            explanation = explain.depth_plain(gains)
            return self._plain(Reason.DEPTH_PLAIN, explanation, max_steps=outlook.steps)
        held = outlook.because is Because.HELD
        explanation = explain.held(self.regret) if held else explain.gate_plain(*rates)
        return self._plain(Reason.GATE_PLAIN, explanation, max_steps=outlook.steps)

    def _speculate(self, situation: Situation, reason: Reason, why: str) -> Grant:
        choice = self._choose(situation)
        explanation = f"{why}; {explain.promise(choice)}"
        return self._rounds_grant(choice, reason, explanation, Mode.SPECULATIVE, self._config.burst_steps)

    def _choose(self, situation: Situation) -> DepthChoice:
        """The draft width, chosen anew after a burst's worth of rounds or where the situation is another.

        So it is the same whether the rounds are granted one by one or together.
        """
        cap = situation.max_draft_width or self._cap
        at = regime(situation.width, situation.depth_tokens), cap
        held = self._held_width
        if held is None or held.at != at or held.rounds_left <= situation.steps_in_flight:
            choice = self._depth.pick(
                width=situation.width,
                depth_tokens=situation.depth_tokens,
                max_draft_width=cap,
                trials=not self.regret.holding,
            )
            in_flight = situation.steps_in_flight if held is not None else 0
            rounds = self._config.depth.first_steps if choice.trial else self._config.burst_steps
            held = self._held_width = _HeldWidth(choice, at, rounds + in_flight)
        self._choice = held.choice
        return held.choice

    def _plain(self, reason: Reason, explanation: str, mode: Mode = Mode.PLAIN, max_steps: int | None = None) -> Grant:
        limit = self._config.burst_steps
        return Grant(mode, 1, limit if max_steps is None else min(max_steps, limit), reason, explanation)

    def _rounds_grant(self, choice: DepthChoice, reason: Reason, explanation: str, mode: Mode, max_steps: int) -> Grant:
        left = self._config.burst_steps
        if self._held_width is not None:
            left = self._held_width.rounds_left - (self._asking.steps_in_flight if self._asking else 0)
        return Grant(mode, choice.draft_width, max(min(max_steps, left), 1), reason, explanation)

    def _join_campaign(self) -> None:
        """Drops a burst that was begun for an earlier measurement."""
        if self._campaign != self._policy.campaign:
            self._campaign = self._policy.campaign
            self._burst = ProfiledBurst()
            self._claimed_probe_steps = None
            self._asked_at = None

    def _note_not_measured(self, now_s: float) -> None:
        """Tells the policy of a burst that was asked to measure and came back without a measured step."""
        asked_at, self._asked_at = self._asked_at, None
        if asked_at is not None and self.steps > asked_at[0] and self._measured_steps == asked_at[1]:
            self._policy.note_no_round(NoRound.NOT_RUN, now_s)

    def _replay(self, step: StepRecord, now_s: float) -> None:
        mode = step.mode
        speculates = mode.speculates
        if speculates and self._held_width is not None:
            self._held_width.rounds_left -= 1
        # A step that was held up, or in which some rows could not follow, measures no draft width.
        if not step.excluded or mode is Mode.PINNED:
            self._depth.observe(step)
        self._gate.observe(step)
        if self._meter.observe(step):
            self._mind_the_ceiling()
        if step.excluded or mode is Mode.PINNED or mode is Mode.UNSPECIFIED:
            return
        stage = self._policy.stage
        if isinstance(stage, Settled):
            if stage.challenge is not None:
                self._replay_profiled(step, now_s, speculates=speculates)
            elif speculates:
                self._policy.note_round(step, now_s)
        elif isinstance(stage, Profiling) and (
            # A round tells as much whoever asked for it: another replica's grant, or a fallback.
            speculates
            or mode.probes
            or stage.held is not None
            or stage.profile.samples >= self._config.verdict.samples_required
        ):
            self._replay_profiled(step, now_s, speculates=speculates)

    def _mind_the_ceiling(self) -> None:
        """Holds the cheaper mode while too much was lost, and lets go when half of that is forgotten."""
        regret, before = self._meter.view(), self.regret
        if self._meter.steps >= _JUDGED_AFTER_STEPS:
            holding = regret.recent_share > self._ceiling * (0.5 if before.holding else 1.0)
            lead = regret.recent_lead
            # Modes that cost about the same must not change places while one is held.
            if holding and not (before.holding and abs(lead) < self._ceiling * 0.5):
                self._gate.hold(speculates=lead > 0.0)
            elif not holding and before.holding:
                self._gate.hold(speculates=None)
            regret = replace(regret, holding=holding)
        self.regret = regret

    def _replay_profiled(self, step: StepRecord, now_s: float, *, speculates: bool) -> None:
        self._join_campaign()
        self._measured_steps += 1
        burst = self._burst
        if not speculates:
            burst.add_plain(step)
            return
        burst.add_round(step)
        self._policy.note_measurable()
        if burst.rounds >= self._config.verdict.rounds:
            self._policy.record(burst.sample(), now_s)
            self._burst = ProfiledBurst()
            self._claimed_probe_steps = None

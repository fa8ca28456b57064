"""Decides the next burst of one lane and learns from the last ones.

Owns what a lane learned: its gate, its draft widths and the profiled burst under way; shares the
pairing's policy with the other lanes of its key. Outcomes are replayed step by step, so cutting the
same steps into other bursts leaves the same state. Time comes in with every call, in seconds since the
epoch. Knows no client, clock or storage.
"""

import copy
from collections.abc import Sequence

from burstgate_policy.core import explain
from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.consulted import Consulted, rule_answers
from burstgate_policy.core.depth import DepthChoice, DepthController
from burstgate_policy.core.eligibility import pinned_steps
from burstgate_policy.core.gate import GateMode, GateStep, MtpGate
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.profile import Profile
from burstgate_policy.core.profiled_burst import ProfiledBurst
from burstgate_policy.core.stages import Forced, Profiling, Settled, Stage, Static, pinned
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
        self._gate = MtpGate(config.gate)
        self._depth = DepthController(cap=self._cap, costs=costs, config=config.depth)
        self._campaign = policy.campaign
        self._burst = ProfiledBurst()
        self._claimed_probe_steps: int | None = None
        self._measured_steps = 0
        self._asked_at: tuple[int, int] | None = None
        """All steps and measured steps seen when the last grant asked to measure; None if it did not."""
        self._choice: DepthChoice | None = None
        self._ruling: tuple[Verdict, str] | None = None
        self._consulted: Consulted | None = None
        self._last_sequence = 0
        self.last_grant: Grant | None = None
        """The grant given last; None before the first."""
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
        return self._gate.tokens_per_second(GateMode.PLAIN)

    @property
    def speculative_tokens_per_second(self) -> float | None:
        """Delivered throughput of rounds; None before the first window."""
        return self._gate.tokens_per_second(GateMode.SPECULATIVE)

    def observe(self, outcome: BurstOutcome, now_s: float) -> None:
        """Takes the outcome of a burst; one that is not newer than the last one taken changes nothing."""
        if outcome.sequence <= self._last_sequence:
            return
        self._last_sequence = outcome.sequence
        self.dropped_steps += outcome.dropped_steps
        self.steps += len(outcome.steps)
        for step in outcome.steps:
            self._replay(step, now_s)

    def decide(self, situation: Situation, now_s: float) -> Grant:
        """The next burst: the first rule that has an opinion decides."""
        policy = self._policy
        policy.advance(now_s)
        self._join_campaign()
        self._note_not_measured(now_s)
        self._choice, self._ruling = None, None
        stage, pin = policy.stage, policy.active_pin(now_s)
        probing = self._gate.probing
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
            probing=probing,
        )
        self.grants += 1
        self.last_grant = grant
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
            case Profiling(profile, held, why):
                if held is None:
                    return self._cannot_measure(situation, now_s) or self._profile(situation, profile)
                reasons = Reason.PROFILING_PLAIN, Reason.PROFILING_SPECULATIVE
                why = f"{why}, so it is measured again"
                return self._measure_in_passing(situation, held, profile, why, reasons, now_s)
            case Settled() as settled:
                if settled.challenge is not None:
                    reasons, why = (Reason.RECHALLENGE, Reason.RECHALLENGE), "the verdict is challenged"
                    return self._measure_in_passing(situation, settled, settled.challenge, why, reasons, now_s)
                verdict, why = self._rule(settled, situation, now_s)
                if verdict is Verdict.DECLINE:
                    return self._plain(Reason.VERDICT_DECLINED, why)
                return self._ineligible(situation) or self._by_gate(situation)

    def _on_or_off(self, situation: Situation, on: bool, reasons: tuple[Reason, Reason], why: str) -> Grant:
        if not on:
            return self._plain(reasons[1], why)
        return self._ineligible(situation) or self._speculate(situation, reasons[0], why)

    def _measure_in_passing(
        self,
        situation: Situation,
        settled: Settled,
        profile: Profile,
        why: str,
        reasons: tuple[Reason, Reason],
        now_s: float,
    ) -> Grant:
        """Runs as the verdict says and measures besides: only what would not run anyway is asked for."""
        config, burst = self._config.verdict, self._burst
        verdict, ruling = self._rule(settled, situation, now_s)
        unmeasurable = self._cannot_measure(situation, now_s)
        if verdict is Verdict.DECLINE:
            # Rounds in between; the plain steps around them are the ones to compare with.
            if unmeasurable or (burst.rounds == 0 and burst.plain_steps < config.rest_steps):
                return self._plain(Reason.VERDICT_DECLINED, ruling)
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
        return self._by_gate(situation)

    def _rule(self, settled: Settled, situation: Situation, now_s: float) -> tuple[Verdict, str]:
        ruling = self._ruling = self._policy.ruling(settled, situation, now_s)
        return ruling

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

    def _by_gate(self, situation: Situation) -> Grant:
        gate, width = self._gate, situation.width
        plain_tps, speculative_tps = self.plain_tokens_per_second, self.speculative_tokens_per_second
        if gate.next_step() is GateStep.PLAIN:
            pinned = pinned_steps(situation.min_emitted_tokens, self._config.entry_pin_tokens)
            if pinned > 0:
                choice = self._choose(situation)
                explanation = explain.entry_pin(situation, self._config.entry_pin_tokens, choice)
                return self._rounds_grant(choice, Reason.ENTRY_PIN, explanation, Mode.PINNED, pinned)
            steps = gate.steps_until_change(width, 1)
            if gate.probing:
                explanation = explain.gate_probe_plain(plain_tps, speculative_tps)
                return self._plain(Reason.GATE_PROBE_PLAIN, explanation, Mode.PROBE_PLAIN, steps)
            explanation = explain.gate_plain(plain_tps, speculative_tps)
            return self._plain(Reason.GATE_PLAIN, explanation, Mode.PLAIN, steps)
        choice = self._choose(situation)
        steps = gate.steps_until_change(width, choice.draft_width)
        if gate.probing:
            explanation = explain.gate_probe_speculative(plain_tps, speculative_tps, choice)
            return self._rounds_grant(choice, Reason.GATE_PROBE_SPECULATIVE, explanation, Mode.PROBE_SPECULATIVE, steps)
        explanation = explain.gate_speculative(plain_tps, speculative_tps, choice)
        return self._rounds_grant(choice, Reason.GATE_SPECULATIVE, explanation, Mode.SPECULATIVE, steps)

    def _speculate(self, situation: Situation, reason: Reason, why: str) -> Grant:
        choice = self._choose(situation)
        explanation = f"{why}; {explain.promise(choice)}"
        return self._rounds_grant(choice, reason, explanation, Mode.SPECULATIVE, self._config.burst_steps)

    def _choose(self, situation: Situation) -> DepthChoice:
        choice = self._choice = self._depth.pick(
            width=situation.width,
            depth_tokens=situation.depth_tokens,
            max_draft_width=situation.max_draft_width or self._cap,
        )
        return choice

    def _plain(self, reason: Reason, explanation: str, mode: Mode = Mode.PLAIN, max_steps: int | None = None) -> Grant:
        limit = self._config.burst_steps
        return Grant(mode, 1, limit if max_steps is None else min(max_steps, limit), reason, explanation)

    def _rounds_grant(self, choice: DepthChoice, reason: Reason, explanation: str, mode: Mode, max_steps: int) -> Grant:
        return Grant(mode, choice.draft_width, min(max_steps, self._config.burst_steps), reason, explanation)

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
        self._depth.observe(step)
        if step.excluded or mode is Mode.PINNED or mode is Mode.UNSPECIFIED:
            return
        gate = self._gate
        gate.maybe_remeasure(step.depth_tokens)
        gate.note_depth(step.depth_tokens)
        stage = self._policy.stage
        if isinstance(stage, Settled):
            if stage.challenge is not None:
                self._replay_profiled(step, now_s, speculates=speculates)
            elif speculates:
                self._policy.note_round(step, now_s)
        elif isinstance(stage, Profiling) and (mode.probes or stage.held is not None):
            self._replay_profiled(step, now_s, speculates=speculates)
        # A step the gate did not ask for (a profile's, a fallback's) would count for the wrong mode.
        if gate.next_step() is GateStep.VERIFY:
            if speculates:
                gate.record_verify(step.wall_ms, step.emitted, step.width)
        elif not speculates:
            gate.record_plain(step.wall_ms, step.width)

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

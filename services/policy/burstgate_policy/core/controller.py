"""Decides the next burst of one lane and learns from the last ones.

Owns what a lane learned: its gate, its draft widths and the profiled burst under way; shares the
pairing's policy with the other lanes of its key. Outcomes are replayed step by step, so cutting the
same steps into other bursts leaves the same state. Knows no client, clock or storage.
"""

from collections.abc import Sequence

from burstgate_policy.core import explain
from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.depth import DepthChoice, DepthController
from burstgate_policy.core.eligibility import pinned_steps
from burstgate_policy.core.gate import GateMode, GateStep, MtpGate
from burstgate_policy.core.mtp_policy import Forced, MtpPolicy, Profiling, Settled, Static
from burstgate_policy.core.profile import Profile
from burstgate_policy.core.profiled_burst import ProfiledBurst
from burstgate_policy.core.types import (
    BurstOutcome,
    CostCell,
    Grant,
    LaneCapabilities,
    Mode,
    Reason,
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
        self._burst = ProfiledBurst()
        self._claimed_probe_steps: int | None = None
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

    def observe(self, outcome: BurstOutcome) -> None:
        """Takes the outcome of a burst; one that is not newer than the last one taken changes nothing."""
        if outcome.sequence <= self._last_sequence:
            return
        self._last_sequence = outcome.sequence
        self.dropped_steps += outcome.dropped_steps
        self.steps += len(outcome.steps)
        for step in outcome.steps:
            self._replay(step)

    def decide(self, situation: Situation) -> Grant:
        """The next burst: the first rule that has an opinion decides."""
        grant = self._without_draft(situation) or self._by_policy(situation)
        self.grants += 1
        self.last_grant = grant
        return grant

    def _without_draft(self, situation: Situation) -> Grant | None:
        """Rules that hold whatever any policy says: there is nothing to draft with."""
        if not self._capabilities.drafter_kind:
            return self._plain(Reason.NO_DRAFTER, "the lane has no drafter")
        if self._cap < 2:
            return self._plain(Reason.NO_DRAFTER, "the lane's widest verify is one row, which leaves no draft")
        return None

    def _by_policy(self, situation: Situation) -> Grant:
        match self._policy.stage:
            case Forced(enabled):
                if not enabled:
                    return self._plain(Reason.FORCED_OFF, "an operator forces speculation off")
                why = "an operator forces speculation on"
                return self._ineligible(situation) or self._speculate(situation, Reason.FORCED_ON, why)
            case Static(enabled):
                if not enabled:
                    why = "adaptive profiling is off and the static gate declines speculation"
                    return self._plain(Reason.STATIC_OFF, why)
                why = "adaptive profiling is off and the static gate allows speculation"
                return self._ineligible(situation) or self._speculate(situation, Reason.STATIC_ON, why)
            case Profiling(profile):
                return self._ineligible(situation) or self._profile(situation, profile)
            case Settled() as settled:
                if settled.verdict is Verdict.DECLINE:
                    return self._plain(Reason.VERDICT_DECLINED, settled.explanation)
                return self._ineligible(situation) or self._by_gate(situation)

    def _ineligible(self, situation: Situation) -> Grant | None:
        if not situation.eligible:
            return self._plain(Reason.INELIGIBLE, "a row of the batch may not speculate now")
        if situation.max_draft_width == 1:
            return self._plain(Reason.INELIGIBLE, explain.no_room(self._cap, situation))
        return None

    def _profile(self, situation: Situation, profile: Profile) -> Grant:
        config, burst = self._config.verdict, self._burst
        if self._claimed_probe_steps is None:
            self._claimed_probe_steps = self._policy.claim_probe_steps(config.probe_steps)
        # Asked again only if no step came back: the last of them may still be running.
        if self._claimed_probe_steps > 0 and burst.plain_steps == 0:
            steps = self._claimed_probe_steps
            explanation = explain.profiling_plain(steps, profile.samples, config.samples_required)
            return self._plain(Reason.PROFILING_PLAIN, explanation, Mode.PROBE_PLAIN, steps)
        choice = self._choose(situation)
        rounds = config.rounds - burst.rounds
        explanation = explain.profiling_speculative(rounds, profile.samples, config.samples_required, choice)
        return self._rounds(choice, Reason.PROFILING_SPECULATIVE, explanation, Mode.PROBE_SPECULATIVE, rounds)

    def _by_gate(self, situation: Situation) -> Grant:
        gate, width = self._gate, situation.width
        plain_tps, speculative_tps = self.plain_tokens_per_second, self.speculative_tokens_per_second
        if gate.next_step() is GateStep.PLAIN:
            pinned = pinned_steps(situation.min_emitted_tokens, self._config.entry_pin_tokens)
            if pinned > 0:
                choice = self._choose(situation)
                explanation = explain.entry_pin(situation, self._config.entry_pin_tokens, choice)
                return self._rounds(choice, Reason.ENTRY_PIN, explanation, Mode.PINNED, pinned)
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
            return self._rounds(choice, Reason.GATE_PROBE_SPECULATIVE, explanation, Mode.PROBE_SPECULATIVE, steps)
        explanation = explain.gate_speculative(plain_tps, speculative_tps, choice)
        return self._rounds(choice, Reason.GATE_SPECULATIVE, explanation, Mode.SPECULATIVE, steps)

    def _speculate(self, situation: Situation, reason: Reason, why: str) -> Grant:
        choice = self._choose(situation)
        explanation = f"{why}; {explain.promise(choice)}"
        return self._rounds(choice, reason, explanation, Mode.SPECULATIVE, self._config.burst_steps)

    def _choose(self, situation: Situation) -> DepthChoice:
        return self._depth.pick(
            width=situation.width,
            depth_tokens=situation.depth_tokens,
            max_draft_width=situation.max_draft_width or self._cap,
        )

    def _plain(self, reason: Reason, explanation: str, mode: Mode = Mode.PLAIN, max_steps: int | None = None) -> Grant:
        limit = self._config.burst_steps
        return Grant(mode, 1, limit if max_steps is None else min(max_steps, limit), reason, explanation)

    def _rounds(self, choice: DepthChoice, reason: Reason, explanation: str, mode: Mode, max_steps: int) -> Grant:
        return Grant(mode, choice.draft_width, min(max_steps, self._config.burst_steps), reason, explanation)

    def _replay(self, step: StepRecord) -> None:
        mode = step.mode
        speculates = mode.speculates
        self._depth.observe(step)
        if step.excluded or mode is Mode.PINNED or mode is Mode.UNSPECIFIED:
            return
        gate = self._gate
        gate.maybe_remeasure(step.depth_tokens)
        gate.note_depth(step.depth_tokens)
        if mode.probes and isinstance(self._policy.stage, Profiling):
            self._replay_profiled(step, speculates=speculates)
        # A step the gate did not ask for (a profile's, a fallback's) would count for the wrong mode.
        if gate.next_step() is GateStep.VERIFY:
            if speculates:
                gate.record_verify(step.wall_ms, step.emitted, step.width)
        elif not speculates:
            gate.record_plain(step.wall_ms, step.width)

    def _replay_profiled(self, step: StepRecord, *, speculates: bool) -> None:
        burst = self._burst
        if not speculates:
            burst.add_plain(step)
            return
        burst.add_round(step)
        if burst.rounds >= self._config.verdict.rounds:
            self._policy.record(burst.sample())
            self._burst = ProfiledBurst()
            self._claimed_probe_steps = None

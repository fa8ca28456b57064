"""Tells, of one decision, which rules were consulted, what numbers each saw and what each said.

A decision leaves one record of what it saw; everything here is worked out from that record when
somebody asks, so that deciding stays cheap. The rules come in the order in which they are consulted and
end with the one that decided; the width of a round is chosen after that. Decides nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from burstgate_policy.core import stages
from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.depth import DepthChoice
from burstgate_policy.core.explain import promise
from burstgate_policy.core.gating import Outlook
from burstgate_policy.core.regret import Regret
from burstgate_policy.core.stages import Forced, Profiling, Settled, Stage, Static
from burstgate_policy.core.types import (
    Evidence,
    Grant,
    LaneCapabilities,
    Mode,
    Pin,
    Reason,
    RuleAnswer,
    Situation,
    Verdict,
)

_DECIDES = {
    Reason.NO_DRAFTER: "drafter",
    Reason.FORCED_ON: "force",
    Reason.FORCED_OFF: "force",
    Reason.PINNED_ON: "pin",
    Reason.PINNED_OFF: "pin",
    Reason.STATIC_ON: "adaptive",
    Reason.STATIC_OFF: "adaptive",
    Reason.VERDICT_DECLINED: "verdict",
    Reason.INELIGIBLE: "eligibility",
    Reason.PROFILING_PLAIN: "measurement",
    Reason.PROFILING_SPECULATIVE: "measurement",
    Reason.RECHALLENGE: "measurement",
    Reason.ENTRY_PIN: "entry pin",
}


class Consulted(NamedTuple):
    """What a decision saw. A tuple, because one is made for every grant and tuples are quickest to make."""

    grant: Grant
    situation: Situation
    stage: Stage
    pin: Pin | None
    choice: DepthChoice | None
    ruling: tuple[Verdict, str] | None
    """The verdict that ruled and why; None where none was asked."""
    plain_tps: float | None
    speculative_tps: float | None
    outlook: Outlook | None
    """What the gate wanted; None where it was not asked."""
    regret: Regret


@dataclass(frozen=True, slots=True)
class _View:
    seen: Consulted
    capabilities: LaneCapabilities
    cap: int
    config: CoreConfig


_Said = tuple[dict[str, float], str]


def rule_answers(
    seen: Consulted, capabilities: LaneCapabilities, cap: int, config: CoreConfig
) -> tuple[RuleAnswer, ...]:
    """The consulted rules in order; exactly one of them decided."""
    view = _View(seen, capabilities, cap, config)
    decider = _DECIDES.get(seen.grant.reason, "gate")
    order = _order(seen)
    before = order[: order.index(decider)]
    answers = [RuleAnswer(rule, False, *_SAYS[rule](view)) for rule in before]
    answers.append(RuleAnswer(decider, True, _SAYS[decider](view)[0], seen.grant.explanation))
    if seen.choice is not None:
        if decider in {"force", "pin", "adaptive"}:
            answers.append(RuleAnswer("eligibility", False, *_eligibility(view)))
        answers.append(RuleAnswer("depth", False, _depth(seen.choice), promise(seen.choice)))
    return tuple(answers)


def _order(seen: Consulted) -> list[str]:
    """The rules in the order in which they were asked, as if none had decided."""
    stage = seen.stage
    if isinstance(stage, Forced):
        return ["drafter", "force", "eligibility"]
    if seen.pin is not None:
        return ["drafter", "force", "pin", "eligibility"]
    order = ["drafter", "force", "pin", "adaptive"]
    if isinstance(stage, Static):
        return [*order, "eligibility"]
    measuring = isinstance(stage, Profiling) or stage.challenge is not None
    reason = seen.grant.reason
    if seen.ruling is not None and seen.ruling[0] is Verdict.DECLINE:
        measured = ["eligibility", "measurement"] if measuring else []
        if reason is Reason.VERDICT_DECLINED:
            return [*order, *measured, "verdict"]  # What was asked before it had nothing against it.
        if _DECIDES.get(reason) == "measurement":
            return [*order, *measured]
    order += ["verdict", "eligibility"]
    if measuring:
        order.append("measurement")
    if seen.grant.mode is not Mode.SPECULATIVE and seen.grant.mode is not Mode.PROBE_SPECULATIVE:
        order.append("entry pin")  # Asked only when the gate wants plain decoding.
    return [*order, "gate"]


def _drafter(view: _View) -> _Said:
    kind = view.capabilities.drafter_kind
    return {"widest_verify": view.cap}, f"the lane drafts with {kind or 'nothing'}, at most K={view.cap}"


def _force(view: _View) -> _Said:
    stage = view.seen.stage
    if isinstance(stage, Forced):
        return {}, f"an operator forces speculation {'on' if stage.enabled else 'off'}"
    return {}, "no operator forces speculation on or off"


def _pin(view: _View) -> _Said:
    pin = view.seen.pin
    if pin is None:
        return {}, "nobody has pinned the pairing"
    numbers = {"pinned_at": pin.pinned_at}
    if pin.expires_at is not None:
        numbers["expires_at"] = pin.expires_at
    return numbers, stages.pinned(pin)


def _adaptive(view: _View) -> _Said:
    stage = view.seen.stage
    if isinstance(stage, Static):
        return {}, f"adaptive profiling is off; the static gate {'allows' if stage.enabled else 'declines'} speculation"
    return {}, "adaptive profiling is on, so what was measured decides"


def _verdict(view: _View) -> _Said:
    stage, config = view.seen.stage, view.config.verdict
    numbers = {"enable_at": config.enable_at, "decline_at": config.decline_at}
    ruling = view.seen.ruling
    if isinstance(stage, Settled):
        numbers |= _settled(stage)
        return numbers, stage.explanation if ruling is None else ruling[1]
    if isinstance(stage, Profiling) and stage.held is not None:
        numbers |= _settled(stage.held)
        return numbers, f"{stages.answer(stage.held.verdict)} for now: {stage.why}"
    return numbers, "there is no verdict yet"


def _settled(settled: Settled) -> dict[str, float]:
    numbers: dict[str, float] = {
        "samples": settled.samples,
        "acceptance_rate": settled.acceptance_rate,
        "settled_at": settled.settled_at_s,
        "expires_at": settled.expires_at_s,
        "rechallenge_at": settled.rechallenge_at_s,
    }
    evidence: Evidence | None = settled.evidence
    if evidence is not None:
        for name in ("rounds", "plain_steps", "traffic_kinds", "speedup", "speedup_low", "speedup_high"):
            numbers[name] = getattr(evidence, name)
        numbers |= {"round_ms": evidence.round_ms, "plain_step_ms": evidence.plain_step_ms}
    return numbers


def _eligibility(view: _View) -> _Said:
    situation = view.seen.situation
    numbers = {"width": float(situation.width), "max_draft_width": float(situation.max_draft_width or view.cap)}
    if not situation.eligible:
        return numbers, "a row of the batch may not speculate now"
    if situation.max_draft_width == 1:
        return numbers, "the rows leave no room for a draft"
    return numbers, "every row may speculate and has room for a draft"


def _measurement(view: _View) -> _Said:
    stage, config = view.seen.stage, view.config.verdict
    profile = stage.profile if isinstance(stage, Profiling) else None
    if isinstance(stage, Settled):
        profile = stage.challenge
    numbers: dict[str, float] = {"samples_required": config.samples_required, "rounds_required": config.rounds_required}
    if profile is not None:
        numbers |= {"samples": profile.samples, "rounds": profile.rounds}
    if view.seen.regret.holding:
        return numbers, "the measurement under way rests, because exploring has cost too much of late"
    return numbers, "being measured in passing; this burst runs what would run anyway"


def _entry_pin(view: _View) -> _Said:
    emitted, covered = view.seen.situation.min_emitted_tokens, view.config.entry_pin_tokens
    numbers: dict[str, float] = {"min_emitted_tokens": emitted, "entry_pin_tokens": covered}
    return numbers, f"every row has emitted at least {emitted} tokens; the opening is {covered}"


def _gate(view: _View) -> _Said:
    seen = view.seen
    rates = {"plain_tps": seen.plain_tps, "speculative_tps": seen.speculative_tps}
    numbers = {name: tps for name, tps in rates.items() if tps is not None}
    numbers["probing"] = float(seen.outlook is not None and seen.outlook.probing)
    if seen.regret.actual_ms > 0.0:
        numbers |= {"recent_share": seen.regret.recent_share, "holding": float(seen.regret.holding)}
    return numbers, seen.grant.explanation


def _depth(choice: DepthChoice) -> dict[str, float]:
    numbers = {"draft_width": float(choice.draft_width), "expected_tokens": choice.expected_tokens}
    if choice.round_ms is not None:
        numbers["round_ms"] = choice.round_ms
    return numbers | {"trial": float(choice.trial)}


_SAYS: dict[str, Callable[[_View], _Said]] = {
    "drafter": _drafter,
    "force": _force,
    "pin": _pin,
    "adaptive": _adaptive,
    "verdict": _verdict,
    "eligibility": _eligibility,
    "measurement": _measurement,
    "entry pin": _entry_pin,
    "gate": _gate,
}

"""Where the engine's bursts get their grants: one protocol, and the source used without a policy service.

The engine asks for a grant before each burst and reports every step it ran. A source answers at once or
within its own small deadline; it never raises and never changes what is emitted.
"""

from collections.abc import Sequence
from typing import Protocol

from burstgate_policy.core.static_gate import static_gate
from burstgate_policy.core.types import CostCell, Grant, LaneCapabilities, Mode, Reason, Situation, StepRecord

# Long enough that asking costs nothing, short enough to notice that the policy service is back.
_STATIC_BURST_STEPS = 8
# Without anybody to pick a width by measured acceptance, the drafter's usual one.
_STATIC_DRAFT_WIDTH = 4


class GrantSource(Protocol):
    """Answers before each burst. Called from the engine's thread only."""

    def prefetch(self, situation: Situation) -> None:
        """Says that a burst will start soon, and what it will probably run on."""
        ...

    def upcoming(self, wait_ms: float) -> Grant | None:
        """The prefetched grant, if it has come within `wait_ms`."""
        ...

    def next(self, situation: Situation) -> Grant:
        """The grant for a burst that starts now."""
        ...

    def report(self, step: StepRecord) -> None:
        """Takes what a step of the current burst measured."""
        ...

    def idle(self) -> None:
        """Says that no burst will follow for now."""
        ...


class StaticGrants:
    """Grants from the static gate alone: the measured cost table, and no learning."""

    def __init__(self, capabilities: LaneCapabilities, costs: Sequence[CostCell], draft_width: int) -> None:
        """`draft_width`: the widest verify of the lane."""
        self._answer = static_gate(capabilities, costs)
        self._has_drafter = bool(capabilities.drafter_kind)
        self._draft_width = draft_width

    def prefetch(self, situation: Situation) -> None:
        """Nothing to prepare."""

    def upcoming(self, wait_ms: float) -> Grant | None:
        """None: `next` is immediate."""
        return None

    def next(self, situation: Situation) -> Grant:
        """The static gate's answer."""
        width = min(_STATIC_DRAFT_WIDTH, self._draft_width, situation.max_draft_width or self._draft_width)
        sentence = f"no policy answers; {self._answer.explanation}"
        if self._answer.enabled and self._has_drafter and width >= 2:
            return Grant(Mode.SPECULATIVE, width, _STATIC_BURST_STEPS, Reason.FALLBACK_STATIC, sentence)
        return Grant(Mode.PLAIN, 1, _STATIC_BURST_STEPS, Reason.FALLBACK_STATIC, sentence)

    def report(self, step: StepRecord) -> None:
        """Nothing learns from it."""

    def idle(self) -> None:
        """Nothing to hand over."""

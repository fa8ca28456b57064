"""Answers whether speculation should be on before anything was measured on live text.

The order is fixed: the operator's pin, then what the target cannot do otherwise, then what the
hardware can. It also resolves verdicts that the profile leaves open, so it steers more than the
first seconds.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from burstgate_policy.core.costs import CostTable
from burstgate_policy.core.types import CostCell, LaneCapabilities

WIDE_VERIFY_GENERATION = 15
"""First Apple GPU generation whose quantised products take several rows in one pass."""

ASSUMED_ACCEPTANCE = 0.6
"""Acceptance of each draft that the cost table must pay for: below what trained drafters reach, so a
table that pays at it pays on ordinary text."""


@dataclass(frozen=True, slots=True)
class StaticAnswer:
    """The answer of the static gate and its reason."""

    enabled: bool
    explanation: str


def static_gate(capabilities: LaneCapabilities, costs: Iterable[CostCell], *, pin: bool | None = None) -> StaticAnswer:
    """Whether speculation should be on by default for a lane."""
    if pin is not None:
        return StaticAnswer(pin, f"an operator pinned speculation {'on' if pin else 'off'}")
    if not capabilities.batchable:
        return StaticAnswer(True, "the target decodes one row at a time, so speculation takes no batch away")
    generation = capabilities.apple_gpu_generation
    if generation > 0:
        return StaticAnswer(
            generation >= WIDE_VERIFY_GENERATION,
            f"Apple GPU generation {generation} verifies several rows "
            f"{'in one pass' if generation >= WIDE_VERIFY_GENERATION else 'one after another'}",
        )
    return _by_cost(CostTable(costs).smallest())


def apple_gpu_generation(chip: str) -> int:
    """GPU generation of a chip's brand string ("Apple M3 Ultra" is 15); 0 for anything else."""
    match = re.match(r"Apple M([1-9][0-9]{0,3})(?![0-9A-Za-z])", chip.strip())
    return 12 + int(match[1]) if match else 0


def _by_cost(costs: dict[int, float]) -> StaticAnswer:
    """On if some verify width costs fewer plain steps than the tokens it yields at assumed acceptance.

    Width K yields 1 + a + ... + a^(K-1) tokens; at a = 0.6 that is 1.6 for K=2 and 2.2 for K=4.
    """
    plain_ms = costs.get(1)
    rounds = {draft_width: cost_ms for draft_width, cost_ms in costs.items() if draft_width >= 2}
    if plain_ms is None or not rounds:
        return StaticAnswer(False, "the hardware is not known to pay for speculation and has no cost table")

    def gain(draft_width: int) -> float:
        tokens = (1.0 - ASSUMED_ACCEPTANCE**draft_width) / (1.0 - ASSUMED_ACCEPTANCE)
        return tokens * plain_ms / rounds[draft_width]

    best = max(rounds, key=gain)
    return StaticAnswer(
        gain(best) > 1.0,
        f"at K={best} a round costs {rounds[best] / plain_ms:.2f} plain steps, "
        f"{gain(best):.2f} times plain speed at {ASSUMED_ACCEPTANCE:.0%} acceptance",
    )

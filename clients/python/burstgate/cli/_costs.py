"""What a measured cost table means: the price of a round in plain steps, and the K that would pay best.

Must not know where the table comes from, or print.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from burstgate.serving import CostCell


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest K of a place if each draft is accepted at some rate."""

    draft_width: int
    """1 is plain decoding."""
    speedup: float
    """Tokens per second over those of plain decoding."""


@dataclass(frozen=True, slots=True)
class PlaceCosts:
    """The rounds of one batch width and depth."""

    width: int
    depth_tokens: int
    round_ms: Mapping[int, float]
    """Milliseconds of a whole round by K, drafting included; K=1 is a plain step."""

    def plain_steps(self, draft_width: int) -> float | None:
        """What a round costs in plain steps, which is how many tokens it must yield to pay."""
        plain_ms, round_ms = self.round_ms.get(1), self.round_ms.get(draft_width)
        return round_ms / plain_ms if plain_ms and round_ms else None

    def best(self, acceptance: float) -> Best | None:
        """The K with the most tokens per second; None where no plain step was measured."""
        if not self.round_ms.get(1):
            return None
        speedups = {
            draft_width: expected_tokens(acceptance, draft_width) / steps
            for draft_width in self.round_ms
            if (steps := self.plain_steps(draft_width))
        }
        fastest = max(speedups, key=lambda draft_width: speedups[draft_width])
        return Best(fastest, speedups[fastest])


def places(cells: Iterable[CostCell]) -> list[PlaceCosts]:
    """The table by batch width and depth, smallest first."""
    rounds: dict[tuple[int, int], dict[int, float]] = {}
    for cell in sorted(cells, key=lambda cell: cell.draft_width):
        rounds.setdefault((cell.width, cell.depth_tokens), {})[cell.draft_width] = cell.verify_ms + cell.draft_ms
    return [PlaceCosts(width, depth, rounds[width, depth]) for width, depth in sorted(rounds)]


def expected_tokens(acceptance: float, draft_width: int) -> float:
    """Tokens of a round of K rows if each draft is accepted with probability a: 1 + a + ... + a^(K-1).

    Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023), equation 1.
    """
    return sum(acceptance**drafts for drafts in range(draft_width))

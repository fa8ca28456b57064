"""Two ways of doing the same thing, run in turns, and how their rates compare. Pure.

A duel runs A, B, B, A, as often as asked: whatever drifts steadily costs both the same. Several that share their other
side run as A, B, C, C, B, A.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from burstgate_bench.arms import abba


@dataclass(frozen=True)
class Duel:
    """Rates of both sides, in tokens per second, in the order they ran."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Time that the other side takes for one token, over the time that ours takes."""
        return sum(1.0 / rate for rate in self.theirs) / sum(1.0 / rate for rate in self.ours)

    @property
    def spread(self) -> float:
        """The larger spread of the two sides: fastest minus slowest, over the slowest."""
        return max((max(rates) - min(rates)) / min(rates) for rates in (self.ours, self.theirs))


def run_duel(ours: Callable[[], float], theirs: Callable[[], float], blocks: int) -> Duel:
    """Runs both in ABBA order; each call returns tokens per second."""
    (duel,) = run_duels([ours], theirs, blocks)
    return duel


def run_duels(ours: Sequence[Callable[[], float]], theirs: Callable[[], float], blocks: int) -> list[Duel]:
    """Runs each of `ours` against the same other side; each call returns tokens per second."""
    sides = [*ours, theirs]
    rates: list[list[float]] = [[] for _ in sides]
    for place, _ in abba(range(len(sides)), (None,), blocks):
        rates[place].append(sides[place]())
    return [Duel(tuple(own), tuple(rates[-1])) for own in rates[:-1]]

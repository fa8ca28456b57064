"""Adds up rounds that are judged together: what their tokens were worth and what their time cost, in plain steps.

Knows nothing of modes, probes or waits.
"""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class JudgedRounds:
    """Rounds that are judged together, in plain steps; one that settles a change is counted and not judged."""

    count: int = 0
    judged: float = 0.0
    worth: float = 0.0
    """Plain steps that the tokens of a row would have taken."""
    cost: float = 0.0
    """Plain steps that the rounds' wall time would have been."""
    squares: float = 0.0
    """Sum of the squared gains of single rounds."""

    def add(self, worth: float, cost: float) -> None:
        """Takes a round that is judged; `count` is the caller's."""
        self.judged += 1
        self.worth += worth
        self.cost += cost
        self.squares += (worth - cost) ** 2

    def plus(self, earlier: "JudgedRounds", weight: float) -> "JudgedRounds":
        """These rounds and earlier ones that count for less."""
        return JudgedRounds(
            self.count,
            self.judged + weight * earlier.judged,
            self.worth + weight * earlier.worth,
            self.cost + weight * earlier.cost,
            self.squares + weight * earlier.squares,
        )

    @property
    def gain(self) -> float:
        """Plain steps won; negative if they were lost."""
        return self.worth - self.cost

    @property
    def variance(self) -> float:
        """Of the gain of one round."""
        return max(self.squares / self.judged - (self.gain / self.judged) ** 2, 0.0) if self.judged else 0.0

    def wins(self, margin: float, deviations: float, *, patience: float = 1.0, clear: float = 0.0) -> bool:
        """Whether speculation leads by the margin and by so many standard errors.

        With patience by so many times more of them, up to a lead of the share `clear`, which is beyond doubt.
        """
        noise = deviations * math.sqrt(self.variance * self.judged)
        noise = max(noise, min(patience * noise, clear * self.cost))
        return self.gain > margin * self.cost + noise

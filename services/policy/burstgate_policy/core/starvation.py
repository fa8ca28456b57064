"""Counts bursts that ran no round although rounds were to be measured, and says why.

Counted are bursts in a row: one round ends the count. Idle time is no starvation.
"""

import enum


class NoRound(enum.Enum):
    """Why a burst ran no round."""

    INELIGIBLE = "had a row that may not speculate"
    NO_ROOM = "had answers too short to leave room for a draft"
    NOT_RUN = "were asked to measure and ran something else"


class Starvation:
    """The bursts in a row without a round, by reason."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts = dict.fromkeys(NoRound, 0)
        self.total = 0

    def note(self, why: NoRound) -> None:
        """Takes a burst without a round."""
        self._counts[why] += 1
        self.total += 1

    def reset(self) -> None:
        """A round ran."""
        if self.total:
            self._counts = dict.fromkeys(NoRound, 0)
            self.total = 0

    def sentence(self) -> str:
        """Why nothing can be measured."""
        parts = [f"{count} {why.value}" for why, count in self._counts.items() if count]
        return f"the last {self.total} bursts ran no round: {', '.join(parts)}"

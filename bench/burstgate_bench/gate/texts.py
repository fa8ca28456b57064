"""Draws which drafts a text would have kept, position by position, before any policy sees it.

Whether the draft i places after position p is kept is a fixed draw, so every policy meets the same text.
Knows nothing of time or cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burstgate_bench.gate.costs import WIDEST_VERIFY

MOST_DRAFTS = WIDEST_VERIFY - 1
Random = np.random.Generator
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of text: how likely each draft is kept, given that those before it were."""

    name: str
    first_rate: float
    decay: float
    """What each further draft of a round loses: draft i is kept with first_rate x decay^i."""
    burst_rate: float | None = None
    """First rate inside a burst; None for a text without bursts."""
    burst_tokens: float = 40.0
    """Mean length of a burst, and of the stretch between two."""

    def expected_tokens(self) -> list[float]:
        """Tokens a row gets from a round: element K-1 is a round of K rows; element 0 is 1."""
        rates = [self.first_rate] if self.burst_rate is None else [self.first_rate, self.burst_rate]
        expected = [1.0] * WIDEST_VERIFY
        for rate in rates:
            reach = 1.0
            for draft in range(MOST_DRAFTS):
                reach *= rate * self.decay**draft
                for k in range(draft + 1, WIDEST_VERIFY):
                    expected[k] += reach / len(rates)
        return expected


def enumeration(random: Random) -> Kind:
    """Lists: nearly every draft is kept."""
    return Kind("enumeration", random.uniform(0.92, 0.98), random.uniform(0.985, 1.0))


def code(random: Random) -> Kind:
    """Source code."""
    return Kind("code", random.uniform(0.68, 0.82), random.uniform(0.93, 0.99))


def prose(random: Random) -> Kind:
    """Prose: about half of the first drafts are kept, and less of those after."""
    return Kind("prose", random.uniform(0.42, 0.58), random.uniform(0.82, 0.96))


def hopeless(random: Random) -> Kind:
    """Text that the drafter does not know."""
    return Kind("hopeless", random.uniform(0.05, 0.15), random.uniform(0.6, 0.9))


KINDS = (enumeration, code, prose, hopeless)


def draw_accepted(kinds: Sequence[Kind], kind_at: Bytes, random: Random) -> Bytes:
    """Drafts that a round of the widest verify would keep at each position of a text; shape of `kind_at`."""
    length = len(kind_at)
    rate = np.array([kind.first_rate for kind in kinds])[kind_at]
    decay = np.array([kind.decay for kind in kinds])[kind_at]
    for index, kind in enumerate(kinds):
        if kind.burst_rate is not None:
            inside = _bursts(length, kind.burst_tokens, random) & (kind_at == index)
            rate[inside] = kind.burst_rate
    draws = random.random(length + MOST_DRAFTS)
    accepted = np.zeros(length, np.uint8)
    alive = np.ones(length, bool)
    for draft in range(MOST_DRAFTS):
        alive &= draws[draft : draft + length] < rate
        accepted += alive
        rate = rate * decay
    return accepted


def _bursts(length: int, mean_tokens: float, random: Random) -> NDArray[np.bool_]:
    """Whether each position lies in a burst: stretches inside and outside alternate."""
    lengths = random.geometric(1.0 / mean_tokens, int(length / mean_tokens * 2) + 16)
    state = (np.arange(len(lengths)) + random.integers(2)) % 2 == 0
    inside = np.repeat(state, lengths)
    return np.resize(inside, length)

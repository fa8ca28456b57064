"""What is remembered of a settled pairing: the verdict and two coarse numbers.

A hint never holds timings, prompts, tokens or anything of a request, whatever the profile saw.
"""

import math
from dataclasses import dataclass

from burstgate_policy.core.types import PolicyKey, Verdict

HINT_VERSION = 3
"""Version 1 lacked the draft width in its key; version 2 was judged without measured plain steps."""


@dataclass(frozen=True, slots=True)
class Hint:
    """The stored verdict of one pairing."""

    key: PolicyKey
    verdict: Verdict
    acceptance_rate: float
    """Accepted over proposed drafts, rounded to two decimals."""
    samples: int

    def __post_init__(self) -> None:
        if self.verdict not in {Verdict.ENABLE, Verdict.DECLINE}:
            raise ValueError(f"verdict must be ENABLE or DECLINE, not {self.verdict!r}")
        if not (math.isfinite(self.acceptance_rate) and 0.0 <= self.acceptance_rate <= 1.0):
            raise ValueError(f"acceptance_rate must lie in [0, 1], not {self.acceptance_rate}")
        if self.samples < 1:
            raise ValueError(f"samples must be at least 1, not {self.samples}")
        object.__setattr__(self, "acceptance_rate", round(self.acceptance_rate, 2))

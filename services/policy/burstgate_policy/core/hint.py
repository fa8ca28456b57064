"""What is remembered of a settled pairing: the verdict, when it was reached and what it rests on.

A hint holds sums over a whole profile and nothing of a request: no prompt, token, id or name, whatever
the profile saw.
"""

import math
from dataclasses import dataclass, fields

from burstgate_policy.core.types import Evidence, PolicyKey, Verdict


@dataclass(frozen=True, slots=True)
class Hint:
    """The stored verdict of one pairing."""

    key: PolicyKey
    verdict: Verdict
    acceptance_rate: float
    """Accepted over proposed drafts, rounded to two decimals."""
    samples: int
    evidence: Evidence | None = None
    """None in a hint of a release that did not keep it."""
    settled_at_s: float | None = None
    """When the verdict was reached or last confirmed; None if unknown."""
    expires_at_s: float | None = None
    """When it stops holding; None if unknown."""
    version: int = 1
    """Increases with every change of the pairing's policy: of two hints the one with more is newer."""

    def __post_init__(self) -> None:
        if self.verdict not in {Verdict.ENABLE, Verdict.DECLINE}:
            raise ValueError(f"verdict must be ENABLE or DECLINE, not {self.verdict!r}")
        if not (math.isfinite(self.acceptance_rate) and 0.0 <= self.acceptance_rate <= 1.0):
            raise ValueError(f"acceptance_rate must lie in [0, 1], not {self.acceptance_rate}")
        if self.samples < 1:
            raise ValueError(f"samples must be at least 1, not {self.samples}")
        if self.version < 1:
            raise ValueError(f"version must be at least 1, not {self.version}")
        for name in ("settled_at_s", "expires_at_s"):
            instant_s = getattr(self, name)
            if instant_s is not None and not math.isfinite(instant_s):
                raise ValueError(f"{name} must be finite, not {instant_s}")
        if self.evidence is not None:
            for field in fields(self.evidence):
                value = getattr(self.evidence, field.name)
                if not (math.isfinite(value) and value >= 0):
                    raise ValueError(f"{field.name} of the evidence must be finite and at least 0, not {value}")
        object.__setattr__(self, "acceptance_rate", round(self.acceptance_rate, 2))

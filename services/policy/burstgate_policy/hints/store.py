"""What a hint store is.

Loading never raises: a hint that cannot be used costs a new profile, not a start. Saving raises one
typed error, which costs the memory of a verdict and nothing else. Knows nothing of how hints are
stored.
"""

from dataclasses import dataclass
from typing import Protocol

from burstgate_policy.core.hint import Hint
from burstgate_policy.core.types import PolicyKey


@dataclass(frozen=True, slots=True)
class HintLoad:
    """A hint, or why there is none."""

    hint: Hint | None
    reason: str | None
    """None exactly when there is a hint."""


class HintStoreError(Exception):
    """A hint could not be stored; the message says where and what to do."""


class HintStore(Protocol):
    """Keeps one hint a pairing."""

    def load(self, key: PolicyKey) -> HintLoad:
        """The hint of a pairing, or the reason why it has none."""
        ...

    def save(self, hint: Hint) -> None:
        """Stores a hint in place of an earlier one of its pairing; raises HintStoreError."""
        ...

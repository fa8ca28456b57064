"""What a hint store is: documents by key hash, replaced only by whoever saw the revision before.

A document that cannot be used is an answer with a reason, never an error: it costs a new profile, not
a start. One typed error says that the store itself cannot be reached or written. Calls may block on
the disk or the network, and may come from any thread, one at a time. Knows nothing of verdicts in use.
"""

from dataclasses import dataclass
from typing import Protocol

from burstgate_policy.hints.document import HintDocument


@dataclass(frozen=True, slots=True)
class HintLoad:
    """A document, or why there is none."""

    key_hash: str
    document: HintDocument | None
    reason: str | None = None
    """None exactly when there is a document."""
    unusable: bool = False
    """Something is stored that cannot be used, such as a document of an older format."""
    revision: int = 0
    """What a save must name in order to replace what is stored now; 0 if that is nothing or unusable."""


@dataclass(frozen=True, slots=True)
class HintChanges:
    """What changed in a store."""

    loads: list[HintLoad]
    restarted: bool = False
    """The store lost what it held, or another one took its place."""


class HintStoreError(Exception):
    """The store cannot be reached or written; the message says where, why and what to do."""


class HintStore(Protocol):
    """Keeps one document a pairing."""

    name: str
    """Where the documents are, for a person; without credentials."""

    def load(self, key_hash: str) -> HintLoad:
        """The document of a pairing, or the reason why it has none; raises HintStoreError."""
        ...

    def save(self, document: HintDocument, *, replaces: int) -> bool:
        """Stores a document as revision `replaces` + 1 if the stored one still has revision `replaces`.

        Returns whether it did; raises HintStoreError.
        """
        ...

    def changes(self) -> HintChanges:
        """What changed since the last call, and at the first call everything; raises HintStoreError."""
        ...

    def close(self) -> None:
        """Gives back what the store holds."""
        ...

"""Which verdicts changed since when: what a watcher is told, and told again after a broken connection.

Keeps one number a pairing, the revision of its last change, and never a queue: a watcher that is slow
or was away gets the state of each pairing that changed, once, however often it changed meanwhile. So
memory is bounded by the number of pairings and no watcher can hold anything up. Looking is done by
whoever watches; while nobody does, nothing is spent.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from burstgate_policy.core.types import PolicyKey
from burstgate_policy.pairings import Pairings

LOOK_EVERY_S = 0.2
"""How late a change may be told: soon for a person, rare enough to cost nothing."""

MAX_REMOVED = 1024
"""Removals that are remembered; a token from before the oldest of them starts anew."""


@dataclass(frozen=True, slots=True)
class Change:
    """A pairing that changed, and the revision that says so."""

    revision: int
    key: PolicyKey
    removed: bool


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a watch goes on."""

    revision: int
    restarted: bool
    """The token was too old, or another process's: everything is told anew."""


class VerdictFeed:
    """The changes of every pairing. Belongs to one event loop; nothing in it awaits."""

    def __init__(self, pairings: Pairings, *, clock: Callable[[], float], epoch: str) -> None:
        self._pairings = pairings
        self._clock = clock
        self._epoch = epoch
        self._revision = 0
        self._looked_s = float("-inf")
        # Both in the order of their changes, oldest first.
        self._present: dict[str, tuple[Change, object]] = {}
        self._removed: dict[str, Change] = {}
        self._forgotten_revision = 0
        """The revision of the newest removal that is not remembered any more."""

    def token(self, revision: int) -> str:
        """What a watcher shows in order to go on after this revision."""
        return f"{self._epoch}.{revision}"

    def resume(self, token: str) -> Resumed | None:
        """Where a token leads; None if it is none of ours. An empty one starts at the beginning."""
        if not token:
            return Resumed(0, restarted=False)
        epoch, dot, number = token.partition(".")
        if not dot or not epoch.isalnum() or not number.isdecimal() or not number.isascii() or len(number) > 18:
            return None
        revision = int(number)
        if epoch != self._epoch or not self._forgotten_revision <= revision <= self._revision:
            return Resumed(0, restarted=True)
        return Resumed(revision, restarted=False)

    def after(self, revision: int) -> Iterator[Change]:
        """What changed after a revision, oldest change first; only what is still there for the beginning."""
        self._look()
        changes = [change for change, _ in self._present.values() if change.revision > revision]
        if revision:
            changes += [change for change in self._removed.values() if change.revision > revision]
        return iter(sorted(changes, key=lambda change: change.revision))

    @property
    def revision(self) -> int:
        """The newest revision."""
        return self._revision

    def _look(self) -> None:
        now_s = self._clock()
        if now_s - self._looked_s < LOOK_EVERY_S / 2:
            return
        self._looked_s = now_s
        keys = self._pairings.keys()
        for key_hash in keys:
            signature = self._pairings.signature(key_hash)
            known = self._present.get(key_hash)
            if known is not None and known[1] == signature:
                continue
            key = self._pairings.key(key_hash)
            if key is not None:
                self._present.pop(key_hash, None)
                self._removed.pop(key_hash, None)
                self._present[key_hash] = (self._next(key, removed=False), signature)
        for key_hash in self._present.keys() - set(keys):
            change, _ = self._present.pop(key_hash)
            self._removed[key_hash] = self._next(change.key, removed=True)
        while len(self._removed) > MAX_REMOVED:
            oldest = next(iter(self._removed))
            self._forgotten_revision = self._removed.pop(oldest).revision

    def _next(self, key: PolicyKey, *, removed: bool) -> Change:
        self._revision += 1
        return Change(self._revision, key, removed)

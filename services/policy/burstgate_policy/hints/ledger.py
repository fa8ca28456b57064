"""What this process knows of stored hints, and the one task that moves it to and from the store.

Memory answers at once and always; the store is behind it. While the store is away, what is learned
stays in memory; when it answers again both sides are brought together, the later word winning. One
line is logged on the way down and one on the way back. Must hold: a newer document is never replaced
by an older one, whoever wrote it; nothing here is awaited by a grant.

Two services on one store know each other's verdicts after at most one refresh interval, plus the
time of the writing.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import TypeVar

import prometheus_client
import structlog

from burstgate_policy.core.types import PolicyKey
from burstgate_policy.hints.document import HintDocument, StoredPin, StoredVerdict, merge
from burstgate_policy.hints.store import HintLoad, HintStore, HintStoreError

MAX_KNOWN = 4096
"""Documents held in memory, some 20 MB: far more pairings than a fleet runs. The oldest go first."""

_ERRORS_PER_PASS = 3
"""One document that cannot be written must not keep others waiting, nor many of them a pass."""

_LATER_S = 0.001
"""What makes one word later than another."""

_TRIES_PER_SAVE = 8
"""Each lost race means that another process has just written the same pairing: rare, and never in a row."""

_T = TypeVar("_T")

_store_up = prometheus_client.Gauge("burstgate_policy_hint_store_up", "Whether the hint store answers.")
_pending_hints = prometheus_client.Gauge("burstgate_policy_hints_pending", "Hints waiting to be stored.")
_save_failures = prometheus_client.Counter("burstgate_policy_hint_save_failures", "Failed attempts to store a hint.")


class HintLedger:
    """Documents by pairing. Belongs to one event loop; the store's calls run on threads, one at a time."""

    def __init__(
        self,
        store: HintStore,
        *,
        clock: Callable[[], float],
        refresh_s: float,
        on_news: Callable[[HintDocument | None, HintDocument], None] = lambda before, now: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._refresh_s = refresh_s
        self.on_news = on_news
        """Called with what was known of a pairing and what is, when another process changed it."""
        self._known: dict[str, HintDocument] = {}
        # Insertion order is the order of storing; a failed one goes to the end.
        self._pending: dict[str, None] = {}
        self._down = False
        self._calls = asyncio.Lock()  # guards the store, whose calls come one at a time
        self._pass = asyncio.Lock()  # guards the order of a pass: taking, then storing
        self._wake = asyncio.Event()
        self._log = structlog.get_logger().bind(store=store.name)
        _pending_hints.set_function(lambda: len(self._pending))

    @property
    def down(self) -> bool:
        """Whether the store did not answer last time."""
        return self._down

    @property
    def pending(self) -> int:
        """Documents that are not stored yet."""
        return len(self._pending)

    def get(self, key_hash: str) -> HintDocument | None:
        """What is known of a pairing now."""
        document = self._known.get(key_hash)
        return None if document is None else document.at(self._clock())

    def documents(self) -> list[HintDocument]:
        """Everything known now, ordered by key hash."""
        now_s = self._clock()
        return [self._known[key_hash].at(now_s) for key_hash in sorted(self._known)]

    async def look_up(self, key: PolicyKey) -> tuple[HintDocument | None, str]:
        """What is known of a pairing, asking the store first; without a verdict also why not."""
        why = "the hint store does not answer, and nothing is known of the pairing"
        if not self._down:
            try:
                load = await self._call(lambda: self._store.load(key.hash))
            except HintStoreError as error:
                self._mark_down(error)
            else:
                why = load.reason or ""
                self._take(load)
        document = self.get(key.hash)
        if document is not None and document.settled is None:
            why = why or "the stored document has no verdict: it was reset, or has expired"
        return document, why

    def settle(self, key: PolicyKey, verdict: StoredVerdict) -> None:
        """Remembers a verdict that was reached here."""
        self._put(key, settled=verdict, verdict_at=verdict.settled_at)

    def reset(self, key: PolicyKey) -> None:
        """Forgets a verdict, here and in the store."""
        known = self._known.get(key.hash)
        self._put(key, settled=None, verdict_at=self._after(0.0 if known is None else known.verdict_at))

    def pin(self, key: PolicyKey, pin: StoredPin) -> None:
        """Remembers a person's decision."""
        self._put(key, pin=pin, pin_at=self._after(self._pin_at(key)))

    def unpin(self, key: PolicyKey) -> None:
        """Takes a person's decision back."""
        self._put(key, pin=None, pin_at=self._after(self._pin_at(key)))

    def add(self, document: HintDocument) -> bool:
        """Takes an imported document as far as it is newer; returns whether anything of it was."""
        known = self._known.get(document.key_hash)
        merged = document if known is None else merge(known, document)
        if known is not None and merged.says_the_same_as(known):
            return False
        self._remember(merged)
        self._save_soon(document.key_hash)
        self.on_news(known, merged)
        return True

    def replace(self, document: HintDocument) -> bool:
        """Takes all that an imported document says, as the latest word on it."""
        known = self._known.get(document.key_hash) or HintDocument(key=document.key)
        parts: dict[str, object] = {}
        if document.settled is not None:
            at_s = self._after(known.verdict_at)
            parts |= {"verdict_at": at_s, "settled": document.settled.model_copy(update={"settled_at": at_s})}
        if document.pin is not None:
            parts |= {"pin_at": self._after(known.pin_at)}
        return self.add(document.model_copy(update=parts))

    async def run(self) -> None:
        """Brings memory and store together, for ever: when something was learned, and at every refresh."""
        while True:
            if self._down:
                # A store that is away is not asked more often because more is learned.
                await asyncio.sleep(self._refresh_s)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._refresh_s):
                        await self._wake.wait()
            try:
                await self.synchronise()
            except Exception:  # noqa: BLE001  (a task that ended would be missed by nobody until the next start)
                self._log.exception("a defect of the hint ledger")

    async def synchronise(self) -> None:
        """One pass: takes what is newer, stores what is pending. Returns when it is over, successful or not."""
        async with self._pass:
            await self._synchronise()

    async def _synchronise(self) -> None:
        self._wake.clear()
        try:
            changes = await self._call(self._store.changes)
        except HintStoreError as error:
            self._mark_down(error)
            return
        for load in changes.loads:
            self._take(load, news=True)
            if load.unusable:
                self._log.info("hint not used", key_hash=load.key_hash, why=load.reason)
        if self._down or changes.restarted:
            # What was acknowledged before may be gone: a store can come back empty or older.
            self._pending |= dict.fromkeys(self._known)
        if await self._save_pending():
            if self._down:
                self._down = False
                self._log.info("hint store answers again", known=len(self._known))
            _store_up.set(1)

    async def _save_pending(self) -> bool:
        errors = 0
        for key_hash in list(self._pending):
            try:
                saved = await self._save(key_hash)
            except HintStoreError as error:
                _save_failures.inc()
                self._mark_down(error)
                saved = False
                errors += 1
            if not saved:
                self._pending.pop(key_hash, None)
                self._pending[key_hash] = None
            if errors == _ERRORS_PER_PASS:
                break
        return not errors

    async def _save(self, key_hash: str) -> bool:
        """Stores what is known of a pairing; False if it has to be tried again."""
        for _ in range(_TRIES_PER_SAVE):
            document = self._known.get(key_hash)
            if document is None or self._is_over(document):
                self._pending.pop(key_hash, None)
                return True
            load = await self._call(functools.partial(self._store.load, key_hash))
            self._take(load, news=True)
            document = self._known[key_hash]
            if load.document is not None and document.says_the_same_as(load.document):
                self._pending.pop(key_hash, None)
                return True
            if not await self._call(functools.partial(self._store.save, document, replaces=load.revision)):
                continue
            self._log.info("hint stored", key_hash=key_hash, revision=load.revision + 1)
            # What was learned while this one was written waits for its own turn.
            if self._known.get(key_hash) is document:
                self._known[key_hash] = document.model_copy(update={"revision": load.revision + 1})
                self._pending.pop(key_hash, None)
                return True
        return False

    def _is_over(self, document: HintDocument) -> bool:
        expires_at = document.expires_at
        return expires_at is not None and expires_at <= self._clock()

    def _take(self, load: HintLoad, *, news: bool = False) -> None:
        """Brings a stored document and what is known of its pairing together."""
        key_hash, theirs = load.key_hash, load.document
        known = self._known.get(key_hash)
        if theirs is None:
            return
        merged = theirs if known is None else merge(known, theirs).model_copy(update={"revision": theirs.revision})
        self._remember(merged)
        if not merged.says_the_same_as(theirs):
            self._save_soon(key_hash)
        if news and (known is None or not merged.says_the_same_as(known)):
            self.on_news(known, merged)

    def _pin_at(self, key: PolicyKey) -> float:
        known = self._known.get(key.hash)
        return 0.0 if known is None else known.pin_at

    def _after(self, known_at_s: float) -> float:
        """Now, but later than what a person has just overruled, even if another host's clock is ahead."""
        return max(self._clock(), known_at_s + _LATER_S)

    def _put(self, key: PolicyKey, **part: object) -> None:
        known = self._known.get(key.hash) or HintDocument(key=key)
        self._remember(known.model_copy(update=part))
        self._save_soon(key.hash)

    def _save_soon(self, key_hash: str) -> None:
        self._pending[key_hash] = None
        self._wake.set()

    def _remember(self, document: HintDocument) -> None:
        self._known[document.key_hash] = document
        if len(self._known) > MAX_KNOWN:
            idle = [one for one in self._known.values() if one.key_hash not in self._pending and one.pin is None]
            if idle:
                del self._known[min(idle, key=lambda one: one.verdict_at).key_hash]

    def _mark_down(self, error: HintStoreError) -> None:
        _store_up.set(0)
        if not self._down:
            self._down = True
            self._log.warning("hint store failed", why=str(error), pending=len(self._pending))

    async def _call(self, call: Callable[[], _T]) -> _T:
        async with self._calls:
            return await asyncio.to_thread(call)

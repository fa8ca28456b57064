"""What the service holds for each pairing: the policy in use, and what is remembered of it.

Brings the two together: a pairing that opens starts from what is remembered, what a policy settles is
remembered, and what another replica or a person says reaches the policy in use. Must hold: nothing
here waits for storage except opening a pairing and a person's command. Knows no messages.
"""

import dataclasses
from collections.abc import Callable, Iterator

import prometheus_client
import pydantic
import structlog

from burstgate_policy.config import PolicySettings
from burstgate_policy.core.hint import Hint
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.static_gate import static_gate
from burstgate_policy.core.types import CostCell, Evidence, LaneCapabilities, Pin, PolicyKey, Snapshot, Verdict
from burstgate_policy.hints.document import HintDocument, StoredEvidence, StoredPin, StoredVerdict
from burstgate_policy.hints.ledger import HintLedger
from burstgate_policy.lanes import LaneTable
from burstgate_runtime.faults import Fault, FaultKind

_verdicts = prometheus_client.Counter("burstgate_policy_verdicts", "Pairings settled here.", ("verdict",))


class Pairings:
    """Policies and documents by key hash. Belongs to one event loop."""

    def __init__(
        self, settings: PolicySettings, lanes: LaneTable, ledger: HintLedger, *, clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._core_config = settings.core_config()
        self._lanes = lanes
        self._ledger = ledger
        self._clock = clock
        self._log = structlog.get_logger()
        ledger.on_news = self._heard

    async def open(self, key: PolicyKey, capabilities: LaneCapabilities, costs: tuple[CostCell, ...]) -> MtpPolicy:
        """The policy of a pairing, started from what is remembered if it is not in use yet."""
        known = self._lanes.policy(key.hash)
        if known is not None:
            return known
        document = None
        if self._settings.mtp_force is None:
            document, why = await self._ledger.look_up(key)
            self._say_what_was_found(key, document, why)
        return self._start(key, document, static_default=static_gate(capabilities, costs).enabled)

    def settled(self, policy: MtpPolicy, hint: Hint) -> None:
        """Remembers what a policy has just settled."""
        snapshot = policy.snapshot(self._clock())
        _verdicts.labels(snapshot.verdict.name.lower()).inc()
        self._log.info(
            "verdict settled",
            pairing=policy.key.display,
            key_hash=snapshot.key_hash,
            verdict=snapshot.verdict.name.lower(),
            why=snapshot.explanation,
        )
        try:
            verdict = stored_verdict(hint, self._clock())
        except pydantic.ValidationError as error:
            # Numbers out of every range: the verdict rules here, but nobody else should start from it.
            self._log.error("verdict not remembered", key_hash=snapshot.key_hash, why=str(error))
            return
        self._ledger.settle(policy.key, verdict)

    def keys(self) -> list[str]:
        """Every pairing in use or remembered, in order."""
        remembered = (document.key_hash for document in self._ledger.documents() if _says_something(document))
        return sorted({*self._lanes.key_hashes(), *remembered})

    def signature(self, key_hash: str) -> object:
        """Something that differs whenever a snapshot of the pairing would."""
        policy = self._in_use(key_hash)
        if policy is not None:
            return policy.version
        document = self._ledger.get(key_hash)
        return None if document is None else (document.revision, document.settled, document.pin)

    def key(self, key_hash: str) -> PolicyKey | None:
        """The key behind a hash."""
        policy = self._lanes.policy(key_hash)
        if policy is not None:
            return policy.key
        document = self._ledger.get(key_hash)
        return None if document is None else document.key

    def snapshot(self, key_hash: str) -> Snapshot | None:
        """What is held for a pairing: of its policy if it is in use, else of what is remembered."""
        policy = self._in_use(key_hash)
        if policy is None:
            document = self._ledger.get(key_hash)
            if document is None:
                return None
            # Without a lane there are no capabilities to ask a static gate about.
            policy = self._start(document.key, document, static_default=False)
        return policy.snapshot(self._clock())

    def documents(self) -> Iterator[HintDocument]:
        """What is remembered and still says something."""
        return filter(_says_something, self._ledger.documents())

    async def pin(self, key_hash: str, *, speculate: bool, reason: str, author: str, ttl_s: float | None) -> None:
        """Takes a person's decision; it is stored before this returns, if the store answers."""
        key = self._known(key_hash)
        self._refuse_if_forced()
        now_s = self._clock()
        expires_at = None if ttl_s is None else now_s + ttl_s
        pin = Pin(speculate=speculate, reason=reason, author=author, pinned_at=now_s, expires_at=expires_at)
        policy = self._lanes.policy(key_hash)
        if policy is not None:
            policy.pin(pin)
        self._ledger.pin(key, StoredPin(**dataclasses.asdict(pin)))
        self._log.info("verdict pinned", key_hash=key_hash, speculate=speculate, author=author, ttl_s=ttl_s)
        await self._ledger.synchronise()

    async def unpin(self, key_hash: str) -> None:
        """Takes a person's decision back; taking back what is not there changes nothing."""
        key = self._known(key_hash)
        document, policy = self._ledger.get(key_hash), self._in_use(key_hash)
        unpinned = policy.unpin() if policy is not None else False
        if unpinned or (document is not None and document.pin is not None):
            self._ledger.unpin(key)
            self._log.info("verdict unpinned", key_hash=key_hash)
            await self._ledger.synchronise()

    async def reset(self, key_hash: str) -> Snapshot:
        """Forgets what was measured of a pairing; returns what is left."""
        key = self._known(key_hash)
        policy = self._lanes.policy(key_hash)
        if policy is not None:
            policy.reset()
        self._ledger.reset(key)
        self._log.info("verdict reset", key_hash=key_hash)
        await self._ledger.synchronise()
        snapshot = self.snapshot(key_hash)
        assert snapshot is not None  # noqa: S101  (the ledger remembers a reset)
        return snapshot

    def add(self, document: HintDocument, *, overwrite: bool) -> str:
        """Takes an imported document; returns why not, or nothing. `save_added` stores what was taken."""
        now_s = self._clock()
        if not _says_something(document.at(now_s)):
            return "it has expired" if _says_something(document) else "it holds neither a verdict nor a pin"
        taken = self._ledger.replace(document) if overwrite else self._ledger.add(document)
        return "" if taken else "what is known already is as new or newer"

    async def save_added(self) -> bool:
        """Stores what was imported; returns whether the store took everything."""
        await self._ledger.synchronise()
        return not self._ledger.down

    def _heard(self, before: HintDocument | None, document: HintDocument) -> None:
        """Brings what another process or an import says to the policy in use."""
        policy, now_s = self._lanes.policy(document.key_hash), self._clock()
        if policy is None or self._settings.mtp_force is not None:
            return
        if before is None or before.verdict_at != document.verdict_at:
            hint = hint_of(document.at(now_s))
            if hint is not None:
                if policy.adopt(hint, now_s):
                    self._log.info("verdict adopted", key_hash=document.key_hash, verdict=hint.verdict.name.lower())
            elif document.settled is None:
                policy.reset()
        pin = pin_of(document.at(now_s))
        if pin != policy.active_pin(now_s):
            if pin is None:
                policy.unpin()
            else:
                policy.pin(pin)

    def _in_use(self, key_hash: str) -> MtpPolicy | None:
        policy = self._lanes.policy(key_hash)
        if policy is not None:
            policy.advance(self._clock())
        return policy

    def _known(self, key_hash: str) -> PolicyKey:
        key = self.key(key_hash)
        if key is None:
            raise unknown_verdict(key_hash)
        return key

    def _refuse_if_forced(self) -> None:
        force = self._settings.mtp_force
        if force is not None:
            state = "on" if force else "off"
            raise Fault(
                FaultKind.FAILED_PRECONDITION,
                "FORCED",
                f"speculation is forced {state} for this process by BURSTGATE_MTP_FORCE, which a pin cannot overrule",
                metadata={"force": state},
            )

    def _start(self, key: PolicyKey, document: HintDocument | None, *, static_default: bool) -> MtpPolicy:
        policy = MtpPolicy.start(
            key,
            force=self._settings.mtp_force,
            adaptive=self._settings.mtp_adaptive,
            static_default=static_default,
            hint=None if document is None else hint_of(document),
            config=self._core_config,
            now_s=self._clock(),
        )
        pin = None if document is None else pin_of(document)
        if pin is not None:
            policy.pin(pin)
        return policy

    def _say_what_was_found(self, key: PolicyKey, document: HintDocument | None, why: str) -> None:
        settled = None if document is None else document.settled
        if not self._settings.mtp_adaptive:
            return
        if settled is None:
            self._log.info("profiling", pairing=key.display, key_hash=key.hash, why=why)
            return
        self._log.info(
            "hint loaded",
            pairing=key.display,
            key_hash=key.hash,
            verdict=settled.verdict,
            acceptance_rate=settled.acceptance_rate,
            samples=settled.samples,
        )


def unknown_verdict(key_hash: str) -> Fault:
    """The answer to a hash that names nothing."""
    return Fault(
        FaultKind.NOT_FOUND,
        "UNKNOWN_VERDICT",
        "no pairing with this key hash is in use or remembered; ListVerdicts names those that are",
        metadata={"key_hash": key_hash},
    )


def hint_of(document: HintDocument) -> Hint | None:
    """The verdict of a document as the core takes it."""
    settled = document.settled
    if settled is None:
        return None
    evidence = settled.evidence
    return Hint(
        key=document.key,
        verdict=Verdict[settled.verdict.upper()],
        acceptance_rate=settled.acceptance_rate,
        samples=settled.samples,
        evidence=None if evidence is None else Evidence(**evidence.model_dump()),
        settled_at_s=settled.settled_at,
        expires_at_s=settled.expires_at,
        version=settled.policy_version,
    )


def stored_verdict(hint: Hint, now_s: float) -> StoredVerdict:
    """A verdict of the core as it is stored."""
    evidence = hint.evidence
    settled_at = now_s if hint.settled_at_s is None else hint.settled_at_s
    return StoredVerdict(
        verdict="enable" if hint.verdict is Verdict.ENABLE else "decline",
        acceptance_rate=hint.acceptance_rate,
        samples=hint.samples,
        evidence=None if evidence is None else StoredEvidence(**dataclasses.asdict(evidence)),
        settled_at=settled_at,
        expires_at=settled_at if hint.expires_at_s is None else hint.expires_at_s,
        policy_version=hint.version,
    )


def pin_of(document: HintDocument) -> Pin | None:
    """The pin of a document as the core takes it."""
    return None if document.pin is None else Pin(**document.pin.model_dump())


def _says_something(document: HintDocument) -> bool:
    return document.settled is not None or document.pin is not None

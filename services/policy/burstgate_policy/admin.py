"""What a person or a platform asks: reading verdicts, watching them, overruling them, moving them, and asking why.

None of it is on the way of a grant: long answers are made in pieces between which grants are given,
and what takes real work is done on a thread. Nothing here decides and nothing here is kept.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from burstgate.policy.v1 import admin_pb2, admin_pb2_grpc
from burstgate_policy import admin_validation, convert
from burstgate_policy.config import PolicySettings
from burstgate_policy.core.replay import Replay, replay
from burstgate_policy.core.types import Snapshot, State, Verdict
from burstgate_policy.hints.document import HintDocument, HintDocumentError, decode
from burstgate_policy.lanes import LaneTable
from burstgate_policy.pairings import Pairings, unknown_verdict
from burstgate_policy.servicer import draining, unknown_lane
from burstgate_policy.steps import read_outcomes
from burstgate_policy.validation import LIMITS
from burstgate_policy.watch import LOOK_EVERY_S, VerdictFeed
from burstgate_runtime.faults import Fault, FaultKind

_DEFAULT_PAGE_SIZE = 100
# Views made between two looks at other calls: some 50 us each.
_VIEWS_AT_ONCE = 8


class PolicyAdminServicer(admin_pb2_grpc.PolicyAdminServiceServicer):
    """What a person asks."""

    def __init__(
        self,
        settings: PolicySettings,
        lanes: LaneTable,
        pairings: Pairings,
        feed: VerdictFeed,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._lanes = lanes
        self._pairings = pairings
        self._feed = feed
        self._clock = clock
        self._ending = asyncio.Event()

    async def GetVerdict(  # noqa: N802
        self, request: admin_pb2.GetVerdictRequest, context: Any
    ) -> admin_pb2.GetVerdictResponse:
        """Reads one verdict."""
        admin_validation.check_key_hash(request.key_hash)
        return admin_pb2.GetVerdictResponse(verdict=self._view(self._snapshot(request.key_hash)))

    async def ListVerdicts(  # noqa: N802
        self, request: admin_pb2.ListVerdictsRequest, context: Any
    ) -> admin_pb2.ListVerdictsResponse:
        """Reads a page of verdicts; a page token is the last key hash of the page before."""
        admin_validation.check_list_verdicts(request)
        size = request.page_size or _DEFAULT_PAGE_SIZE
        page: list[admin_pb2.VerdictView] = []
        async for snapshot in self._selected(request.filter, after=request.page_token):
            if len(page) == size:
                return admin_pb2.ListVerdictsResponse(verdicts=page, next_page_token=page[-1].snapshot.key_hash)
            page.append(self._view(snapshot))
        return admin_pb2.ListVerdictsResponse(verdicts=page)

    async def WatchVerdicts(  # noqa: N802
        self, request: admin_pb2.WatchVerdictsRequest, context: Any
    ) -> AsyncIterator[admin_pb2.WatchVerdictsResponse]:
        """Tells every change of a verdict, from the current ones or from a resume token on."""
        admin_validation.check_watch(request)
        resumed = self._feed.resume(request.resume_token)
        if resumed is None:
            raise admin_validation.bad_resume_token()
        revision, feed = resumed.revision, self._feed
        if resumed.restarted:
            yield admin_pb2.WatchVerdictsResponse(resume_token=feed.token(0), restarted=True)
        while not self._ending.is_set():
            for change in feed.after(revision):
                revision = change.revision
                snapshot = None if change.removed else self._pairings.snapshot(change.key.hash)
                if snapshot is None:
                    view = admin_pb2.VerdictView()
                    view.snapshot.key.CopyFrom(convert.key_to_proto(change.key))
                    view.snapshot.key_hash = change.key.hash
                    if _names_match(request.filter, view.snapshot.key):
                        yield admin_pb2.WatchVerdictsResponse(
                            verdict=view, removed=True, resume_token=feed.token(revision)
                        )
                elif _matches(request.filter, snapshot):
                    yield admin_pb2.WatchVerdictsResponse(
                        verdict=self._view(snapshot), resume_token=feed.token(revision)
                    )
            revision = max(revision, feed.revision)
            await self._pause(LOOK_EVERY_S)
        raise draining()

    async def PinVerdict(  # noqa: N802
        self, request: admin_pb2.PinVerdictRequest, context: Any
    ) -> admin_pb2.PinVerdictResponse:
        """Takes a person's decision."""
        admin_validation.check_pin(request)
        await self._pairings.pin(
            request.key_hash,
            speculate=request.speculate,
            reason=request.reason.strip(),
            author=request.author.strip(),
            ttl_s=request.ttl.seconds + request.ttl.nanos / 1e9 if request.HasField("ttl") else None,
        )
        return admin_pb2.PinVerdictResponse(verdict=self._view(self._snapshot(request.key_hash)))

    async def UnpinVerdict(  # noqa: N802
        self, request: admin_pb2.UnpinVerdictRequest, context: Any
    ) -> admin_pb2.UnpinVerdictResponse:
        """Takes a person's decision back."""
        admin_validation.check_key_hash(request.key_hash)
        await self._pairings.unpin(request.key_hash)
        return admin_pb2.UnpinVerdictResponse(verdict=self._view(self._snapshot(request.key_hash)))

    async def ResetVerdict(  # noqa: N802
        self, request: admin_pb2.ResetVerdictRequest, context: Any
    ) -> admin_pb2.ResetVerdictResponse:
        """Forgets what was measured."""
        admin_validation.check_key_hash(request.key_hash)
        return admin_pb2.ResetVerdictResponse(verdict=self._view(await self._pairings.reset(request.key_hash)))

    async def ExportHints(  # noqa: N802
        self, request: admin_pb2.ExportHintsRequest, context: Any
    ) -> admin_pb2.ExportHintsResponse:
        """Writes what is remembered."""
        admin_validation.check_export(request)
        documents = {document.key_hash: document for document in self._pairings.documents()}
        selected = [
            documents[snapshot.key_hash]
            async for snapshot in self._selected(request.filter)
            if snapshot.key_hash in documents
        ]
        hints = await asyncio.to_thread(_texts, selected)
        size = sum(map(len, hints))
        # Every text of a message has a few bytes of its own around it.
        if size + 8 * len(hints) > self._settings.max_message_bytes:
            raise Fault(
                FaultKind.RESOURCE_EXHAUSTED,
                "TOO_MANY_HINTS",
                f"{len(hints)} hints take {size} bytes and a message holds {self._settings.max_message_bytes}: "
                "export them in parts with a filter, or raise BURSTGATE_MAX_MESSAGE_BYTES",
            )
        return admin_pb2.ExportHintsResponse(hints=hints)

    async def ImportHints(  # noqa: N802
        self, request: admin_pb2.ImportHintsRequest, context: Any
    ) -> admin_pb2.ImportHintsResponse:
        """Takes hints that ExportHints wrote."""
        admin_validation.check_import(request)
        results: list[admin_pb2.ImportedHint] = []
        for read in await asyncio.to_thread(_read_all, request.hints):
            if isinstance(read, str):
                results.append(admin_pb2.ImportedHint(why_not=read))
                continue
            why_not = self._pairings.add(read, overwrite=request.overwrite)
            results.append(admin_pb2.ImportedHint(key_hash=read.key_hash, stored=not why_not, why_not=why_not))
        if any(result.stored for result in results) and not await self._pairings.save_added():
            for result in results:
                if result.stored:
                    result.stored = False
                    result.why_not = "it holds in memory and is stored when the hint store answers again"
        return admin_pb2.ImportHintsResponse(results=results)

    async def ExplainGrant(  # noqa: N802
        self, request: admin_pb2.ExplainGrantRequest, context: Any
    ) -> admin_pb2.ExplainGrantResponse:
        """Says which rules were consulted."""
        admin_validation.check_explain(request)
        entry = self._lanes.peek(request.lane_id)
        if entry is None:
            raise unknown_lane(request.lane_id)
        lane, now_s = entry.lane, self._clock()
        if request.HasField("situation"):
            situation = convert.situation_from_proto(request.situation)
            grant, grant_id = lane.preview(situation, now_s), ""
            rules = lane.explain(situation, now_s)
        elif lane.last_grant is not None:
            grant, grant_id = lane.last_grant, entry.last_grant_id
            rules = lane.explain(None, now_s)
        else:
            raise Fault(
                FaultKind.FAILED_PRECONDITION,
                "NO_GRANT_YET",
                "the lane was given no grant yet: ask about a situation instead",
                metadata={"lane_id": request.lane_id},
            )
        return admin_pb2.ExplainGrantResponse(
            grant=convert.grant_to_proto(grant, grant_id=grant_id, fresh_ms=self._settings.grant_fresh_ms),
            rules=map(convert.rule_to_proto, rules),
        )

    async def ReplayTrace(  # noqa: N802
        self, request: admin_pb2.ReplayTraceRequest, context: Any
    ) -> admin_pb2.ReplayTraceResponse:
        """Replays a trace on a thread, so that grants are given meanwhile."""
        admin_validation.check_replay(request)
        settings = admin_validation.replay_settings(request, self._settings)
        return await asyncio.to_thread(_replayed, request, settings)

    def end_streams(self) -> None:
        """Ends every watch, so that a drain need not wait for its client."""
        self._ending.set()

    def _snapshot(self, key_hash: str) -> Snapshot:
        snapshot = self._pairings.snapshot(key_hash)
        if snapshot is None:
            raise unknown_verdict(key_hash)
        return snapshot

    async def _selected(self, wanted: admin_pb2.VerdictFilter, *, after: str = "") -> AsyncIterator[Snapshot]:
        """The pairings a filter selects, by key hash; other calls run in between."""
        for number, key_hash in enumerate(self._pairings.keys()):
            if key_hash <= after:
                continue
            if number % _VIEWS_AT_ONCE == 0:
                await asyncio.sleep(0)
            snapshot = self._pairings.snapshot(key_hash)
            if snapshot is not None and _matches(wanted, snapshot):
                yield snapshot

    def _view(self, snapshot: Snapshot) -> admin_pb2.VerdictView:
        fresh_ms = self._settings.grant_fresh_ms
        entries = self._lanes.lanes_of(snapshot.key_hash)
        return admin_pb2.VerdictView(
            snapshot=convert.snapshot_to_proto(snapshot),
            lanes=[convert.lane_to_proto(entry, fresh_ms=fresh_ms) for entry in entries],
            regret=convert.regret_to_proto(self._lanes.account(snapshot.key_hash).regret),
        )

    async def _pause(self, wait_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._ending.wait()


def _matches(wanted: admin_pb2.VerdictFilter, snapshot: Snapshot) -> bool:
    return (
        _names_match(wanted, snapshot.key)
        and int(wanted.state) in (State.UNSPECIFIED, snapshot.state)
        and int(wanted.verdict) in (Verdict.UNSPECIFIED, snapshot.verdict)
        and (not wanted.pinned or snapshot.pin is not None)
    )


def _names_match(wanted: admin_pb2.VerdictFilter, key: Any) -> bool:
    """Whether a key, the contract's or the core's, has the wanted parts in its names."""
    return all(
        getattr(wanted, name).casefold() in getattr(key, name).casefold() for name in ("target", "drafter", "hardware")
    )


def _texts(documents: Iterable[HintDocument]) -> list[str]:
    return [document.model_dump_json() for document in documents]


def _read_all(hints: Iterable[str]) -> list[HintDocument | str]:
    return [_read(hint) for hint in hints]


def _read(hint: str) -> HintDocument | str:
    """A document, or why it is none."""
    try:
        return decode(hint)
    except HintDocumentError as error:
        return str(error)


def _replayed(request: admin_pb2.ReplayTraceRequest, settings: PolicySettings) -> admin_pb2.ReplayTraceResponse:
    """Times of the answer count from the beginning of the trace, so that the same trace gives the same answer."""
    lane = request.lane
    result: Replay = replay(
        key=convert.key_from_proto(lane.key),
        capabilities=convert.capabilities_from_proto(lane.capabilities),
        costs=convert.costs_from_proto(lane.costs),
        outcomes=read_outcomes(request.outcomes, most=LIMITS.replay_steps),
        config=settings.core_config(),
        force=settings.mtp_force,
        adaptive=settings.mtp_adaptive,
    )
    return admin_pb2.ReplayTraceResponse(
        steps=map(convert.replayed_step_to_proto, result.steps),
        recorded_ms=result.recorded_ms,
        replayed_ms=result.replayed_ms,
        tokens=result.tokens,
        snapshot=convert.snapshot_to_proto(result.snapshot),
    )

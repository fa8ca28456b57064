"""The engine: one thread that owns everything of MLX and turns submitted answers into events.

Concurrency model. Callers on any thread only let rows wait, under `_lock`, and set a ticket's flag;
the engine's thread loads the models, admits rows between steps, runs at most one prompt chunk and one step of
the whole batch a pass, and calls each answer's sink. MLX arrays and streams never leave that thread, which
ends by clearing its streams, since MLX otherwise aborts the process at exit.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import structlog

from burstgate_decode.drafters.base import Drafter
from burstgate_decode.engine.admission import Admission
from burstgate_decode.engine.batch import Batch
from burstgate_decode.engine.bursts import BurstRunner, situation_of
from burstgate_decode.engine.cache_room import CacheRoom
from burstgate_decode.engine.grants import GrantSource
from burstgate_decode.engine.limits import EngineLimits
from burstgate_decode.engine.prefix_cache import PrefixCache
from burstgate_decode.engine.prefix_store import PrefixStore
from burstgate_decode.engine.request import AnswerRequest, Claim, Clock, Failure, Sink, SpeculationChoice
from burstgate_decode.engine.rounds import prefill_chunk, prefill_end
from burstgate_decode.engine.row import Row, StepLabel, Ticket
from burstgate_decode.engine.stepper import GuardMargins, Stepper
from burstgate_decode.engine.stopping import Stopping
from burstgate_decode.metrics import observe_wait
from burstgate_decode.models.cache_cost import cache_cost, default_cache_bytes
from burstgate_decode.models.target import Target
from burstgate_policy.core.types import Mode, Reason, Situation
from burstgate_runtime.faults import Fault, FaultKind

_log = structlog.get_logger(__name__)

# MLX keeps freed buffers for arrays of their size. Lengths grow with every step, so most never fit again.
_PASSES_PER_CLEARING = 512


@dataclass(frozen=True)
class Pairing:
    """What the engine runs: loaded on the engine's thread."""

    target: Target
    drafter: Drafter | None
    draft_width: int
    """Widest verify, in rows; 1 without a drafter."""
    margins: GuardMargins
    """Which choices are decided again by a one-row step."""
    grants: GrantSource
    plain_reason: Reason = Reason.NO_DRAFTER
    """Why nothing speculates, without a drafter."""
    plain_because: str = ""
    """The same as a sentence."""
    stopping: Stopping | None = None
    """Ends rounds early; None runs them at their full width."""
    any_cut: bool = False
    """Whether a token's keys, values and logits are the same bits however the tokens are cut into forwards."""


class EngineDiedError(Exception):
    """A defect ended the engine's thread; nothing can be generated any more."""


class Engine:
    """Runs answers. Public methods may be called from any thread."""

    def __init__(self, load: Callable[[], Pairing], limits: EngineLimits, clock: Clock) -> None:
        """`load` runs on the engine's thread."""
        self._load = load
        self._limits = limits
        self._clock = clock
        # Guards the two fields below; never held across a step.
        self._lock = threading.Condition()
        self._admission: Admission[Row] = Admission(limits)
        self._stopping = False
        self._active: list[Row] = []
        # Rows whose prompts are still being read, the next to run first.
        self._prefilling: deque[Row] = deque()
        self._passes = 0
        self._prefix_store = PrefixStore(limits.prefix_cache_bytes)
        # Whether a prefix was copied since the last step, which waits for the step in flight.
        self._copied = False
        self._loaded = threading.Event()
        self._load_error: BaseException | None = None
        self._death: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Starts the thread; `wait_loaded` says how it went."""
        self._thread.start()

    def wait_loaded(self) -> None:
        """Blocks until the models are loaded; raises what loading raised."""
        self._loaded.wait()
        if self._load_error is not None:
            raise self._load_error

    def wait_ended(self) -> None:
        """Blocks until the thread has ended; raises what it died of, unless it was stopped."""
        self._thread.join()
        if self._death is not None:
            raise EngineDiedError("the engine's thread died; the log has the cause") from self._death

    def submit(
        self,
        answers: Sequence[tuple[AnswerRequest, Sink]],
        claim: Claim = Claim(),  # noqa: B008  (immutable)
    ) -> Ticket:
        """Queues the answers of one request, all or none.

        Raises `Fault` when stopping, when a limit is reached, or when the claim's deadline cannot be met.
        """
        ticket = Ticket()
        rows = [Row(request, ticket, sink, self._clock, claim) for request, sink in answers]
        with self._lock:
            if self._stopping:
                raise Fault(FaultKind.UNAVAILABLE, "SHUTTING_DOWN", "the server is shutting down")
            self._admission.submit(rows, self._clock())
            self._lock.notify()
        return ticket

    def load_counts(self) -> tuple[int, int]:
        """Answers being generated and answers waiting."""
        with self._lock:
            return self._admission.active, self._admission.waiting

    def cache_bytes(self) -> tuple[int, int]:
        """Memory reserved for the caches of the answers being generated, and the most there is; 0 while loading."""
        with self._lock:
            room = self._admission.room
            return self._admission.reserved_bytes, room.limit_bytes if room is not None else 0

    def prefix_cache_bytes(self) -> int:
        """Bytes held for prompts that begin as earlier ones did."""
        return self._prefix_store.nbytes

    def stop(self) -> None:
        """Abandons whatever still runs, ends the thread and waits for it."""
        with self._lock:
            self._stopping = True
            self._lock.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            try:
                self._pairing = self._load()
                self._measure_room()
            except BaseException as error:  # noqa: BLE001  (handed to whoever waits for the load)
                self._load_error = error
                return
            finally:
                self._loaded.set()
            pairing = self._pairing
            self._batch = Batch(pairing.target, pairing.drafter)
            self._prefixes = PrefixCache(
                self._batch,
                self._prefix_store,
                any_cut=pairing.any_cut,
                chunk_tokens=self._limits.prefill_chunk_tokens,
            )
            with self._lock:
                self._admission.reusable = self._prefixes.reusable
            self._stepper = Stepper(
                self._batch, pairing.margins, pairing.draft_width, self._fail, self._clock, pairing.stopping
            )
            self._bursts = BurstRunner(pairing.grants)
            while self._admit():
                self._pass()
        except BaseException as error:  # noqa: BLE001  (the thread ends here; whoever follows it is told)
            _log.exception("engine_died")
            self._death = error
        finally:
            self._abandon()
            mx.synchronize()
            mx.clear_streams()

    def _measure_room(self) -> None:
        cost = cache_cost(self._pairing.target, self._pairing.drafter)
        limit_bytes = default_cache_bytes() if self._limits.cache_bytes is None else self._limits.cache_bytes
        with self._lock:
            self._admission.room = CacheRoom(cost, limit_bytes, overhang_tokens=self._pairing.draft_width)
        _log.info("cache_room", token_bytes=cost.token_bytes, limit_bytes=limit_bytes)

    def _admit(self) -> bool:
        """Fills free places, waiting while there is nothing to run. False when stopping."""
        if not self._active:
            self._bursts.idle()
        admission = self._admission
        with self._lock:
            late = admission.expire(self._clock())
            while not (self._stopping or late or admission.waiting or self._active):
                self._lock.wait()
                late = admission.expire(self._clock())
            stopping = self._stopping
            admitted = admission.admit() if not stopping else []
        for row, fault in late:
            row.fail(Failure(row.request.index, fault))
        for row in admitted:
            self._active.append(row)
            self._guarded(row, self._open)
        return not stopping

    def _open(self, row: Row) -> None:
        drafter = self._pairing.drafter
        row.admit(self._pairing.target, drafter is not None and row.request.speculation is not SpeculationChoice.OFF)
        observe_wait(row.queue_ms)
        self._batch.join(row)
        if row.prefill_left > 0:
            self._prefilling.append(row)

    def _pass(self) -> None:
        """At most one chunk of one prompt, then one step of all decoding rows."""
        self._drop_ended()
        self._passes += 1
        if self._passes % _PASSES_PER_CLEARING == 0:
            mx.clear_cache()
        read = self._prefill_next()
        if self._batch.decoding:
            self._step(disturbed=read is not None or self._copied)
        self._copied = False
        if read is not None:
            # After the step, so that a first token never waits for it.
            self._keep(read)
        self._drop_ended()
        if not any(self._is_auto(row) for row in self._active):
            self._bursts.idle()

    def _drop_ended(self) -> None:
        # Asked once, since a caller may cancel at any moment.
        ended = [row for row in self._active if not row.alive]
        for row in ended:
            if row.slot is not None:
                self._keep(row)
                self._batch.leave(row)
        if ended:
            gone = {id(row) for row in ended}
            self._active = [row for row in self._active if id(row) not in gone]
            self._prefilling = deque(row for row in self._prefilling if id(row) not in gone)
            with self._lock:
                self._admission.held = self._batch.cache.shape
                for row in ended:
                    self._admission.release(row)
        if not self._active:
            mx.clear_cache()

    def _keep(self, row: Row) -> None:
        if row.slot is not None and not row.failed:
            self._copied |= self._prefixes.keep(row)

    def _prefill_next(self) -> Row | None:
        """Runs a chunk of the prompt whose turn it is, and returns its row.

        Prompts take turns, a chunk each, so that a long one neither waits for every short one nor holds them up.
        Since a step of the decoding rows follows every chunk, a running answer never waits for more than one.
        """
        if not self._prefilling:
            return None
        row = self._prefilling.popleft()
        self._guarded(row, self._prefill)
        if row.alive and row.prefill_left > 0:
            self._prefilling.append(row)
        return row

    def _prefill(self, row: Row) -> None:
        start_ms = self._clock()
        self._prefixes.restore(row)
        restored_ms, read_before, chunk_tokens = self._clock(), row.prefilled, self._chunk_tokens()
        if row.prefill_left <= chunk_tokens:
            self._bursts.expect(self._situation([*self._batch.decoding, row]))
        if self._takes_last_token(row, chunk_tokens):
            prefill_end(self._batch, row, chunk_tokens)
        else:
            prefill_chunk(self._batch, row, chunk_tokens)
        now_ms = self._clock()
        row.prefill_ms += now_ms - start_ms
        with self._lock:
            self._admission.pace.read(row.prefilled - read_before, now_ms - restored_ms, now_ms)
        if row.prefill_left == 0:
            self._batch.start_decoding(row)

    def _takes_last_token(self, row: Row, chunk_tokens: int) -> bool:
        """Whether the next chunk can take in the prompt's last token, which is otherwise left to a step.

        Beside decoding rows it need not: that token shares their step. Without a split, logits of all tokens would be
        computed for one's.
        """
        if self._batch.decoding or row.prefill_left >= chunk_tokens:
            return False
        return self._pairing.any_cut and self._pairing.target.split is not None

    def _chunk_tokens(self) -> int:
        """Of the next chunk. A prompt that holds up nobody is read in fewer, larger ones: each costs a forward."""
        alone = len(self._active) == 1 and self._pairing.any_cut
        return self._limits.longest_chunk_tokens if alone else self._limits.prefill_chunk_tokens

    def _step(self, disturbed: bool) -> None:
        """One step of all decoding rows. `disturbed`: a step in flight was held up by a prompt's chunk or a copy."""
        flight = self._batch.flight
        disturbed = disturbed and flight is not None
        situation = self._situation(self._batch.decoding)
        start_ms = self._clock()
        if situation is not None:
            self._bursts.begin(situation)
        done = self._stepper.step(self._label, self._next_is_plain)
        now_ms = self._clock()
        if situation is not None:
            self._bursts.end(done, situation, now_ms - start_ms, disturbed)
        if flight is None or not flight.landed:
            with self._lock:
                self._admission.pace.stepped(now_ms - start_ms, now_ms)

    def _situation(self, rows: Sequence[Row]) -> Situation | None:
        """What a burst of a batch of these rows runs on; None where nobody leaves speculation to the policy."""
        auto = [row for row in rows if self._is_auto(row)]
        return situation_of(rows, auto, [self._stepper.draft_width_of(row) for row in auto]) if auto else None

    def _is_auto(self, row: Row) -> bool:
        return self._pairing.drafter is not None and row.request.speculation is SpeculationChoice.AUTO

    def _label(self, row: Row) -> StepLabel:
        if self._is_auto(row):
            return self._bursts.label(row)
        if self._pairing.drafter is None:
            label = StepLabel(Mode.PLAIN, 1, self._pairing.plain_reason, "")
        elif row.request.speculation is SpeculationChoice.ON:
            label = StepLabel(Mode.SPECULATIVE, self._stepper.draft_width_of(row), Reason.REQUEST_ON, "")
        else:
            label = StepLabel(Mode.PLAIN, 1, Reason.REQUEST_OFF, "")
        row.stats.bursts.setdefault((label.mode, label.reason), 1)
        row.stats.explanation = _FIXED_SENTENCES.get(label.reason, self._pairing.plain_because)
        return label

    def _next_is_plain(self) -> bool:
        """Whether the step after this one is known to be plain for every row."""
        rows = self._batch.decoding
        if any(row.request.speculation is SpeculationChoice.ON and self._may_draft_next(row) for row in rows):
            return False
        return not any(self._is_auto(row) for row in rows) or self._bursts.next_is_plain()

    def _may_draft_next(self, row: Row) -> bool:
        return row.drafts and row.remaining > 2

    def _guarded(self, row: Row, work: Callable[[Row], None]) -> None:
        try:
            work(row)
        except Exception as error:  # noqa: BLE001  (whatever one row raises must end that row alone)
            self._fail(row, error)

    def _fail(self, row: Row, error: Exception) -> None:
        _log.error("row_failed", request_id=row.request.request_id, exc_info=error)
        row.fail(Failure(row.request.index, error))

    def _abandon(self) -> None:
        with self._lock:
            self._stopping = True
            rows = [*self._active, *self._admission.close()]
        self._active = []
        self._prefilling.clear()
        stopped = Fault(FaultKind.UNAVAILABLE, "SHUTTING_DOWN", "the server shut down before the answer was finished")
        for row in rows:
            if not row.finished:
                row.fail(Failure(row.request.index, stopped))


_FIXED_SENTENCES = {
    Reason.REQUEST_ON: "the request asked for speculation",
    Reason.REQUEST_OFF: "the request asked for no speculation",
}

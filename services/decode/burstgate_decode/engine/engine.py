"""The engine: one thread that owns everything of MLX and turns submitted answers into events.

Concurrency model. Callers on any thread only append to `_waiting` under `_lock` and set a ticket's flag;
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
from burstgate_decode.engine.batch import Batch
from burstgate_decode.engine.bursts import BurstRunner, situation_of
from burstgate_decode.engine.grants import GrantSource
from burstgate_decode.engine.limits import EngineLimits
from burstgate_decode.engine.prefix_cache import PrefixCache
from burstgate_decode.engine.prefix_store import PrefixStore
from burstgate_decode.engine.request import AnswerRequest, Clock, Failure, Sink, SpeculationChoice
from burstgate_decode.engine.rounds import prefill_chunk
from burstgate_decode.engine.row import Row, StepLabel, Ticket
from burstgate_decode.engine.stepper import GuardMargins, Stepper
from burstgate_decode.engine.stopping import Stopping
from burstgate_decode.models.target import Target
from burstgate_policy.core.types import Mode, Reason
from burstgate_runtime.faults import Fault, FaultKind

_log = structlog.get_logger(__name__)

# Guess of how soon a place is free, sent to a caller that found none.
_RETRY_AFTER_MS = 1000
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
    """Whether a token's keys and values are the same bits however the tokens are cut into forwards."""


class EngineDiedError(Exception):
    """A defect ended the engine's thread; nothing can be generated any more."""


class Engine:
    """Runs answers. Public methods may be called from any thread."""

    def __init__(self, load: Callable[[], Pairing], limits: EngineLimits, clock: Clock) -> None:
        """`load` runs on the engine's thread."""
        self._load = load
        self._limits = limits
        self._clock = clock
        # Guards the three fields below; held for appends and reads only, never across a step.
        self._lock = threading.Condition()
        self._waiting: deque[Row] = deque()
        self._stopping = False
        self._active_count = 0
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

    def submit(self, answers: Sequence[tuple[AnswerRequest, Sink]]) -> Ticket:
        """Queues the answers of one request, all or none. Raises `Fault` when full or stopping."""
        ticket = Ticket()
        rows = [Row(request, ticket, sink, self._clock) for request, sink in answers]
        with self._lock:
            if self._stopping:
                raise Fault(FaultKind.UNAVAILABLE, "SHUTTING_DOWN", "the server is shutting down")
            room = self._limits.max_queued_rows + self._limits.max_active_rows
            held = len(self._waiting) + self._active_count
            if held + len(rows) > room:
                raise Fault(
                    FaultKind.RESOURCE_EXHAUSTED,
                    "QUEUE_FULL",
                    f"{held} answers are running or waiting, and at most {room} may be",
                    retry_after_ms=_RETRY_AFTER_MS,
                )
            self._waiting.extend(rows)
            self._lock.notify()
        return ticket

    def load_counts(self) -> tuple[int, int]:
        """Answers being generated and answers waiting."""
        with self._lock:
            return self._active_count, len(self._waiting)

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

    def _admit(self) -> bool:
        """Fills free places, waiting while there is nothing to run. False when stopping."""
        if not self._active:
            self._bursts.idle()
        admitted: list[Row] = []
        with self._lock:
            while True:
                self._waiting = deque(row for row in self._waiting if not row.ticket.cancelled)
                if self._stopping or self._waiting or self._active:
                    break
                self._lock.wait()
            if self._stopping:
                return False
            while self._waiting and len(self._active) + len(admitted) < self._limits.max_active_rows:
                admitted.append(self._waiting.popleft())
            self._active_count = len(self._active) + len(admitted)
        for row in admitted:
            self._active.append(row)
            self._guarded(row, self._open)
        return True

    def _open(self, row: Row) -> None:
        drafter = self._pairing.drafter
        row.admit(self._pairing.target, drafter is not None and row.request.speculation is not SpeculationChoice.OFF)
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
        for row in self._active:
            if not row.alive and row.slot is not None:
                self._keep(row)
                self._batch.leave(row)
        self._active = [row for row in self._active if row.alive]
        self._prefilling = deque(row for row in self._prefilling if row.alive)
        with self._lock:
            self._active_count = len(self._active)
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
        prefill_chunk(self._batch, row, self._limits.prefill_chunk_tokens)
        row.prefill_ms += self._clock() - start_ms
        if row.prefill_left == 0:
            self._batch.start_decoding(row)

    def _step(self, disturbed: bool) -> None:
        """One step of all decoding rows. `disturbed`: a step in flight was held up by a prompt's chunk or a copy."""
        rows = self._batch.decoding
        auto = [row for row in rows if self._is_auto(row)]
        if not auto:
            self._stepper.step(self._label, self._next_is_plain)
            return
        disturbed = disturbed and self._batch.flight is not None
        situation = situation_of(rows, auto, [self._stepper.draft_width_of(row) for row in auto])
        start_ms = self._clock()
        self._bursts.begin(situation)
        done = self._stepper.step(self._label, self._next_is_plain)
        self._bursts.end(done, situation, self._clock() - start_ms, disturbed)

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
            rows = [*self._active, *self._waiting]
            self._waiting.clear()
            self._active_count = 0
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

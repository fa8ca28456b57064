"""Drives a whole engine: grants at random, and answers that are collected on the caller's side."""

import contextlib
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.unit.decode.conftest import WIDEST, clock_ms

from burstgate_decode.engine import engine as engine_module
from burstgate_decode.engine.engine import Engine, Pairing
from burstgate_decode.engine.limits import EngineLimits
from burstgate_decode.engine.request import AnswerRequest, Claim, Completion, Delta, Event
from burstgate_decode.engine.rounds import prefill_chunk, prefill_end
from burstgate_policy.core.types import Grant, Mode, Reason, Situation, StepRecord

_ENDED_S = 120.0


def chunks_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the tokens of every chunk of a prompt that an engine reads from now on, not counting its last."""
    read: list[int] = []

    def noting(reads: Callable[[Any, Any, int], None]) -> Callable[[Any, Any, int], None]:
        def chunk(batch: Any, row: Any, chunk_tokens: int) -> None:
            before = row.prefilled
            reads(batch, row, chunk_tokens)
            read.append(row.prefilled - before)

        return chunk

    monkeypatch.setattr(engine_module, "prefill_chunk", noting(prefill_chunk))
    monkeypatch.setattr(engine_module, "prefill_end", noting(prefill_end))
    return read


@contextlib.contextmanager
def running(pairing: Pairing, limits: EngineLimits) -> Iterator[Engine]:
    """An engine that has loaded its pairing, for the length of the block."""
    engine = Engine(lambda: pairing, limits, clock_ms)
    engine.start()
    engine.wait_loaded()
    try:
        yield engine
    finally:
        engine.stop()


class RandomGrants:
    """Grants of random modes, widths and lengths; keeps what it was told."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.situations: list[Situation] = []
        self.records: list[StepRecord] = []
        self._upcoming: Grant | None = None

    def prefetch(self, situation: Situation) -> None:
        self._upcoming = self._grant()

    def upcoming(self, wait_ms: float) -> Grant | None:
        return self._upcoming

    def next(self, situation: Situation) -> Grant:
        self.situations.append(situation)
        grant, self._upcoming = self._upcoming or self._grant(), None
        return grant

    def report(self, step: StepRecord) -> None:
        self.records.append(step)

    def idle(self) -> None:
        self._upcoming = None

    def _grant(self) -> Grant:
        mode = self._rng.choice((Mode.PLAIN, Mode.SPECULATIVE, Mode.PROBE_PLAIN, Mode.PROBE_SPECULATIVE))
        width = self._rng.randint(2, WIDEST) if mode.speculates else 1
        return Grant(mode, width, self._rng.randint(1, 6), Reason.GATE_SPECULATIVE, "at random")


class Answers:
    """Collects the answers to requests."""

    def __init__(self, engine: Engine, requests: list[AnswerRequest], claim: Claim = Claim()) -> None:  # noqa: B008
        self.requests = requests
        self.events: list[list[Event]] = [[] for _ in requests]
        self.arrived: queue.Queue[int] = queue.Queue()
        self._ended = [threading.Event() for _ in requests]
        self.tickets = [engine.submit([(request, self._sink(at))], claim) for at, request in enumerate(requests)]

    def _sink(self, at: int) -> Callable[[Sequence[Event]], None]:
        def sink(events: Sequence[Event]) -> None:
            for event in events:
                self.events[at].append(event)
                self.arrived.put(at)
                if not isinstance(event, Delta):
                    self._ended[at].set()

        return sink

    def tokens(self, at: int) -> list[int]:
        assert self._ended[at].wait(_ENDED_S)
        assert isinstance(self.events[at][-1], Completion)
        return [token for event in self.events[at] if isinstance(event, Delta) for token in event.token_ids]

    def wait_delivery(self) -> int:
        return self.arrived.get(timeout=_ENDED_S)


def nothing_is_left(engine: Engine) -> None:
    """Waits for the last row to leave, and looks for what it should have taken along."""
    deadline_s = time.monotonic() + _ENDED_S
    while engine.load_counts() != (0, 0) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert engine.load_counts() == (0, 0)
    assert engine.cache_bytes()[0] == 0
    assert not engine._admission._turns._tenants
    batch: Any = engine._batch
    assert not batch.rows
    assert batch.cache.nbytes == 0
    if engine._pairing.drafter is not None and engine._pairing.drafter.kind == "mtp_head":
        assert batch.drafts._waiting == []
        assert batch.drafts._cache.nbytes == 0

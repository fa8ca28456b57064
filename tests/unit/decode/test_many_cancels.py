"""Cancels by the thousand, at every phase of an answer and under every limit: no row, slot or byte stays behind.

`BURSTGATE_TEST_CANCELS` says how many; `make chaos-cancels` runs 10,000.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest
from tests.unit.decode.conftest import TINY_VOCAB, WIDEST, Pair, clock_ms
from tests.unit.decode.driving import RandomGrants, nothing_is_left

from burstgate_decode.engine.engine import Engine, Pairing
from burstgate_decode.engine.limits import EngineLimits
from burstgate_decode.engine.request import (
    AnswerRequest,
    Claim,
    Completion,
    Delta,
    Event,
    Failure,
    Priority,
    SamplingParams,
    SpeculationChoice,
)
from burstgate_decode.engine.row import Ticket
from burstgate_decode.engine.stepper import GuardMargins
from burstgate_runtime.faults import Fault

CANCELS = int(os.environ.get("BURSTGATE_TEST_CANCELS", "1500"))
# Enough that some always wait, few enough that most come to run.
_OPEN_REQUESTS = 28


@pytest.fixture
def engine(tiny_pair: Pair) -> Iterator[Engine]:
    limits = EngineLimits(
        max_active_rows=8, max_queued_rows=32, prefill_chunk_tokens=16, tenant_max_active_rows=5,
        tenant_max_queued_rows=9, cache_bytes=16 * 512 * 384,
    )  # fmt: skip
    pairing = Pairing(tiny_pair.target, tiny_pair.drafter, WIDEST, GuardMargins(), RandomGrants(8))
    running = Engine(lambda: pairing, limits, clock_ms)
    running.start()
    running.wait_loaded()
    yield running
    running.stop()


class Call:
    """One request and what came of it. With `cancel_after`, its own sink cancels it inside the engine's step."""

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self.answers = rng.choice((1, 1, 1, 2, 3))
        self.events: list[Event] = []
        self.cancel_after = rng.choice((None, None, rng.randint(1, 12)))
        self.cancelled_in = ""
        self.ticket: Ticket | None = None
        self._engine = engine
        request = _request(rng)
        claim = Claim(
            rng.choice(("", "a", "b", "c")), rng.choice(list(Priority)), rng.choice((None, None, rng.uniform(0, 400)))
        )
        self.ticket = engine.submit([(request, self._sink) for _ in range(self.answers)], claim)

    @property
    def ended(self) -> bool:
        """Whether nothing more may come of it."""
        over = sum(isinstance(event, Completion) for event in self.events)
        return bool(self.cancelled_in) or over == self.answers or any(isinstance(e, Failure) for e in self.events)

    def cancel(self) -> None:
        assert self.ticket is not None
        if not self.cancelled_in:
            self.cancelled_in = self._phase()
        self.ticket.cancel()

    def _phase(self) -> str:
        if self.ended:
            return "ended"
        # Read while the engine runs: right but for what changes this very moment.
        rows = [row for row in list(self._engine._active) if row.ticket is self.ticket]
        if not rows:
            return "waiting"
        return "decoding" if any(isinstance(event, Delta) for event in self.events) else "reading"

    def _sink(self, events: Sequence[Event]) -> None:
        for event in events:
            self.events.append(event)
            if len(self.events) == self.cancel_after and self.ticket is not None:
                self.cancel()


def _request(rng: random.Random) -> AnswerRequest:
    return AnswerRequest(
        request_id="test",
        index=0,
        prompt=tuple(rng.randrange(TINY_VOCAB) for _ in range(rng.choice((1, 2, 9, 40, 270)))),
        max_tokens=rng.randint(1, 30),
        sampling=SamplingParams(temperature=rng.choice((0.0, 0.0, 1.0)), seed=rng.randrange(100)),
        speculation=rng.choice(list(SpeculationChoice)),
        max_draft_width=rng.choice((0, 0, 2, 5)),
    )


def _after_a_while(rng: random.Random, engine: Engine) -> Callable[[], bool]:
    """True once the engine has made a random number of passes."""
    due = engine._passes + rng.choice((0, 0, 1, 3, 10))
    return lambda: engine._passes >= due or engine.load_counts() == (0, 0)


@pytest.mark.timeout(1800)
def test_cancels_at_every_phase_leave_nothing_behind(engine: Engine) -> None:
    rng = random.Random(11)
    calls: list[Call] = []
    phases: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    while phases.total() < CANCELS:
        due = _after_a_while(rng, engine)
        while not due():
            engine._thread.join(0.0002)
        while len(calls) < _OPEN_REQUESTS:
            try:
                calls.append(Call(engine, rng))
            except Fault as fault:
                refused[fault.reason] += 1
                break
        if calls:
            call = calls.pop(rng.randrange(len(calls)))
            call.cancel()
            phases[call.cancelled_in] += 1
            failed.update(event.error.reason for event in call.events if isinstance(event, Failure))
    for call in calls:
        call.cancel()
    nothing_is_left(engine)
    print(f"\n{phases.total()} cancels: {dict(phases)}; refused: {dict(refused)}; failed: {dict(failed)}")
    assert min(phases[name] for name in ("waiting", "reading", "decoding", "ended")) > CANCELS // 50, phases
    assert {"QUEUE_FULL", "TENANT_QUEUE_FULL"} <= refused.keys()
    assert set(failed) <= {"DEADLINE_UNREACHABLE"}

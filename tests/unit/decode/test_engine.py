"""The engine as callers see it: rows of every kind share it, come and go, and leave nothing behind."""

import contextlib
import itertools
import queue
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.decode.conftest import WIDEST, BatchDriver, Pair, clock_ms

from burstgate_decode.engine import engine as engine_module
from burstgate_decode.engine.engine import Engine, Pairing
from burstgate_decode.engine.limits import EngineLimits
from burstgate_decode.engine.request import AnswerRequest, Completion, Delta, Event, SamplingParams, SpeculationChoice
from burstgate_decode.engine.rounds import prefill_chunk
from burstgate_decode.engine.stepper import GuardMargins
from burstgate_policy.core.types import Grant, Mode, Reason, Situation, StepRecord

Ask = Callable[..., AnswerRequest]
_ENDED_S = 60.0


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

    def __init__(self, engine: Engine, requests: list[AnswerRequest]) -> None:
        self.requests = requests
        self.events: list[list[Event]] = [[] for _ in requests]
        self.arrived: queue.Queue[int] = queue.Queue()
        self.tickets = [engine.submit([(request, self._sink(at))]) for at, request in enumerate(requests)]
        self._ended = [threading.Event() for _ in requests]

    def _sink(self, at: int) -> Callable[[Event], None]:
        def sink(event: Event) -> None:
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


@pytest.fixture
def grants() -> RandomGrants:
    return RandomGrants(4)


@pytest.fixture
def engine(pair: Pair, grants: RandomGrants) -> Iterator[Engine]:
    limits = EngineLimits(max_active_rows=8, max_queued_rows=64, prefill_chunk_tokens=32)
    pairing = Pairing(pair.target, pair.drafter, WIDEST, GuardMargins(), grants)
    running = Engine(lambda: pairing, limits, clock_ms)
    running.start()
    running.wait_loaded()
    yield running
    running.stop()


@pytest.fixture
def requests(ask: Ask) -> list[AnswerRequest]:
    """More than there are places, of every mode, length and kind of options."""
    modes = list(SpeculationChoice)
    return [
        ask(
            f"Tell me about the number {place}. " * (1 + 5 * (place % 3)),
            max_tokens=8 + place,
            ignore_eos=True,
            speculation=modes[place % 3],
            max_draft_width=(0, 3)[place % 2],
            sampling=SamplingParams(temperature=(0.0, 0.7)[place % 4 == 3], seed=place),
        )
        for place in range(10)
    ]


def nothing_is_left(engine: Engine) -> None:
    with contextlib.suppress(TimeoutError):
        deadline = clock_ms() + 1e3 * _ENDED_S
        while engine.load_counts() != (0, 0) and clock_ms() < deadline:
            threading.Event().wait(0.02)
    assert engine.load_counts() == (0, 0)
    assert not engine._batch.rows
    assert engine._batch.cache.nbytes == 0


def test_rows_of_every_mode_answer_what_they_answer_alone(
    engine: Engine, rows: BatchDriver, requests: list[AnswerRequest], grants: RandomGrants
) -> None:
    answers = Answers(engine, requests)
    found = [answers.tokens(at) for at in range(len(requests))]
    nothing_is_left(engine)
    engine.stop()
    assert found == [rows.run(request, lambda _step: 1).answer for request in requests]
    assert max(situation.width for situation in grants.situations) == 8
    assert max(record.width for record in grants.records) == 8


def test_cancels_at_random_change_no_other_answer_and_leave_nothing(
    engine: Engine, rows: BatchDriver, requests: list[AnswerRequest]
) -> None:
    rng = random.Random(5)
    answers = Answers(engine, requests)
    gone = rng.sample(range(len(requests)), 5)
    for at in gone:
        for _ in range(rng.randint(0, 6)):
            answers.wait_delivery()
        answers.tickets[at].cancel()
    kept = [at for at in range(len(requests)) if at not in gone]
    found = [answers.tokens(at) for at in kept]
    nothing_is_left(engine)
    engine.stop()
    assert found == [rows.run(requests[at], lambda _step: 1).answer for at in kept]


def test_what_is_reported_is_counted_over_all_rows(engine: Engine, ask: Ask, grants: RandomGrants) -> None:
    answers = Answers(engine, [ask("Count from 1 to 40.", max_tokens=16, ignore_eos=True) for _ in range(3)])
    stats = []
    for at in range(3):
        assert len(answers.tokens(at)) == 16
        (last,) = [event for event in answers.events[at] if isinstance(event, Completion)]
        stats.append(last.speculation)
    assert sum(record.emitted for record in grants.records) >= 48
    assert sum(record.proposed for record in grants.records) == sum(one.proposed for one in stats)
    assert sum(sum(record.accepted_by_position) for record in grants.records) == sum(one.accepted for one in stats)


def test_a_running_answer_waits_for_one_chunk_at_a_time_and_prompts_take_turns(
    engine: Engine, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    def chunk(batch: Any, row: Any, chunk_tokens: int) -> None:
        before = row.prefilled
        prefill_chunk(batch, row, chunk_tokens)
        assert row.prefilled - before <= 32
        happened.append(row.request.request_id)

    monkeypatch.setattr(engine_module, "prefill_chunk", chunk)
    running = ask("Hi", max_tokens=40, ignore_eos=True, speculation=SpeculationChoice.OFF)
    first = Answers(engine, [running])
    first.wait_delivery()
    happened.clear()
    take = first.events[0].append
    first.events[0] = _Watched(take, happened)  # type: ignore[assignment]
    long = ask("word " * 150, max_tokens=1)
    prompts = Answers(engine, [replace(long, request_id="long"), replace(long, request_id="other")])
    assert len(prompts.tokens(0)) == 1
    assert len(prompts.tokens(1)) == 1
    chunks = [name for name in happened if name != "delta"]
    assert chunks[: 2 * 4] == ["long", "other"] * 4
    assert not any(one != "delta" and other != "delta" for one, other in itertools.pairwise(happened))


class _Watched(list[Event]):
    """Notes deliveries among the chunks."""

    def __init__(self, take: Callable[[Event], None], happened: list[str]) -> None:
        super().__init__()
        self._take = take
        self._happened = happened

    def append(self, event: Event) -> None:
        self._happened.append("delta")
        self._take(event)

"""Prefixes through the engine: rows of every mode share them, n answers read their prompt once, memory is bounded."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.unit.decode.conftest import WIDEST, BatchDriver, Pair, clock_ms
from tests.unit.decode.driving import Answers, RandomGrants, chunks_read, nothing_is_left

from burstgate_decode.engine.engine import Engine, Pairing
from burstgate_decode.engine.limits import EngineLimits
from burstgate_decode.engine.request import AnswerRequest, Completion, Delta, Event, SamplingParams, SpeculationChoice
from burstgate_decode.engine.stepper import GuardMargins
from burstgate_policy.core.types import Grant, Mode, Reason

Ask = Callable[..., AnswerRequest]
Start = Callable[..., Engine]

LONG = "Tell me about rivers, in the order in which water meets them on its way down. " * 6
MIB = 1 << 20


@pytest.fixture
def start(pair: Pair, request: pytest.FixtureRequest) -> Start:
    def start(prefix_cache_bytes: int, any_cut: bool = True) -> Engine:
        limits = EngineLimits(8, 64, prefill_chunk_tokens=32, prefix_cache_bytes=prefix_cache_bytes)
        pairing = Pairing(pair.target, pair.drafter, WIDEST, GuardMargins(), RandomGrants(4), any_cut=any_cut)
        running = Engine(lambda: pairing, limits, clock_ms)
        running.start()
        request.addfinalizer(running.stop)
        running.wait_loaded()
        return running

    return start


def cached(answers: Answers, at: int) -> int:
    last = answers.events[at][-1]
    assert isinstance(last, Completion)
    return last.cached_prompt_tokens


def test_rows_of_every_mode_answer_the_same_from_a_prefix(start: Start, rows: BatchDriver, ask: Ask) -> None:
    engine = start(64 * MIB)
    requests = [
        ask(
            LONG, max_tokens=10, ignore_eos=True, speculation=list(SpeculationChoice)[place % 3],
            max_draft_width=(0, 3)[place % 2], sampling=SamplingParams(temperature=(0.0, 0.7)[place % 2], seed=place),
        )
        for place in range(6)
    ]  # fmt: skip
    found = []
    for _ in range(2):
        answers = Answers(engine, requests)
        found.append([answers.tokens(at) for at in range(len(requests))])
    assert all(cached(answers, at) > 100 for at in range(len(requests)))
    nothing_is_left(engine)
    assert 0 < engine.prefix_cache_bytes() <= 64 * MIB
    engine.stop()
    assert found[0] == found[1] == [rows.run(request, lambda _step: 1).answer for request in requests]


@pytest.mark.parametrize("any_cut", [True, False])
def test_answers_that_begin_together_read_their_prompt_once(
    start: Start, ask: Ask, any_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(64 * MIB, any_cut)
    read = chunks_read(monkeypatch)
    request = ask(LONG, max_tokens=2)
    answers = Answers(engine, [replace(request, index=index) for index in range(4)])
    assert len({tuple(answers.tokens(at)) for at in range(4)}) == 1
    prompt = len(request.prompt)
    # Each reads what is left behind the last block.
    assert sum(read) <= prompt + 4 * 32
    assert sum(read) + sum(cached(answers, at) for at in range(4)) == 4 * (prompt - 1)


class PlainGrants(RandomGrants):
    """Plain decoding for good."""

    def _grant(self) -> Grant:
        return Grant(Mode.PLAIN, 1, 100, Reason.GATE_PLAIN, "always")


def excluded_steps(pair: Pair, room: int) -> set[int]:
    """Which steps of two answers, one of them half as long, are marked as telling nothing of their cost."""
    grants, ended = PlainGrants(1), threading.Semaphore(0)
    limits = EngineLimits(8, 64, prefill_chunk_tokens=32, prefix_cache_bytes=room)
    pairing = Pairing(pair.target, pair.drafter, WIDEST, GuardMargins(), grants, any_cut=True)
    engine = Engine(lambda: pairing, limits, clock_ms)
    engine.start()
    engine.wait_loaded()

    def sink(events: Sequence[Event]) -> None:
        for event in events:
            if not isinstance(event, Delta):
                ended.release()

    engine.submit([(AnswerRequest("test", 0, (3, 1, 4), tokens, ignore_eos=True), sink) for tokens in (60, 30)])
    assert all(ended.acquire(timeout=60) for _ in range(2))
    engine.stop()
    return {at for at, record in enumerate(grants.records) if record.excluded}


def test_a_step_that_a_copy_held_up_tells_nothing_of_its_cost(tiny_pair: Pair) -> None:
    without, with_copies = excluded_steps(tiny_pair, room=0), excluded_steps(tiny_pair, room=MIB)
    # The short answer leaves, with a block, while the long one's next step is in flight.
    assert without < with_copies
    assert len(with_copies - without) == 1


@pytest.mark.parametrize("room", [MIB, 0])
def test_memory_is_bounded(start: Start, ask: Ask, room: int) -> None:
    engine = start(room)
    for place in range(2):
        answers = Answers(engine, [ask(f"{place} {LONG}", max_tokens=2)])
        answers.tokens(0)
        nothing_is_left(engine)
        assert engine.prefix_cache_bytes() <= room
    assert (engine.prefix_cache_bytes() > 0) == (room > 0)

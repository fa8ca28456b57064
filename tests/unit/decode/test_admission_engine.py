"""Admission inside a running engine: fairness, deadlines and memory with real rows. Time is a count of its readings."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from tests.unit.decode.conftest import TINY_VOCAB, WIDEST, Pair
from tests.unit.decode.driving import Answers, RandomGrants, nothing_is_left

from burstgate_decode.engine.engine import Engine, Pairing
from burstgate_decode.engine.limits import EngineLimits
from burstgate_decode.engine.request import AnswerRequest, Claim, Delta, Failure, Priority
from burstgate_decode.engine.row import Row
from burstgate_decode.engine.stepper import GuardMargins
from burstgate_runtime.faults import Fault, FaultKind

CHUNK_TOKENS = 16
# Of the tiny pair, keys and values of target and drafter.
TOKEN_BYTES = 384


def ask(prompt_tokens: int = 4, max_tokens: int = 8) -> AnswerRequest:
    prompt = tuple(place % TINY_VOCAB for place in range(prompt_tokens))
    return AnswerRequest("test", 0, prompt, max_tokens, ignore_eos=True)


@pytest.fixture
def start(tiny_pair: Pair) -> Callable[..., object]:
    @contextmanager
    def running(**limits: int) -> Iterator[Engine]:
        pairing = Pairing(tiny_pair.target, tiny_pair.drafter, WIDEST, GuardMargins(), RandomGrants(3))
        readings = itertools.count()
        engine = Engine(
            lambda: pairing,
            EngineLimits(prefill_chunk_tokens=CHUNK_TOKENS, **limits),
            lambda: float(next(readings)),
        )
        engine.start()
        engine.wait_loaded()
        try:
            yield engine
            nothing_is_left(engine)
        finally:
            engine.stop()

    return running


def refused(engine: Engine, request: AnswerRequest, claim: Claim) -> Fault:
    with pytest.raises(Fault) as caught:
        engine.submit([(request, lambda _events: None)], claim)
    return caught.value


def test_the_first_request_of_a_tenant_passes_the_sixty_of_another(start: Callable[..., object]) -> None:
    with start(max_active_rows=1) as engine:
        crowd = Answers(engine, [ask(max_tokens=40) for _ in range(60)], Claim("crowd"))
        crowd.wait_delivery()
        single = Answers(engine, [ask()], Claim("single"))
        single.tokens(0)
        # Nobody but those that ran or had their turn before it came.
        assert sum(bool(events) for events in crowd.events) <= 5
        for ticket in crowd.tickets:
            ticket.cancel()


def test_a_high_request_runs_before_those_that_wait(start: Callable[..., object]) -> None:
    with start(max_active_rows=1) as engine:
        running = Answers(engine, [ask(max_tokens=200)])
        running.wait_delivery()
        low = Answers(engine, [ask()], Claim(priority=Priority.LOW))
        high = Answers(engine, [ask()], Claim(priority=Priority.HIGH))
        high.tokens(0)
        assert not low.events[0]
        low.tokens(0)


def test_an_answer_that_cannot_begin_in_time_is_given_up_and_the_others_go_on(start: Callable[..., object]) -> None:
    with start(max_active_rows=1) as engine:
        running = Answers(engine, [ask(max_tokens=300)])
        running.wait_delivery()
        late = Answers(engine, [ask()], Claim(time_left_ms=20.0))
        patient = Answers(engine, [ask()], Claim(time_left_ms=1e9))
        late.wait_delivery()
        (event,) = late.events[0]
        assert isinstance(event, Failure)
        assert isinstance(event.error, Fault)
        assert (event.error.kind, event.error.reason) == (FaultKind.DEADLINE_EXCEEDED, "DEADLINE_UNREACHABLE")
        assert len(running.tokens(0)) == 300
        assert len(patient.tokens(0)) == 8


def test_a_prompt_that_cannot_be_read_in_time_is_refused_once_reading_was_measured(
    start: Callable[..., object],
) -> None:
    hopeless = Claim(time_left_ms=5.0)
    long = ask(prompt_tokens=30 * CHUNK_TOKENS)
    with start(max_active_rows=2, prefix_cache_bytes=0) as engine:
        # Every reading of the clock is a millisecond, so that each chunk takes one at least.
        unmeasured = Answers(engine, [long], hopeless)
        unmeasured.wait_delivery()
        Answers(engine, [long]).tokens(0)
        fault = refused(engine, long, hopeless)
        assert (fault.kind, fault.reason) == (FaultKind.DEADLINE_EXCEEDED, "DEADLINE_UNREACHABLE")
        assert float(fault.metadata["estimate_ms"]) > 5.0
        assert len(Answers(engine, [ask()], Claim(time_left_ms=1e6)).tokens(0)) == 8


def test_a_prompt_that_was_read_before_is_in_time_where_a_new_one_is_not(start: Callable[..., object]) -> None:
    # Half of thirty chunks and a step, none of which is read in less than a reading of the clock, takes longer.
    hopeless = Claim(time_left_ms=10.0)
    long = ask(prompt_tokens=30 * CHUNK_TOKENS)
    with start(max_active_rows=2) as engine:
        Answers(engine, [long]).tokens(0)
        assert len(Answers(engine, [long], Claim(time_left_ms=1e6)).tokens(0)) == long.max_tokens
        other = replace(long, prompt=long.prompt[::-1])
        assert refused(engine, other, hopeless).reason == "DEADLINE_UNREACHABLE"
        again = Answers(engine, [long], hopeless)
        again.wait_delivery()


def test_answers_share_the_memory_there_is_and_one_that_needs_more_is_refused(start: Callable[..., object]) -> None:
    limit_bytes = 1024 * TOKEN_BYTES
    with start(max_active_rows=8, cache_bytes=limit_bytes) as engine:
        fault = refused(engine, ask(prompt_tokens=900, max_tokens=200), Claim())
        assert (fault.reason, fault.metadata["limit_bytes"]) == ("CACHE_TOO_SMALL", str(limit_bytes))
        assert fault.metadata["needed_bytes"] == str(1280 * TOKEN_BYTES)
        # Two slots of two blocks, or four of one.
        answers = Answers(engine, [ask(prompt_tokens=300 if at % 3 == 0 else 20) for at in range(12)])
        reserved = set()
        while not all(events and not isinstance(events[-1], Delta) for events in answers.events):
            answers.wait_delivery()
            reserved.add(engine.cache_bytes()[0])
        assert max(reserved) <= limit_bytes
        assert limit_bytes in reserved
        assert [len(answers.tokens(at)) for at in range(12)] == [8] * 12
    assert engine.cache_bytes() == (0, limit_bytes)


def test_a_cancel_that_comes_while_another_row_leaves_loses_no_slot(start: Callable[..., object]) -> None:
    with start(max_active_rows=2) as engine:
        answers = Answers(engine, [ask(max_tokens=400) for _ in range(2)])
        while not all(answers.events):
            answers.wait_delivery()
        leave = engine._batch.leave

        def leave_and_cancel_the_other(row: Row) -> None:
            leave(row)
            answers.tickets[0].cancel()

        engine._batch.leave = leave_and_cancel_the_other
        # The first of the two has been looked at when the second leaves.
        answers.tickets[1].cancel()


def test_without_a_setting_the_caches_may_take_a_part_of_what_is_free(start: Callable[..., object]) -> None:
    with start() as engine:
        assert engine.cache_bytes()[1] > 100 * 2**20

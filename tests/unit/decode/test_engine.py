"""The engine as callers see it: rows of every kind share it, come and go, and leave nothing behind."""

import random
from collections.abc import Callable, Iterator

import pytest
from tests.unit.decode.conftest import WIDEST, BatchDriver, Pair, clock_ms
from tests.unit.decode.driving import Answers, RandomGrants, nothing_is_left

from burstgate_decode.engine.engine import Engine, Pairing
from burstgate_decode.engine.limits import EngineLimits
from burstgate_decode.engine.request import AnswerRequest, SamplingParams, SpeculationChoice
from burstgate_decode.engine.stepper import GuardMargins

Ask = Callable[..., AnswerRequest]
_ENDED_S = 60.0


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

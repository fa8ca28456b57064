"""Cancels at every phase of an answer, by the hundred: the others answer as ever, and nothing stays behind."""

import random
from collections.abc import Iterator

import pytest
from tests.unit.decode.conftest import TINY_VOCAB, WIDEST, BatchDriver, Pair, clock_ms
from tests.unit.decode.driving import Answers, RandomGrants, nothing_is_left

from burstgate_decode.engine.engine import Engine, Pairing
from burstgate_decode.engine.limits import EngineLimits
from burstgate_decode.engine.request import AnswerRequest, SamplingParams, SpeculationChoice
from burstgate_decode.engine.stepper import GuardMargins

_ANSWERS = 400


@pytest.fixture
def engine(tiny_pair: Pair) -> Iterator[Engine]:
    limits = EngineLimits(max_active_rows=8, max_queued_rows=_ANSWERS, prefill_chunk_tokens=16)
    pairing = Pairing(tiny_pair.target, tiny_pair.drafter, WIDEST, GuardMargins(), RandomGrants(8))
    running = Engine(lambda: pairing, limits, clock_ms)
    running.start()
    running.wait_loaded()
    yield running
    running.stop()


def request(rng: random.Random) -> AnswerRequest:
    return AnswerRequest(
        request_id="test",
        index=0,
        # Some end after a chunk, some after many, and past a block of the cache.
        prompt=tuple(rng.randrange(TINY_VOCAB) for _ in range(rng.choice((1, 2, 9, 40, 300)))),
        max_tokens=rng.randint(1, 30),
        sampling=SamplingParams(temperature=rng.choice((0.0, 0.0, 1.0)), seed=rng.randrange(100)),
        speculation=rng.choice(list(SpeculationChoice)),
        max_draft_width=rng.choice((0, 0, 2, 5)),
        logprobs=rng.choice((None, None, 1)),
    )


def test_hundreds_of_cancels_at_any_moment(engine: Engine, tiny_pair: Pair) -> None:
    rng = random.Random(9)
    requests = [request(rng) for _ in range(_ANSWERS)]
    gone = set(rng.sample(range(_ANSWERS), _ANSWERS // 2))
    answers = Answers(engine, requests)
    for at in rng.sample(sorted(gone), len(gone)):
        # Before admission, within a prompt, between any two steps, or after the end.
        for _ in range(rng.randint(0, 20)):
            if not answers.arrived.empty():
                answers.wait_delivery()
        answers.tickets[at].cancel()
    found = {at: answers.tokens(at) for at in range(_ANSWERS) if at not in gone}
    nothing_is_left(engine)
    engine.stop()
    alone = BatchDriver(tiny_pair)
    assert found == {at: alone.run(requests[at], lambda _step: 1).answer for at in found}

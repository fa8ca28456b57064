"""An engine whose rounds stop early, with rows that come and go under grants at random. A tiny pair."""

import contextlib

from tests.unit.decode.conftest import TINY_VOCAB, WIDEST, Pair
from tests.unit.decode.driving import Answers, RandomGrants, running

from burstgate_decode.engine.engine import Engine, Pairing
from burstgate_decode.engine.limits import EngineLimits
from burstgate_decode.engine.request import AnswerRequest, Completion, SamplingParams, SpeculationChoice
from burstgate_decode.engine.stepper import GuardMargins
from burstgate_decode.engine.stopping import Stopping
from burstgate_policy.core.types import CostCell

COSTS = [
    CostCell(rows, width, 64, 64.0 + 2.0 * width * rows, 3.4 * (width - 1)) for rows in (1, 4) for width in (1, 4, 8)
]

CHOICES = (SpeculationChoice.AUTO, SpeculationChoice.AUTO, SpeculationChoice.ON, SpeculationChoice.OFF)


def requests() -> list[AnswerRequest]:
    """Rows of different lengths, caps and choices, more than have a place at once."""
    return [
        AnswerRequest(
            "test", 0, tuple((7 * at + place) % TINY_VOCAB for place in range(3 + at)), 20 + 7 * (at % 5),
            SamplingParams(temperature=0.9 * (at % 3 == 1), seed=at), ignore_eos=True,
            speculation=CHOICES[at % 4],
            max_draft_width=(0, 3, 0)[at % 3],
        )
        for at in range(16)
    ]  # fmt: skip


def engine(pair: Pair, grants: RandomGrants, stopping: Stopping | None) -> contextlib.AbstractContextManager[Engine]:
    pairing = Pairing(pair.target, pair.drafter, WIDEST, GuardMargins(), grants, stopping=stopping)
    return running(pairing, EngineLimits(max_active_rows=5, max_queued_rows=64))


def test_no_token_depends_on_where_rounds_stop_and_every_draft_is_accounted_for(tiny_pair: Pair) -> None:
    asked = requests()
    answers: list[list[list[int]]] = []
    for stopping in (None, Stopping(COSTS, WIDEST)):
        grants = RandomGrants(5)
        with engine(tiny_pair, grants, stopping) as started:
            collected = Answers(started, asked)
            answers.append([collected.tokens(at) for at in range(len(asked))])
        stats = [events[-1].speculation for events in collected.events if isinstance(events[-1], Completion)]
        assert len(stats) == len(asked)
        stopped = sum(one.stopped_early for one in stats)
        assert (stopped > 0) == (stopping is not None)
        for request, one in zip(asked, stats, strict=True):
            assert sum(rounds * (width - 1) for width, rounds in one.rounds_by_draft_width.items()) == one.proposed
            if request.speculation is SpeculationChoice.ON and request.max_draft_width:
                assert one.stopped_early == 0
    assert answers[0] == answers[1]

"""When the engine asks for grants: ahead of the step that needs them. A tiny pair, grants that keep what was asked."""

import contextlib

import pytest
from tests.unit.decode.conftest import TINY_VOCAB, WIDEST, Pair
from tests.unit.decode.driving import Answers, RandomGrants, running

from burstgate_decode.engine.bursts import BurstRunner
from burstgate_decode.engine.engine import Engine, Pairing
from burstgate_decode.engine.limits import EngineLimits
from burstgate_decode.engine.request import AnswerRequest, SpeculationChoice
from burstgate_decode.engine.rounds import StepResult
from burstgate_decode.engine.stepper import GuardMargins
from burstgate_policy.core.types import Grant, Mode, Reason, Situation

PROMPT_TOKENS = 11


class RecordingGrants(RandomGrants):
    """Keeps the order of questions sent ahead and of grants that were needed."""

    def __init__(self) -> None:
        super().__init__(seed=3)
        self.asked: list[tuple[str, Situation]] = []

    def prefetch(self, situation: Situation) -> None:
        self.asked.append(("ahead", situation))
        super().prefetch(situation)

    def next(self, situation: Situation) -> Grant:
        self.asked.append(("needed", situation))
        return super().next(situation)


def request(speculation: SpeculationChoice, max_tokens: int, prompt_tokens: int = PROMPT_TOKENS) -> AnswerRequest:
    prompt = tuple((7 * place + prompt_tokens) % TINY_VOCAB for place in range(prompt_tokens))
    return AnswerRequest("test", 0, prompt, max_tokens, ignore_eos=True, speculation=speculation)


def engine(pair: Pair, grants: RecordingGrants) -> contextlib.AbstractContextManager[Engine]:
    pairing = Pairing(pair.target, pair.drafter, WIDEST, GuardMargins(), grants)
    return running(pairing, EngineLimits(prefill_chunk_tokens=4))


def test_the_first_grant_is_asked_for_while_the_prompt_ends(tiny_pair: Pair) -> None:
    grants = RecordingGrants()
    with engine(tiny_pair, grants) as started:
        Answers(started, [request(SpeculationChoice.AUTO, 6)]).tokens(0)
    ahead, needed = grants.asked[:2]
    assert (ahead[0], needed[0]) == ("ahead", "needed")
    # Nothing was running, and the prompt was read in three chunks of which only the last one is followed by a step.
    assert ahead[1] == needed[1]
    assert (ahead[1].width, ahead[1].depth_tokens, ahead[1].steps_in_flight) == (1, PROMPT_TOKENS, 0)
    assert ahead[1].max_draft_width > 1


@pytest.mark.parametrize("joining", [SpeculationChoice.AUTO, SpeculationChoice.OFF])
def test_the_grant_of_a_wider_batch_is_asked_for_before_a_row_joins(
    tiny_pair: Pair, joining: SpeculationChoice
) -> None:
    grants = RecordingGrants()
    with engine(tiny_pair, grants) as started:
        first = Answers(started, [request(SpeculationChoice.AUTO, 400)])
        first.wait_delivery()
        Answers(started, [request(joining, 6, PROMPT_TOKENS + 1)]).tokens(0)
        first.tickets[0].cancel()
    wider = next(at for at, (_, situation) in enumerate(grants.asked) if situation.width == 2)
    assert [what for what, _ in grants.asked[wider : wider + 2]] == ["ahead", "needed"]
    assert grants.asked[wider + 1][1].width == 2


def test_a_batch_that_leaves_nothing_to_the_policy_asks_nothing(tiny_pair: Pair) -> None:
    grants = RecordingGrants()
    with engine(tiny_pair, grants) as started:
        Answers(started, [request(SpeculationChoice.OFF, 6)]).tokens(0)
        Answers(started, [request(SpeculationChoice.ON, 6)]).tokens(0)
    assert grants.asked == []


class PlainGrants(RandomGrants):
    """Plain bursts of one step; keeps how long the next grant was waited for."""

    def __init__(self) -> None:
        super().__init__(seed=0)
        self.waits_ms: list[float] = []

    def upcoming(self, wait_ms: float) -> Grant | None:
        self.waits_ms.append(wait_ms)
        return super().upcoming(wait_ms)

    def _grant(self) -> Grant:
        return Grant(Mode.PLAIN, 1, 1, Reason.GATE_PLAIN, "plain")


def test_the_next_grant_is_waited_for_while_a_slow_step_computes() -> None:
    grants = PlainGrants()
    bursts = BurstRunner(grants)
    situation = Situation(width=1, depth_tokens=9, min_emitted_tokens=3, eligible=True, max_draft_width=4)
    # A step that a prompt's chunk held up says nothing about how long one computes.
    for wall_ms, disturbed in ((100.0, False), (5000.0, True), (4.0, False), (4.0, False)):
        bursts.begin(situation)
        assert bursts.next_is_plain()
        bursts.end(StepResult([], 0.0, 0.0), situation, wall_ms, disturbed)
    assert grants.waits_ms == [2.0, 25.0, 25.0, 2.0], "a share of the last plain step, and never less than 2 ms"

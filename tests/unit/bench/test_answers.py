"""Rates and their statistics."""

from itertools import pairwise

import pytest

from burstgate_bench.answers import Answer, Step, TooShortError, shared_steps, shared_tokens_per_second, summarize


def answer(tokens: int, decode_ms: float, first: int = 1, rounds: int = 0, accepted: int = 0) -> Answer:
    return Answer(tuple(range(tokens)), first, decode_ms, rounds=rounds, accepted=accepted)


def test_a_plain_answer_is_timed_from_its_first_token() -> None:
    assert answer(tokens=11, decode_ms=500.0).tokens_per_second == pytest.approx(20.0)


def test_tokens_that_came_with_the_first_one_are_not_counted() -> None:
    assert answer(tokens=14, decode_ms=500.0, first=4).tokens_per_second == pytest.approx(20.0)


@pytest.mark.parametrize("short", [answer(1, 0.0), answer(4, 10.0, first=4), answer(5, 0.0)])
def test_an_answer_without_time_after_its_first_delivery_has_no_rate(short: Answer) -> None:
    with pytest.raises(TooShortError, match="too short to time"):
        _ = short.tokens_per_second


def test_the_median_and_the_spread_come_from_all_samples() -> None:
    cell = summarize([answer(11, 500.0), answer(11, 400.0), answer(11, 1000.0)])
    assert cell.tokens_per_second == pytest.approx(20.0)
    assert cell.spread == pytest.approx((25.0 - 10.0) / 20.0)
    assert cell.samples == 3


def test_acceptance_weighs_every_round_equally() -> None:
    cell = summarize([answer(11, 500.0, rounds=2, accepted=6), answer(11, 500.0, rounds=8, accepted=4)])
    assert cell.accepted_per_round == pytest.approx(1.0)


def test_acceptance_is_absent_where_no_round_ran() -> None:
    assert summarize([answer(11, 500.0)]).accepted_per_round is None


def delivered(*deliveries: tuple[float, int], draft_width: int = 2) -> Answer:
    steps = tuple(Step(draft_width, count, at - before) for (before, _), (at, count) in pairwise(deliveries))
    return Answer((), deliveries[0][1], 0.0, deliveries=deliveries, steps=steps)


def test_a_batchs_steps_are_those_during_which_all_rows_run() -> None:
    # The second row begins two steps later and ends one earlier; its tokens come a moment after the first one's.
    long = delivered((0.0, 1), (100.0, 1), (200.0, 2), (320.0, 1), (440.0, 3), (500.0, 1), draft_width=2)
    short = delivered((200.5, 1), (320.5, 2), (440.5, 1), draft_width=4)
    assert shared_steps([long, short]) == [Step(4, 3, 120.0), Step(4, 4, 120.0)]
    assert shared_tokens_per_second([long, short]) == pytest.approx(7e3 / 240.0)


def test_a_step_that_ended_the_time_for_some_rows_only_is_left_out() -> None:
    first = delivered((0.0, 1), (100.0, 2), (200.0, 2))
    second = delivered((0.5, 1), (100.5, 1), (200.5, 1), (300.5, 1))
    assert shared_steps([first, second]) == [Step(2, 3, 100.0)]

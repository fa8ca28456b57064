"""Duels run fairly, and their ratio is one of times."""

import pytest

from burstgate_bench.answers import Answer, TooShortError, shared_tokens_per_second
from burstgate_bench.duels import Duel, run_duel, run_duels


def test_both_sides_run_in_turns_and_back() -> None:
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return float(len(order))

    duel = run_duel(lambda: side("ours"), lambda: side("theirs"), blocks=2)
    assert order == ["ours", "theirs", "theirs", "ours"] * 2
    assert duel == Duel((1.0, 4.0, 5.0, 8.0), (2.0, 3.0, 6.0, 7.0))


def test_sides_that_share_the_other_one_take_turns_with_it() -> None:
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return float(len(order))

    one, other = run_duels([lambda: side("one"), lambda: side("other")], lambda: side("theirs"), blocks=1)
    assert order == ["one", "other", "theirs", "theirs", "other", "one"]
    assert one == Duel((1.0, 6.0), (3.0, 4.0))
    assert other == Duel((2.0, 5.0), (3.0, 4.0))


def test_the_ratio_says_how_many_times_as_long_the_other_side_takes() -> None:
    assert Duel((20.0, 20.0), (10.0, 10.0)).ratio == pytest.approx(2.0)
    # Half of the answers at a tenth of the pace take five and a half times as long.
    assert Duel((10.0, 1.0), (10.0, 10.0)).ratio == pytest.approx(1 / 5.5)
    assert Duel((10.0, 8.0), (4.0, 5.0)).spread == pytest.approx(0.25)


def delivered(*deliveries: tuple[float, int]) -> Answer:
    return Answer((), 1, 0.0, deliveries=deliveries)


def test_a_batch_is_timed_while_all_of_it_runs() -> None:
    early = delivered((0.0, 1), (100.0, 1), (200.0, 2), (300.0, 1))
    late = delivered((100.0, 1), (200.0, 1), (300.0, 1), (400.0, 1))
    # From 100 to 300 ms: three tokens of the first, two of the second.
    assert shared_tokens_per_second([early, late]) == pytest.approx(25.0)


def test_a_rate_does_not_depend_on_how_a_steps_tokens_are_handed_out() -> None:
    # Four answers get a token a step, all at once or, as from an engine, one after another.
    at_once = [delivered(*((100.0 * step, 1) for step in range(5))) for _ in range(4)]
    in_turn = [delivered(*((100.0 * step + 0.1 * row, 1) for step in range(5))) for row in range(4)]
    assert shared_tokens_per_second(at_once) == pytest.approx(40.0)
    assert shared_tokens_per_second(in_turn) == pytest.approx(40.0)


def test_answers_that_hardly_ran_together_have_no_rate() -> None:
    with pytest.raises(TooShortError, match="too short a time"):
        shared_tokens_per_second([delivered((0.0, 1), (10.0, 1)), delivered((10.0, 1), (20.0, 1))])
    with pytest.raises(TooShortError, match="too short a time"):
        shared_tokens_per_second([delivered((0.0, 1), (90.0, 1)), delivered((10.0, 1), (20.0, 1), (30.0, 1))])

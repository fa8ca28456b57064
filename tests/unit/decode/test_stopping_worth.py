"""Deciding within rounds is kept up only where it pays."""

import pytest
from tests.unit.decode.simulated import DEPTH, WIDEST, best_fixed_rate, fixed_rate, play, rate, table, texts

from burstgate_decode.engine.stopping import RoundOutcome, RoundRow, RowOutcome, Stopping
from burstgate_decode.engine.stopping_worth import StoppingWorth, WorthConfig, fixed_tokens

CONFIG = WorthConfig()


def watched_share(wait_ms: float, rounds: int) -> float:
    """How many of the last rounds a rule decided in, where deciding costs `wait_ms` a round."""
    text = texts(["prose", "code"] * 60, rounds // 120)
    played = list(play(Stopping(table(), WIDEST), text, wait_ms=wait_ms))
    return sum(one.watched for one in played[rounds // 2 :]) / (rounds - rounds // 2)


def test_a_wait_that_costs_more_than_stopping_gains_rests_the_rule() -> None:
    assert watched_share(20.0, 3600) < 0.25


def test_a_small_wait_does_not() -> None:
    assert watched_share(1.0, 3600) > 0.9


def test_even_a_very_dear_wait_loses_little() -> None:
    text = texts(["prose"], 4000)
    # While the rule rests the policy's width runs.
    width = max(range(2, WIDEST + 1), key=lambda one: fixed_rate(text, one))
    dear = list(play(Stopping(table(), WIDEST), text, wait_ms=30.0, width=width))
    assert rate(dear) > 0.96 * best_fixed_rate(text)


@pytest.mark.parametrize(
    ("deciding", "stopped_tokens", "rests"), [(1.0, 2.1, False), (1.1, 2.1, True), (1.1, 2.3, False)]
)
def test_it_rests_when_the_best_fixed_width_would_deliver_more(
    deciding: float, stopped_tokens: float, rests: bool
) -> None:
    worth = StoppingWorth()
    rested = False
    for _ in range(400):
        if worth.watches_next():
            worth.ran_watched(80.0 * deciding, 80.0, round(stopped_tokens * 100), [0.0, 80.0], [0.0, 200.0])
        elif not worth.resting:
            worth.ran_whole(80.0, 80.0)
        rested = rested or worth.resting
    assert rested is rests


def test_rests_grow_while_every_trial_fails_and_a_success_shortens_them() -> None:
    worth = StoppingWorth()

    def run(deciding: float, rounds: int) -> list[int]:
        """Lengths of the rests that ended."""
        rests, length = [], 0
        for _ in range(rounds):
            resting = worth.resting
            length += resting
            if length and not resting:
                rests.append(length)
                length = 0
            if worth.watches_next():
                worth.ran_watched(80.0 * deciding, 80.0, 210, [0.0, 80.0], [0.0, 200.0])
            elif not resting:
                worth.ran_whole(80.0, 80.0)
        return rests

    assert run(1.2, 3000)[:3] == [CONFIG.first_rest, 2 * CONFIG.first_rest, 4 * CONFIG.first_rest]
    while worth.resting:
        worth.watches_next()
    run(1.0, 3 * CONFIG.judged_after)
    assert run(1.2, 1500)[0] == CONFIG.first_rest


def test_a_stalled_round_decides_nothing() -> None:
    worth = StoppingWorth()
    for number in range(300):
        if worth.watches_next():
            stalled = 50.0 if number == 150 else 1.0
            worth.ran_watched(80.0 * stalled, 80.0, 208, [0.0, 80.0], [0.0, 200.0])
        else:
            worth.ran_whole(80.0, 80.0)
    assert not worth.resting


def test_what_a_fixed_width_would_have_kept_is_known_up_to_the_first_miss() -> None:
    assert fixed_tokens(2, 5, 0.5, 7) == [1, 2, 3, 3, 3, 3, 3, 3]


def test_beyond_the_last_draft_that_was_right_further_ones_are_expected() -> None:
    assert fixed_tokens(2, 2, 0.5, 5) == [1.0, 2.0, 3.0, 3.5, 3.75, 3.875]


def test_a_rest_in_wide_batches_is_none_for_a_single_stream() -> None:
    stopping = Stopping(table(), WIDEST)
    row, rows = RowOutcome(4, False, [0.9] * 3, 1), [RoundRow(4, WIDEST, sampled=False)] * 8
    rested = False
    for _ in range(600):
        plan = stopping.plan(rows, DEPTH)
        wall_ms = 300.0 if plan.rule is not None else 200.0
        stopping.learn(RoundOutcome([row] * 8, 16, wall_ms, DEPTH), plan)
        rested = rested or (plan.rule is None and not plan.compares)
    assert rested
    assert stopping.plan(rows[:1], DEPTH).rule is not None

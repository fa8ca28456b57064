"""Which drafts are verified: no other choice of the same kind would be worth more."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstgate_decode.engine.verify_choice import between, choose_by_row, choose_columns

DRAFTS = 3


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[list[float]], list[float], float]:
    """Tokens expected by draft and row, falling with the draft; costs by drafts of each row; and a token's price."""
    rows = draw(st.integers(1, 3))
    by_row = []
    for row in range(rows):
        allowed = draw(st.integers(0 if row else 1, DRAFTS))
        shares = draw(st.lists(st.floats(0.005, 0.995), min_size=allowed, max_size=allowed))
        by_row.append(
            [*itertools.accumulate(shares, lambda reached, share: reached * share), *[0.0] * (DRAFTS - allowed)]
        )
    costs = draw(st.lists(st.floats(1.0, 200.0), min_size=DRAFTS + 1, max_size=DRAFTS + 1))
    return [list(column) for column in zip(*by_row, strict=True)], costs, draw(st.floats(0.1, 200.0))


def tokens_of(expected: Sequence[Sequence[float]], drafts: Sequence[int]) -> float:
    return sum(expected[draft][row] for row, count in enumerate(drafts) for draft in range(count))


@given(case=rounds())
def test_no_other_choice_for_all_rows_is_worth_more(case: tuple[list[list[float]], list[float], float]) -> None:
    expected, verify_ms, price_ms = case
    rows = len(expected[0])
    worths = [price_ms * tokens_of(expected, [count] * rows) - verify_ms[count] for count in range(1, DRAFTS + 1)]
    found = choose_columns(expected, verify_ms, price_ms)
    assert found.worth_ms == pytest.approx(max(worths))
    assert len(set(found.drafts)) == 1
    assert worths[found.drafts[0] - 1] == pytest.approx(max(worths))


@given(case=rounds())
def test_no_other_choice_by_row_is_worth_more(case: tuple[list[list[float]], list[float], float]) -> None:
    expected, verify_ms, price_ms = case
    rows = len(expected[0])
    allowed = [sum(column[row] > 0.0 for column in expected) for row in range(rows)]
    worth_of = {
        drafts: price_ms * tokens_of(expected, drafts) - between(verify_ms, sum(drafts) / rows)
        for drafts in itertools.product(*(range(min(1, most), most + 1) for most in allowed))
    }
    found = choose_by_row(expected, verify_ms, price_ms)
    assert found.worth_ms == pytest.approx(max(worth_of.values()))
    assert worth_of[tuple(found.drafts)] == pytest.approx(found.worth_ms)


def test_costs_lie_on_straight_lines() -> None:
    assert [between([1.0, 3.0, 4.0], at) for at in (0, 0.5, 1, 1.25, 2)] == [1.0, 2.0, 3.0, 3.25, 4.0]

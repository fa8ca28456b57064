"""Where answers part."""

import pytest

from burstgate_bench.divergence import Divergence, Doubt, first_difference, token_at


@pytest.mark.parametrize(
    ("expected", "got", "position"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([], [], None),
        ([1, 2, 3], [1, 9, 3], 1),
        ([1, 2, 3], [1, 2], 2),
        ([1, 2], [1, 2, 3], 2),
        ([], [5], 0),
    ],
)
def test_the_first_difference_is_a_token_or_an_end(expected: list[int], got: list[int], position: int | None) -> None:
    assert first_difference(expected, got) == position


def test_behind_the_end_there_is_no_token() -> None:
    assert token_at([4, 5], 1) == 5
    assert token_at([4, 5], 2) is None


def test_a_divergence_names_position_tokens_and_margin() -> None:
    line = str(Divergence("prose", "K=4", 17, 42, None, " the", "", Doubt(2.5e-5, 0.0, 0.0)))
    assert "K=4 differs on 'prose' at answer token 17: the end instead of 42 ' the'" in line
    assert "2.5e-05" in line

"""Acceptance is learned from the drafter's probability, draft by draft."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstgate_decode.engine.draft_calibration import CalibrationConfig, DraftCalibration

chances = st.floats(0.0, 1.0)


def taught(truth: Callable[[float], float], rounds: int = 2000, sampled: bool = False) -> DraftCalibration:
    """A calibration of drafts whose chance to be kept is `truth(probability)`."""
    rng, calibration = random.Random(3), DraftCalibration()
    for _ in range(rounds):
        probabilities = [rng.random() for _ in range(4)]
        matched = 0
        while matched < 4 and rng.random() < truth(probabilities[matched]):
            matched += 1
        calibration.observe(probabilities, matched, 4, sampled=sampled)
    return calibration


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_before_anything_was_seen_probability_is_acceptance(probability: float) -> None:
    assert DraftCalibration().kept(probability, 0, sampled=False) == pytest.approx(probability)


@pytest.mark.parametrize("probability", [0.08, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("place", [0, 1])
def test_a_drafter_that_is_too_sure_of_itself_is_believed_less(probability: float, place: int) -> None:
    calibration = taught(lambda said: said * said)
    assert calibration.kept(probability, place, sampled=False) == pytest.approx(probability**2, abs=0.08)


def test_a_drafter_that_is_too_modest_is_believed_more() -> None:
    calibration = taught(lambda said: 0.3 + 0.7 * said)
    assert calibration.kept(0.1, 0, sampled=False) == pytest.approx(0.37, abs=0.1)


def test_drawn_and_likeliest_drafts_do_not_teach_each_other() -> None:
    calibration = taught(lambda said: 0.3 + 0.7 * said, sampled=True)
    assert calibration.kept(0.1, 0, sampled=True) > 0.25
    assert calibration.kept(0.1, 0, sampled=False) == pytest.approx(0.1)
    assert calibration.next_kept(None, sampled=False) == CalibrationConfig().first_kept


def test_first_and_later_drafts_do_not_teach_each_other() -> None:
    calibration = DraftCalibration()
    for _ in range(100):
        calibration.observe([0.5], 0, 1, sampled=False)
    assert calibration.kept(0.5, 0, sampled=False) < 0.1
    assert calibration.kept(0.5, 1, sampled=False) == pytest.approx(0.5)


def test_what_was_drafted_after_a_wrong_token_teaches_nothing() -> None:
    one, other = DraftCalibration(), DraftCalibration()
    one.observe([0.9, 0.2, 0.7, 0.7], 1, 4, sampled=False)
    other.observe([0.9, 0.2, 0.1, 0.99], 1, 4, sampled=False)
    for probability in (0.1, 0.7, 0.99):
        assert one.kept(probability, 1, sampled=False) == other.kept(probability, 1, sampled=False)


def test_drafts_that_no_verify_answered_teach_nothing() -> None:
    one, other = DraftCalibration(), DraftCalibration()
    one.observe([0.9, 0.8], 2, 2, sampled=False)
    other.observe([0.9, 0.8, 0.3], 2, 2, sampled=False)
    assert one.kept(0.3, 1, sampled=False) == other.kept(0.3, 1, sampled=False)
    other.observe([0.9, 0.8, 0.3], 2, 3, sampled=False)
    assert other.kept(0.3, 1, sampled=False) < 0.3


def test_another_kind_of_text_is_followed_within_a_few_rounds() -> None:
    calibration = DraftCalibration()
    for _ in range(50):
        calibration.observe([0.9] * 4, 4, 4, sampled=False)
    on_a_list = calibration.next_kept(None, sampled=False)
    for _ in range(20):
        calibration.observe([0.5, 0.5], 1, 2, sampled=False)
    assert on_a_list > 0.8
    assert calibration.next_kept(None, sampled=False) < 0.5


def test_what_follows_depends_on_the_draft_before() -> None:
    calibration = DraftCalibration()
    for _ in range(100):
        calibration.observe([0.99, 0.9], 2, 2, sampled=False)
        calibration.observe([0.3, 0.3], 1, 2, sampled=False)
    assert calibration.next_kept(0.99, sampled=False) > calibration.next_kept(0.3, sampled=False) + 0.5


@given(
    rounds=st.lists(
        st.tuples(st.lists(chances, min_size=1, max_size=7), st.integers(0, 7), st.booleans()), max_size=30
    ),
    probability=chances,
    place=st.integers(0, 6),
)
def test_every_chance_is_a_chance_whatever_was_seen(
    rounds: list[tuple[list[float], int, bool]], probability: float, place: int
) -> None:
    calibration = DraftCalibration()
    for probabilities, matched, sampled in rounds:
        calibration.observe(probabilities, min(matched, len(probabilities)), len(probabilities), sampled=sampled)
    for sampled in (False, True):
        for chance in (
            calibration.kept(probability, place, sampled=sampled),
            calibration.next_kept(probability, sampled=sampled),
            calibration.next_kept(None, sampled=sampled),
        ):
            assert 0.0 < chance < 1.0


def test_where_no_second_draft_is_made_first_drafts_speak_for_it_by_and_by() -> None:
    calibration = DraftCalibration()
    for _ in range(100):
        calibration.observe([0.9, 0.9], 1, 2, sampled=False)
    assert calibration.next_kept(0.9, sampled=False) < 0.2
    chances = []
    for _ in range(300):
        calibration.observe([0.9], 1, 1, sampled=False)
        chances.append(calibration.next_kept(0.9, sampled=False))
    assert chances == sorted(chances)
    assert chances[-1] > 0.7

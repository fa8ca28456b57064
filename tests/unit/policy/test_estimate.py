"""The arithmetic of a verdict."""

import math

import pytest

from burstgate_policy.core.estimate import Zone, classify, closed_form_speedup, measured_speedup, resolve
from burstgate_policy.core.types import Verdict


def zone(speedup: float | None) -> Zone:
    return classify(speedup, enable_at=1.5, decline_at=1.0)


@pytest.mark.parametrize(
    ("accepted_len", "draft_ms", "verify_ms", "speedup"),
    [(2.5, 1.0, 4.0, 2.8), (0.5, 4.0, 4.0, 0.75), (1.3, 4.0, 4.0, 1.15), (0.0, 1.0, 4.0, 0.8)],
)
def test_the_closed_form(accepted_len: float, draft_ms: float, verify_ms: float, speedup: float) -> None:
    assert closed_form_speedup(accepted_len, draft_ms, verify_ms) == pytest.approx(speedup)


@pytest.mark.parametrize(
    ("accepted_len", "plain_ms", "round_ms", "speedup"),
    [
        (1.0, 70.0, 98.0, 1.43),
        (1.1, 72.0, 12.0 + 80.0 + 6.0, 1.54),
        (1.05, 69.0, 269.0, 0.53),
        (1.4, 25.6, 31.0, 1.98),
        (1.0, 22.0, 70.0, 0.63),
    ],
)
def test_the_measured_form(accepted_len: float, plain_ms: float, round_ms: float, speedup: float) -> None:
    assert measured_speedup(accepted_len, plain_ms, round_ms) == pytest.approx(speedup, abs=0.006)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, -1.0])
def test_an_impossible_input_gives_no_estimate(wrong: float) -> None:
    assert measured_speedup(wrong, 70.0, 90.0) is None
    assert measured_speedup(1.0, wrong, 90.0) is None
    assert measured_speedup(1.0, 70.0, wrong) is None
    assert closed_form_speedup(wrong, 1.0, 4.0) is None
    assert closed_form_speedup(1.0, wrong, 4.0) is None
    assert closed_form_speedup(1.0, 1.0, wrong) is None


def test_a_time_of_zero_gives_no_estimate_but_free_drafts_do() -> None:
    assert measured_speedup(1.0, 0.0, 90.0) is None
    assert measured_speedup(1.0, 70.0, 0.0) is None
    assert closed_form_speedup(1.0, 0.0, 0.0) is None
    assert closed_form_speedup(1.0, 0.0, 4.0) == pytest.approx(2.0)


def test_an_overflowing_estimate_is_no_estimate() -> None:
    assert measured_speedup(1e308, 1e308, 1e-308) is None


@pytest.mark.parametrize(
    ("speedup", "expected"),
    [
        (1.5, Zone.ENABLE),
        (1.4999, Zone.BETWEEN),
        (1.0001, Zone.BETWEEN),
        (1.0, Zone.DECLINE),
        (None, Zone.NO_ESTIMATE),
        (math.nan, Zone.NO_ESTIMATE),
        (math.inf, Zone.NO_ESTIMATE),
    ],
)
def test_both_thresholds_belong_to_their_verdicts(speedup: float | None, expected: Zone) -> None:
    assert zone(speedup) is expected


@pytest.mark.parametrize("static_default", [True, False])
def test_the_static_gate_decides_exactly_where_the_measurement_does_not(static_default: bool) -> None:
    fallback = Verdict.ENABLE if static_default else Verdict.DECLINE
    assert resolve(Zone.ENABLE, static_default=static_default) is Verdict.ENABLE
    assert resolve(Zone.DECLINE, static_default=static_default) is Verdict.DECLINE
    assert resolve(Zone.BETWEEN, static_default=static_default) is fallback
    assert resolve(Zone.NO_ESTIMATE, static_default=static_default) is fallback

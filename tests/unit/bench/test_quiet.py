"""Rates as on a quiet machine, from the times of a busy one."""

import pytest

from burstgate_bench.answers import Step
from burstgate_bench.quiet import quiet_costs_ms, quiet_rate


def steps(width: int, tokens: int, *times_ms: float) -> list[Step]:
    return [Step(width, tokens, ms) for ms in times_ms]


def test_times_of_a_busy_hour_do_not_count() -> None:
    quiet, busy = [80.0] * 12, [80.0] * 6 + [500.0] * 6
    rates = [quiet_rate(own, quiet_costs_ms(own, [])) for own in (steps(4, 2, *times) for times in (quiet, busy))]
    assert rates[0] == rates[1] == pytest.approx(25.0)


def test_an_arm_pays_for_what_it_adds_to_a_step() -> None:
    own, others = steps(4, 2, *[88.0] * 12), steps(4, 2, *[80.0] * 12)
    assert quiet_costs_ms(own, others) == {4: pytest.approx(88.0)}


def test_a_width_that_an_arm_ran_too_seldom_costs_what_it_costs_others() -> None:
    own, others = steps(8, 5, 300.0, 310.0), steps(8, 5, *[96.0] * 20)
    assert quiet_costs_ms(own, others) == {8: pytest.approx(96.0)}


def test_steps_of_different_widths_are_charged_apart() -> None:
    own = [*steps(2, 1, *[70.0] * 10), *steps(8, 6, *[98.0] * 10)]
    assert quiet_rate(own, quiet_costs_ms(own, [])) == pytest.approx(70e3 / 1680.0)

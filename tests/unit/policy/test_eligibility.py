"""Which rows may speculate and which openings are pinned."""

import dataclasses

import pytest

from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.eligibility import EligibilityConfig, RowStatus, may_speculate, pinned_steps

ANSWERING = RowStatus(
    inside_thinking=False,
    answer_tokens=0,
    output_tokens=0,
    suppress_tool_calls=False,
    speculation_disabled=False,
)


def thinking(output_tokens: int) -> RowStatus:
    return dataclasses.replace(ANSWERING, inside_thinking=True, output_tokens=output_tokens)


@pytest.mark.parametrize(("emitted", "steps"), [(0, 8), (7, 1), (8, 0), (2**32 - 1, 0)])
def test_the_pin_covers_the_first_eight_tokens_of_an_answer(emitted: int, steps: int) -> None:
    assert pinned_steps(emitted, CoreConfig.seed().entry_pin_tokens) == steps


def test_the_pin_length_is_configurable_and_zero_disables_it() -> None:
    assert pinned_steps(0, 0) == 0
    assert pinned_steps(5, 12) == 7


def test_a_negative_pin_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="entry_pin_tokens must be at least 0, not -3"):
        CoreConfig(entry_pin_tokens=-3)


@pytest.mark.parametrize("output_tokens", [0, 50])
def test_a_thinking_row_does_not_speculate_by_default(output_tokens: int) -> None:
    assert not may_speculate(thinking(output_tokens), EligibilityConfig())
    assert may_speculate(ANSWERING, EligibilityConfig())


def test_a_lane_that_opts_in_speculates_while_thinking_from_the_first_token() -> None:
    assert may_speculate(thinking(0), EligibilityConfig(speculate_in_thinking=True))


def test_each_lane_reads_only_its_own_lever() -> None:
    on, off = EligibilityConfig(speculate_in_thinking=True), EligibilityConfig()
    assert [may_speculate(thinking(9), lane) for lane in (on, off)] == [True, False]


def test_suppressed_tool_calls_and_a_disabled_row_never_speculate() -> None:
    lever = EligibilityConfig(speculate_in_thinking=True)
    assert not may_speculate(dataclasses.replace(ANSWERING, suppress_tool_calls=True), lever)
    assert not may_speculate(dataclasses.replace(ANSWERING, speculation_disabled=True), lever)


def test_the_resume_guard_counts_answer_tokens_outside_and_all_tokens_inside_thinking() -> None:
    guarded = EligibilityConfig(speculate_in_thinking=True, resume_guard_tokens=10)
    answering = dataclasses.replace(ANSWERING, output_tokens=500, answer_tokens=9)
    assert not may_speculate(answering, guarded)
    assert may_speculate(dataclasses.replace(answering, answer_tokens=10), guarded)
    assert not may_speculate(thinking(9), guarded)
    assert may_speculate(thinking(10), guarded)

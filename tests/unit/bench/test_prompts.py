"""The prompts as data."""

from collections import Counter

import pytest

from burstgate_bench.prompts import EQUALITY, STANDARD, PromptCase, even_sample


def test_speed_is_reported_by_three_kinds() -> None:
    assert [case.kind for case in STANDARD] == ["enumeration", "code", "prose"]


def test_sixty_different_prompts_of_every_kind_are_compared() -> None:
    assert len(set(EQUALITY)) == 60
    kinds = {"list", "code", "prose", "language", "chat", "raw", "one token", "near limit"}
    assert set(Counter(case.kind for case in EQUALITY)) == kinds


def test_a_small_sample_meets_many_kinds_and_no_prompt_twice() -> None:
    sample = even_sample(EQUALITY, 6)
    assert len({place for place, _ in sample}) == 6
    assert len({case.kind for _, case in sample}) == 6
    assert all(EQUALITY[place] is case for place, case in sample)


def test_a_sample_of_all_is_all() -> None:
    assert [case for _, case in even_sample(EQUALITY, len(EQUALITY))] == list(EQUALITY)
    assert len(even_sample(EQUALITY, 1000)) == len(EQUALITY)


def test_an_empty_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        even_sample(EQUALITY, 0)


def test_a_prompt_is_messages_or_text_or_tokens() -> None:
    with pytest.raises(ValueError, match="either messages, text or token_ids"):
        PromptCase("raw", text="a", token_ids=(1,))
    with pytest.raises(ValueError, match="either messages, text or token_ids"):
        PromptCase("raw")

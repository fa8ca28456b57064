"""Rounds and plain steps of the real pair agree, and a round leaves nothing behind."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from tests.unit.decode.conftest import BatchDriver

from burstgate_decode.engine.request import AnswerRequest, FinishReason, SamplingParams
from burstgate_decode.engine.stepper import GuardMargins
from burstgate_decode.models.target import Step

Ask = Callable[..., AnswerRequest]


def _plain(_step: int) -> int:
    return 1


@pytest.mark.parametrize("draft_width", [2, 3, 5, 8])
def test_rounds_of_any_width_choose_the_tokens_of_plain_steps(rows: BatchDriver, ask: Ask, draft_width: int) -> None:
    request = ask("Count from 1 to 20, one number per line.")
    plain = rows.run(request, _plain)
    drafted = rows.run(request, lambda _step: draft_width)
    assert drafted.answer == plain.answer
    assert drafted.text == plain.text


def test_changing_the_mode_at_every_step_changes_no_token(rows: BatchDriver, ask: Ask) -> None:
    request = ask("Explain how rivers form.")
    mixed = rows.run(request, lambda step: (1, 4, 2, 1, 1, 8)[step % 6])
    assert mixed.answer == rows.run(request, _plain).answer


def test_the_drafter_follows_plain_stretches(rows: BatchDriver, ask: Ask) -> None:
    request = ask("Count from 1 to 40, one number per line.", max_tokens=60)
    driven = rows.open(request)
    for _ in range(20):
        rows.step(1)
    before = len(driven.row.tokens)
    rows.step(8)
    assert len(driven.row.tokens) - before > 2, "the first round after a plain stretch drafted cold"


def test_looking_ahead_changes_no_token(rows: BatchDriver, ask: Ask) -> None:
    request = ask("Name three colours.", max_tokens=12)
    driven = rows.open(request)
    while not driven.row.finished:
        rows.step(1, look_ahead=True)
    assert driven.answer == rows.run(request, _plain).answer


def test_after_a_round_the_cache_covers_all_tokens_but_the_newest(rows: BatchDriver, ask: Ask) -> None:
    driven = rows.open(ask("Explain how rivers form."))
    for width in (5, 3, 8, 2):
        rows.step(width)
        assert list(rows.batch.cache.lengths) == [len(driven.row.tokens) - 1]


def test_a_round_that_raises_leaves_the_cache_as_committed_and_rows_step_alone(
    rows: BatchDriver, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask("Explain how rivers form.")
    expected = rows.run(request, _plain).answer
    driven = [rows.open(request), rows.open(request)]
    rows.step(4)
    tokens, lengths = [list(one.row.tokens) for one in driven], list(rows.batch.cache.lengths)
    forward = type(rows.target).forward_rows

    def broken(target: Any, inputs: mx.array, cache: Any, first: int) -> Step:
        step = forward(target, inputs, cache, first)
        if inputs.size > 1:
            raise MemoryError("no memory for the verify")
        return step

    with monkeypatch.context() as patched:
        patched.setattr(type(rows.target), "forward_rows", broken)
        rows.step(4)
    assert [one.row.tokens[:-1] for one in driven] == tokens
    assert list(rows.batch.cache.lengths) == [length + 1 for length in lengths]
    while rows.batch.rows:
        rows.step(3)
    assert [one.answer for one in driven] == [expected, expected]


def test_a_choice_inside_the_guard_margin_is_decided_by_a_one_row_forward(rows: BatchDriver, ask: Ask) -> None:
    request = ask("Explain how rivers form.", max_tokens=6)
    expected = rows.run(request, _plain).answer
    driven = rows.open(request)
    before = len(driven.row.tokens)
    # No margin is this large, so nothing of the round is trusted.
    rows.step(4, GuardMargins(verify=1e9))
    assert driven.answer == expected[:1]
    assert list(rows.batch.cache.lengths) == [before]
    assert driven.row.stats.redecided == 1


@pytest.mark.parametrize("margin", [0.5, 2.0])
def test_guarded_rounds_still_choose_the_tokens_of_plain_steps(rows: BatchDriver, ask: Ask, margin: float) -> None:
    request = ask("Write a haiku about the sea.", max_tokens=30)
    driven = rows.open(request)
    while not driven.row.finished:
        rows.step(5, GuardMargins(verify=margin))
    assert driven.answer == rows.run(request, _plain).answer
    assert driven.completion.speculation.redecided > 0


def test_a_prompt_of_one_token_is_generated_from(rows: BatchDriver) -> None:
    request = AnswerRequest("test", 0, (28,), 12, SamplingParams())
    assert rows.run(request, lambda _step: 4).answer == rows.run(request, _plain).answer


def test_the_answer_ends_at_the_budget_within_a_round(rows: BatchDriver, ask: Ask) -> None:
    driven = rows.run(ask("Count from 1 to 40, one number per line.", max_tokens=13), lambda _step: 8)
    assert len(driven.answer) == 13
    assert driven.completion.finish_reason is FinishReason.LENGTH


def test_nothing_follows_the_end_of_text_inside_a_round(rows: BatchDriver, ask: Ask) -> None:
    driven = rows.run(ask("Count from 1 to 3, one number per line.", max_tokens=200), lambda _step: 8)
    assert driven.completion.finish_reason is FinishReason.EOS
    assert driven.answer[-1] in rows.target.eos_token_ids
    assert not rows.target.eos_token_ids.intersection(driven.answer[:-1])


def test_a_stop_token_ends_the_answer_inside_a_round(rows: BatchDriver, ask: Ask) -> None:
    request = ask("Count from 1 to 40, one number per line.")
    plain = rows.run(request, _plain).answer
    stop = plain[17]
    first = plain.index(stop)
    driven = rows.run(
        ask("Count from 1 to 40, one number per line.", stop_token_ids=frozenset({stop})), lambda _step: 8
    )
    assert driven.answer == plain[: first + 1]
    assert driven.completion.finish_reason is FinishReason.STOP_TOKEN
    assert driven.completion.stop_token_id == stop


def test_a_stop_string_across_drafted_tokens_cuts_text_and_tokens(rows: BatchDriver, ask: Ask) -> None:
    question = "Count from 1 to 40, one number per line."
    plain = rows.run(ask(question), _plain)
    stop = plain.text[14:20]
    cut = plain.text[: plain.text.index(stop)]
    drafted = rows.run(ask(question, stop_strings=(stop,)), lambda _step: 8)
    single = rows.run(ask(question, stop_strings=(stop,)), _plain)
    assert drafted.text == single.text == cut
    assert drafted.answer == single.answer
    assert drafted.completion.stop_string == stop


def test_the_pairing_matches_what_mlx_lm_generates(rows: BatchDriver, ask: Ask) -> None:
    from mlx_lm.generate import generate_step

    request = ask("Write a Python function that reverses a list.", max_tokens=60, ignore_eos=True)
    theirs = [
        int(token)
        for token, _ in generate_step(mx.array(request.prompt), rows.target.model, max_tokens=request.max_tokens)
    ]
    assert rows.run(request, lambda step: (1, 6)[step % 2]).answer == theirs

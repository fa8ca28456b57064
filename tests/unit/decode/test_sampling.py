"""Sampling: common random numbers, penalties by position, filters, log-probabilities."""

import math
from collections import Counter
from collections.abc import Callable
from functools import partial

import mlx.core as mx
import pytest
from tests.unit.decode.conftest import BatchDriver

from burstgate_decode.engine.request import AnswerRequest, SamplingParams
from burstgate_decode.engine.sampling import Chooser, logprobs_of
from burstgate_decode.models.arrays import as_int, ints

Ask = Callable[..., AnswerRequest]
VOCAB = 64


def _always(width: int, _step: int) -> int:
    return width


def _logits(rows: int, seed: int = 0) -> mx.array:
    return mx.random.normal((rows, VOCAB), key=mx.random.key(seed)) * 3


def _choose(params: SamplingParams, logits: mx.array, position: int, history: list[int] | None = None) -> list[int]:
    seen = None if history is None else mx.array(history)
    return ints(Chooser(params, VOCAB).choose(logits, position, seen, margins=False).tokens)


def test_a_draw_depends_on_seed_and_position_and_on_nothing_else() -> None:
    params = SamplingParams(temperature=1.0, seed=5)
    logits = _logits(6)
    together = _choose(params, logits, 10)
    alone = [_choose(params, logits[row : row + 1], 10 + row)[0] for row in range(6)]
    assert together == alone
    assert _choose(SamplingParams(temperature=1.0, seed=6), logits, 10) != together
    assert _choose(params, logits, 11) != together


def test_the_draft_of_a_position_is_drawn_with_the_noise_of_its_verify() -> None:
    chooser = Chooser(SamplingParams(temperature=0.9, seed=3), VOCAB)
    logits = _logits(1)
    ids = mx.arange(VOCAB)
    for position in range(20):
        verified = chooser.choose(logits, position, None, margins=False).tokens.item()
        assert chooser.pick(logits, ids, position).item() == verified


def test_a_draft_over_a_reduced_vocabulary_names_target_tokens() -> None:
    chooser = Chooser(SamplingParams(), VOCAB)
    ids = mx.array([3, 17, 42])
    assert chooser.pick(mx.array([[0.0, 5.0, 1.0]]), ids, 0).item() == 17


def test_draws_follow_the_softmax_of_the_scaled_logits() -> None:
    logits = mx.array([[2.0, 1.0, 0.0, -1.0] + [-100.0] * (VOCAB - 4)])
    draws = 4000
    chooser = Chooser(SamplingParams(temperature=0.7, seed=11), VOCAB)
    counts = Counter(
        token
        for start in range(0, draws, 100)
        for token in ints(chooser.choose(mx.repeat(logits, 100, axis=0), start, None, margins=False).tokens)
    )
    weights = [math.exp(value / 0.7) for value in (2.0, 1.0, 0.0, -1.0)]
    for token, weight in enumerate(weights):
        expected = draws * weight / sum(weights)
        # Five standard deviations of a binomial count: the seed is fixed, so this either holds or does not.
        assert abs(counts[token] - expected) < 5 * math.sqrt(expected) + 1


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        (SamplingParams(temperature=1.0, top_k=2), {0, 1}),
        (SamplingParams(temperature=1.0, min_p=0.3), {0, 1}),
        (SamplingParams(temperature=1.0, top_p=0.6), {0}),
    ],
)
def test_filters_keep_only_the_likeliest_tokens(params: SamplingParams, allowed: set[int]) -> None:
    logits = mx.array([[2.0, 1.0, 0.0, -1.0] + [-100.0] * (VOCAB - 4)])
    drawn = {_choose(params, logits, position)[0] for position in range(60)}
    assert drawn == allowed


def test_penalties_count_each_position_s_own_history() -> None:
    params = SamplingParams(frequency_penalty=2.0)
    logits = mx.array([[1.0, 0.9] + [-9.0] * (VOCAB - 2)] * 3)
    # Row 0 has seen [5], row 1 also 0, row 2 also 1: the best token falls behind as it is seen.
    assert _choose(params, logits, 1, [5, 0, 1]) == [0, 1, 0]


def test_a_logit_bias_moves_the_choice() -> None:
    params = SamplingParams(logit_bias=((9, 50.0),))
    assert _choose(params, _logits(2), 0, [1, 2]) == [9, 9]


def test_margins_tell_how_far_the_choice_leads() -> None:
    logits = mx.array([[1.0, 3.5] + [-9.0] * (VOCAB - 2)])
    choice = Chooser(SamplingParams(), VOCAB).choose(logits, 0, None, margins=True)
    assert choice.margins is not None
    assert choice.margins.item() == pytest.approx(2.5)


def test_logprobs_are_those_of_the_log_softmax() -> None:
    logits = _logits(2)
    expected = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    best = as_int(mx.argmax(logits[0]))
    first, second = logprobs_of(logits, [best, 4], top=3)
    assert first.logprob == pytest.approx(expected[0, best].item())
    assert first.top[0][0] == best
    assert first.top[0][1] == pytest.approx(first.logprob)
    assert second.logprob == pytest.approx(expected[1, 4].item())
    assert [len(first.top), len(second.top)] == [3, 3]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.8, seed=1),
        SamplingParams(temperature=1.1, seed=2, top_p=0.9, top_k=50),
        SamplingParams(temperature=0.7, seed=3, min_p=0.05, repetition_penalty=1.2),
        SamplingParams(presence_penalty=1.0, frequency_penalty=0.5),
    ],
)
def test_sampled_text_is_the_same_at_every_draft_width(rows: BatchDriver, ask: Ask, params: SamplingParams) -> None:
    request = ask("Tell me a short story.", max_tokens=24, sampling=params)
    plain = rows.run(request, lambda _step: 1).answer
    for width in (3, 8):
        assert rows.run(request, partial(_always, width)).answer == plain


def test_speculation_accepts_sampled_drafts(rows: BatchDriver, ask: Ask) -> None:
    request = ask("Count from 1 to 40, one number per line.", max_tokens=40, sampling=SamplingParams(0.5, seed=5))
    driven = rows.run(request, lambda _step: 4)
    drafted = sum(sum(event.drafted) for event in driven.events if hasattr(event, "drafted"))
    assert drafted > 10

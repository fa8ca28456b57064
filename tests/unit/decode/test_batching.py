"""What a row answers depends on that row alone: not on its neighbours, their options, their cancels or their drafts."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models import llama
from tests.unit.decode.conftest import WIDEST, BatchDriver, Driven, Pair

from burstgate_decode.engine import rounds
from burstgate_decode.engine.choosing import Place, RowsChoice, choose_rows
from burstgate_decode.engine.request import AnswerRequest, Delta, SamplingParams, SpeculationChoice
from burstgate_decode.engine.stepper import GuardMargins
from burstgate_decode.models.sequence_cache import Cache
from burstgate_decode.models.target import Step, Target, split_model, takes_ragged_cache

Ask = Callable[..., AnswerRequest]

_MESSAGES = (
    "Count from 1 to 30, one number per line.",
    "Explain how rivers form, for a reader who knows a little physics but no geology at all, and be brief about it.",
    "Hi",
    "Write a haiku about the sea.",
    "Write a Python function that reverses a list.",
    "Name three colours and say of each which animals, fruits, flags and stones are known for it. Begin with red.",
    "Why is the sky blue?",
    "List the months of the year.",
)
_OPTIONS: tuple[dict[str, object], ...] = (
    {},
    {"sampling": SamplingParams(temperature=0.8, seed=3)},
    {"logprobs": 2},
    {"sampling": SamplingParams(repetition_penalty=1.3)},
    {"sampling": SamplingParams(temperature=1.0, top_p=0.9, seed=5), "logprobs": 1},
    {"stop_strings": ("red", "\n\n")},
    {"sampling": SamplingParams(presence_penalty=0.5, logit_bias=((28, 2.0),))},
    {"speculation": SpeculationChoice.OFF},
)


@pytest.fixture(scope="module")
def known() -> dict[str, Driven]:
    """Answers decoded alone and plainly, by the message; they are asked for once."""
    return {}


@pytest.fixture
def requests(ask: Ask) -> list[AnswerRequest]:
    return [
        ask(message, max_tokens=14 + 2 * place, ignore_eos=True, **options)
        for place, (message, options) in enumerate(zip(_MESSAGES, _OPTIONS, strict=True))
    ]


def alone(known: dict[str, Driven], rows: BatchDriver, request: AnswerRequest) -> Driven:
    key = repr(request)
    if key not in known:
        known[key] = rows.run(request, lambda _step: 1)
    return known[key]


def same(found: Driven, expected: Driven) -> None:
    assert found.answer == expected.answer
    assert found.text == expected.text
    logprobs = [
        [one for event in driven.events if isinstance(event, Delta) for one in event.logprobs]
        for driven in (found, expected)
    ]
    assert logprobs[0] == logprobs[1]


def run_together(
    rows: BatchDriver, requests: Sequence[AnswerRequest], seed: int, leaving: int = 0
) -> list[tuple[AnswerRequest, Driven]]:
    """Rows join at different steps, draft different widths at every step, and some are cancelled on the way."""
    rng = random.Random(seed)
    waiting, running, done = list(requests), list[tuple[AnswerRequest, Driven]](), list[tuple[AnswerRequest, Driven]]()
    while waiting or running:
        if waiting and (not running or rng.random() < 0.7):
            request = waiting.pop(0)
            running.append((request, rows.open(request, chunk_tokens=rng.choice((7, 32, 256)))))
        if leaving and len(running) > 1 and rng.random() < 0.3:
            leaving -= 1
            _, gone = running.pop(rng.randrange(len(running)))
            rows.leave(gone)
        plain = rng.random() < 0.4
        widths = {id(one.row): 1 if plain else rng.randint(1, WIDEST) for _, one in running}
        rows.step(widths, look_ahead=rng.random() < 0.7)
        done += [one for one in running if one[1].row.finished]
        running = [one for one in running if not one[1].row.finished]
    return done


@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_row_in_a_batch_answers_what_it_answers_alone(
    rows: BatchDriver, requests: list[AnswerRequest], known: dict[str, Driven], count: int
) -> None:
    expected = [alone(known, rows, request) for request in requests[:count]]
    done = run_together(rows, requests[:count], seed=count)
    assert len(done) == count
    for request, driven in done:
        same(driven, expected[requests.index(request)])
    assert rows.batch.cache.nbytes == 0, "rows that ended still hold memory"


@pytest.mark.parametrize("seed", [1, 2])
def test_neighbours_that_are_cancelled_change_nothing_and_leave_nothing(
    rows: BatchDriver, requests: list[AnswerRequest], known: dict[str, Driven], seed: int
) -> None:
    done = run_together(rows, requests, seed=seed, leaving=4)
    assert len(requests) - 4 <= len(done) < len(requests), "nobody was cancelled"
    assert not rows.batch.rows
    assert rows.batch.flight is None
    assert rows.batch.cache.nbytes == 0
    for request, driven in done:
        same(driven, alone(known, rows, request))


@pytest.mark.parametrize("draft_width", range(2, WIDEST + 1))
def test_a_batch_verified_at_any_width_answers_what_its_rows_answer_alone(
    rows: BatchDriver, requests: list[AnswerRequest], known: dict[str, Driven], draft_width: int
) -> None:
    three = requests[:3]
    expected = [alone(known, rows, request) for request in three]
    driven = [rows.open(request) for request in three]
    while rows.batch.rows:
        rows.step(draft_width)
    for found, one in zip(driven, expected, strict=True):
        same(found, one)


def test_rows_of_uneven_widths_answer_what_they_answer_alone(
    rows: BatchDriver, requests: list[AnswerRequest], known: dict[str, Driven]
) -> None:
    assert rows.target.packs_rows
    expected = [alone(known, rows, request) for request in requests]
    driven = [rows.open(request) for request in requests]
    draw = random.Random(8)
    while rows.batch.rows:
        rows.step({id(row): draw.randint(1, WIDEST) for row in rows.batch.rows})
    for found, one in zip(driven, expected, strict=True):
        same(found, one)


def test_rows_of_uneven_widths_are_run_no_further_than_they_count(
    rows: BatchDriver, requests: list[AnswerRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[list[int]] = []
    forward = Target.forward

    def recording(target: Target, tokens: mx.array, cache: Cache) -> Step:
        shapes.append(list(tokens.shape))
        return forward(target, tokens, cache)

    driven = [rows.open(request) for request in requests[:3]]
    monkeypatch.setattr(Target, "forward", recording)
    rows.step(dict(zip((id(one.row) for one in driven), (6, 1, 3), strict=True)))
    rows.step(4)
    assert shapes == [[1, 10], [3, 4]]


def test_a_row_that_rides_along_keeps_its_own_pace(rows: BatchDriver, ask: Ask) -> None:
    fast = rows.open(ask("Count from 1 to 30, one number per line.", max_tokens=24))
    slow = rows.open(ask("Explain how rivers form.", max_tokens=24, speculation=SpeculationChoice.OFF))
    for _ in range(4):
        rows.step(6)
    assert len(slow.answer) == 4
    assert len(fast.answer) > 8
    assert slow.row.stats.rounds == 0
    assert fast.row.stats.rounds == 4


def test_guarded_batches_answer_what_rows_answer_alone(rows: BatchDriver, requests: list[AnswerRequest]) -> None:
    # The reference decides everything by one-row steps, and so does a batch with margins that are never met.
    some = [replace(request, max_tokens=8) for request in requests[:4]]
    expected = [rows.run(request, lambda _step: 1) for request in some]
    driven = [rows.open(request) for request in some]
    step = 0
    while rows.batch.rows:
        rows.step((1, 4)[step % 2], GuardMargins(verify=1e9, batch=1e9))
        step += 1
    for found, one in zip(driven, expected, strict=True):
        same(found, one)
    assert all(found.completion.speculation.redecided >= 7 for found in driven)


def test_what_a_batch_gets_wrong_within_the_margin_never_reaches_the_step_in_flight(
    rows: BatchDriver, requests: list[AnswerRequest], known: dict[str, Driven], monkeypatch: pytest.MonkeyPatch
) -> None:
    margin = 1.0

    def wrong_where_in_doubt(places: Sequence[Place], step: Step, margins: bool) -> RowsChoice:
        choice = choose_rows(places, step, margins)
        if choice.margins is None:
            return choice
        return replace(choice, tokens=mx.where(choice.margins <= margin, choice.tokens + 1, choice.tokens))

    expected = [alone(known, rows, request) for request in requests]
    monkeypatch.setattr(rounds, "choose_rows", wrong_where_in_doubt)
    driven = [rows.open(request) for request in requests]
    in_flight = 0
    while rows.batch.rows:
        rows.step(1, GuardMargins(batch=margin), look_ahead=True)
        in_flight += rows.batch.flight is not None
    for found, one in zip(driven, expected, strict=True):
        same(found, one)
    stats = [found.completion.speculation for found in driven]
    assert sum(one.redecided for one in stats) > 8
    for found, one in zip(driven, stats, strict=True):
        assert one.diverged == one.redecided
        for divergence in one.divergences:
            assert divergence.margin <= margin
            assert divergence.shared_token_id == divergence.token_id + 1 == found.answer[divergence.position] + 1
    assert in_flight > max(found.completion.completion_tokens for found in driven) // 2


def test_a_step_costs_the_same_whichever_step_its_issuing_overlapped_with(rows: BatchDriver, ask: Ask) -> None:
    rows.open(ask("Count from 1 to 30, one number per line.", max_tokens=24))
    borrowed = [rows.step(1, look_ahead=step < 5).borrowed_ms for step in range(6)]
    assert borrowed[0] < 0.0 < borrowed[-1]
    assert sum(borrowed) == pytest.approx(0.0, abs=1e-6)


def test_a_step_that_was_issued_in_vain_is_paid_by_the_one_that_issued_it(rows: BatchDriver, ask: Ask) -> None:
    for message in _MESSAGES[:2]:
        rows.open(ask(message, max_tokens=4))
    done = rows.step(1, GuardMargins(batch=1e9), look_ahead=True)
    assert rows.batch.flight is None
    assert done.borrowed_ms == 0.0


def test_rows_of_a_model_with_a_sliding_window_decode_beside_each_other(pair: Pair) -> None:
    window, vocab = 12, 97
    args = {"num_key_value_heads": 2, "sliding_window": window, "layer_types": ["full_attention", "sliding_attention"]}
    mx.random.seed(6)
    model = llama.Model(llama.ModelArgs("llama", 32, 2, 48, 4, 1e-5, vocab, **args))
    mx.eval(model.parameters())
    target = replace(
        pair.target,
        model=model,
        vocab_size=vocab,
        split=split_model(model, vocab),
        shares_forwards=takes_ragged_cache(model, vocab),
    )
    assert not target.shares_forwards
    rows = BatchDriver(Pair(target, None))
    lengths = (1, window - 1, window, window + 1, 3 * window)
    prompts = [tuple(5 * place % vocab for place in range(length)) for length in lengths]
    driven = [rows.open(AnswerRequest("test", 0, prompt, 2 * window, ignore_eos=True)) for prompt in prompts]
    while rows.batch.rows:
        rows.step(1, look_ahead=True)
    for prompt, found in zip(prompts, driven, strict=True):
        steps = generate_step(mx.array(prompt), model, max_tokens=2 * window)
        assert found.answer == [int(token) for token, _ in steps]

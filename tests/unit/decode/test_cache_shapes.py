"""Speculation over caches of every shape: the text is that of plain steps and of mlx-lm, whatever happens meanwhile."""

import functools
import itertools
import json
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from tests.unit.decode.conftest import WIDEST, BatchDriver, Driven, Pair, clock_ms
from tests.unit.decode.driving import Answers, RandomGrants, nothing_is_left
from tests.unit.models.shapes import SHAPES, VOCAB, WINDOW, make_model, make_target

from burstgate_decode.drafters.base import GoesOn, Kept, Pick
from burstgate_decode.drafters.loading import find_drafter
from burstgate_decode.engine.batch import Batch
from burstgate_decode.engine.engine import Engine, Pairing
from burstgate_decode.engine.limits import EngineLimits
from burstgate_decode.engine.request import AnswerRequest, SamplingParams
from burstgate_decode.engine.stepper import GuardMargins
from burstgate_decode.models.errors import ModelError
from burstgate_decode.models.loading import load_target
from burstgate_decode.models.target import Step, Target

ANSWER_TOKENS = 24
LENGTHS = (WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW)
CHUNKS = (7, 4 * WINDOW)


class ScriptedDrafter:
    """Implements `Drafter` and `DraftBatch`: drafts known answers, with errors here and there."""

    kind = name = fingerprint = "scripted"
    max_draft_width = WIDEST
    cache_token_bytes = 0

    def __init__(self) -> None:
        self.answers: dict[tuple[int, ...], list[int]] = {}
        self.batch: Batch

    def open_batch(self) -> "ScriptedDrafter":
        return self

    def open(self) -> int:
        return 0

    def swap(self, one: int, other: int) -> None:
        pass

    def close_last(self) -> None:
        pass

    def observe(self, hidden: mx.array, next_tokens: mx.array, kept: list[Kept]) -> None:
        pass

    def draft(self, rows: int, count: int, pick: Pick, goes_on: GoesOn | None = None) -> mx.array:
        return mx.array([self._of(row.request.prompt, len(row.tokens), count) for row in self.batch.decoding[:rows]])

    def _of(self, prompt: tuple[int, ...], position: int, count: int) -> list[int]:
        known = [*prompt, *self.answers[prompt], *[0] * count][position : position + count]
        rng = random.Random(position)
        return [(token + (rng.random() < 0.25)) % VOCAB for token in known]


@functools.cache
def loaded(shape: str) -> Target:
    return make_target(make_model(shape))


class Rows(BatchDriver):
    """A batch of one shape, whose drafter knows the answers of the requests."""

    def __init__(self, shape: str, tokenizer: Any) -> None:
        self.scripted = ScriptedDrafter()
        super().__init__(Pair(replace(loaded(shape), tokenizer=tokenizer), self.scripted))  # type: ignore[arg-type]
        self.scripted.batch = self.batch

    def plain(self, request: AnswerRequest, chunk_tokens: int = 256, look_ahead: bool = False) -> list[int]:
        """The answer of plain steps, which the drafter then knows."""
        driven = self.open(request, chunk_tokens)
        while not driven.row.finished:
            self.step(1, look_ahead=look_ahead)
        self.scripted.answers[request.prompt] = driven.answer
        return driven.answer


@pytest.fixture(params=SHAPES)
def shaped(request: pytest.FixtureRequest, tiny_pair: Pair) -> Rows:
    return Rows(request.param, tiny_pair.target.tokenizer)


def ask(length: int, seed: int = 0, **changes: Any) -> AnswerRequest:
    prompt = tuple((5 * place + 3 * seed + place * place // 7) % VOCAB for place in range(length))
    return replace(AnswerRequest("test", 0, prompt, ANSWER_TOKENS, ignore_eos=True), **changes)


@pytest.mark.parametrize("length", [1, *LENGTHS])
def test_every_width_answers_what_plain_steps_and_mlx_lm_answer(shaped: Rows, length: int) -> None:
    request = ask(length)
    theirs = [
        int(token)
        for token, _ in generate_step(mx.array(request.prompt), shaped.target.model, max_tokens=ANSWER_TOKENS)
    ]
    assert shaped.plain(request) == shaped.plain(request, look_ahead=True) == theirs
    assert len(set(theirs)) > 4, "an answer of few tokens shows nothing"
    accepted = proposed = 0
    for width in range(2, WIDEST + 1):
        found = shaped.run(request, lambda _step, width=width: width)
        assert found.answer == theirs
        accepted += found.completion.speculation.accepted
        proposed += found.completion.speculation.proposed
    assert 0.3 * proposed < accepted < 0.9 * proposed


@pytest.mark.parametrize("chunk_tokens", CHUNKS)
def test_prompts_in_chunks_shorter_and_longer_than_a_window_are_continued_alike(
    shaped: Rows, chunk_tokens: int
) -> None:
    request = ask(3 * WINDOW)
    plain = shaped.plain(request, chunk_tokens)
    driven = shaped.open(request, chunk_tokens)
    widths = random.Random(1)
    while not driven.row.finished:
        shaped.step(widths.randint(1, WIDEST))
    assert driven.answer == plain


@pytest.mark.parametrize("options", [{}, {"sampling": SamplingParams(temperature=0.9, seed=3)}])
def test_rows_join_and_leave_and_change_modes_beside_each_other(shaped: Rows, options: dict[str, Any]) -> None:
    requests = [ask(length, seed, **options) for seed, length in enumerate((*LENGTHS, 2))]
    expected = [shaped.plain(request) for request in requests]
    rng = random.Random(7)
    waiting, running, answers = list(enumerate(requests)), list[tuple[int, Driven]](), dict[int, list[int]]()
    for step in itertools.count():
        if waiting and len(running) < 3:
            at, request = waiting.pop(0)
            running.append((at, shaped.open(request)))
        if step == 5:
            shaped.leave(running.pop(1)[1])
        widths = {id(one.row): rng.randint(1, WIDEST) for _, one in running}
        plain = rng.random() < 0.4
        shaped.step(1 if plain else widths, look_ahead=plain and rng.random() < 0.7)
        answers |= {at: one.answer for at, one in running if one.row.finished}
        running = [(at, one) for at, one in running if not one.row.finished]
        if not waiting and not running:
            break
    assert len(answers) == len(requests) - 1
    assert all(answer == expected[at] for at, answer in answers.items())
    assert shaped.batch.cache.nbytes == 0


def test_rounds_that_trust_no_choice_answer_what_plain_steps_answer(shaped: Rows) -> None:
    requests = [ask(length, seed, max_tokens=10) for seed, length in enumerate((WINDOW - 3, 2 * WINDOW))]
    expected = [shaped.plain(request) for request in requests]
    driven = [shaped.open(request) for request in requests]
    for step in itertools.count():
        if not shaped.batch.rows:
            break
        shaped.step((4, 1)[step % 2], GuardMargins(verify=1e9, batch=1e9))
    assert [one.answer for one in driven] == expected
    assert all(one.completion.speculation.redecided >= 8 for one in driven)
    # A margin that some choices are inside of and others are not.
    driven = [shaped.open(request) for request in requests]
    while shaped.batch.rows:
        shaped.step(5, GuardMargins(verify=0.2))
    assert [one.answer for one in driven] == expected


def _run_again(patched: pytest.MonkeyPatch) -> list[int]:
    """Counts the tokens of every forward from now on whose logits nobody reads."""
    advance, counts = Target.advance, list[int]()

    def counted(target: Target, tokens: mx.array, cache: Any) -> mx.array | None:
        counts.append(tokens.shape[1])
        return advance(target, tokens, cache)

    patched.setattr(Target, "advance", counted)
    return counts


def test_a_round_runs_again_what_it_kept_and_only_where_caches_demand_it(
    shaped: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask(2 * WINDOW)
    shaped.plain(request)
    driven = shaped.open(request)
    again = _run_again(monkeypatch)
    whole = 0
    while not driven.row.finished:
        before = len(driven.answer)
        shaped.step(5)
        whole += len(driven.answer) - before == 5
        assert not shaped.batch.cache._marks, "a mark that outlives its round makes the next step copy"  # type: ignore[attr-defined]
    stats = driven.completion.speculation
    assert 0 < whole < stats.rounds
    if shaped.target.replays:
        assert stats.rounds - whole - 1 <= len(again) <= stats.rounds - whole
        assert max(again) < 5
    else:
        assert again == []


def _failing(patched: pytest.MonkeyPatch, fails: Callable[[mx.array, int], bool]) -> list[int]:
    """Lets the forward of a row raise after its layers ran; returns the slots whose forward raised."""
    forward, raised = Target.forward, list[int]()

    def broken(target: Target, tokens: mx.array, cache: Any) -> Step:
        step = forward(target, tokens, cache)
        if fails(tokens, len(raised)):
            raised.append(tokens.shape[1])
            raise MemoryError("no memory for this forward")
        return step

    patched.setattr(Target, "forward", broken)
    return raised


@pytest.mark.parametrize("failing_row", [0, 1])
def test_a_verify_that_raises_is_undone_for_every_row(
    shaped: Rows, failing_row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [ask(length, seed) for seed, length in enumerate((WINDOW + 2, WINDOW - 2))]
    expected = [shaped.plain(request) for request in requests]
    driven = [shaped.open(request) for request in requests]
    verifies = 0

    def fails(tokens: mx.array, _raised: int) -> bool:
        nonlocal verifies
        verifies += tokens.shape[1] == 5
        return tokens.shape[1] == 5 and verifies % 4 == 1 + failing_row

    steps = 0
    with monkeypatch.context() as patched:
        raised, again = _failing(patched, fails), _run_again(patched)
        while shaped.batch.rows:
            shaped.step(5 if steps % 2 else 1)
            steps += 1
            assert list(shaped.batch.cache.lengths) == [len(row.tokens) - 1 for row in shaped.batch.rows]
    assert raised
    assert max(again, default=0) < 5, "a round that raised left its rows to be read from the start"
    assert [one.answer for one in driven] == expected


@pytest.mark.parametrize("width", [1, 3])
def test_plain_steps_that_raise_in_flight_are_undone_also_for_a_row_that_just_joined(
    shaped: Rows, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [ask(length, seed) for seed, length in enumerate((2 * WINDOW, WINDOW - 2, WINDOW + 3))]
    expected = [shaped.plain(request, chunk_tokens=9) for request in requests]
    driven = [shaped.open(request, chunk_tokens=9) for request in requests[:2]]
    for _ in range(3):
        shaped.step(1, look_ahead=True)
    assert shaped.batch.flight is not None
    driven.append(shaped.open(requests[2], chunk_tokens=9))
    with monkeypatch.context() as patched:
        # The last row's forward, so that the others' were issued.
        calls = iter((False, False, True))
        raised = _failing(patched, lambda _tokens, _raised: next(calls, False))
        shaped.step(1, look_ahead=True)
    assert raised
    assert [len(one.answer) for one in driven] == [4, 4, 0]
    while shaped.batch.rows:
        shaped.step(width)
    assert [one.answer for one in driven] == expected


def test_a_sequence_that_must_be_read_again_is_read_as_it_was(tiny_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows("sliding", tiny_pair.target.tokenizer)
    driven = rows.open(ask(WINDOW + 6), chunk_tokens=9)
    for _ in range(4):
        rows.step(1)
    with monkeypatch.context() as patched:
        read = _run_again(patched)
        _failing(patched, lambda _tokens, raised: raised == 0)
        rows.step(1)
    assert len(driven.answer) == 5
    assert read == [9, 9, 3, *[1] * 4]


def test_a_round_whose_kept_tokens_cannot_be_run_again_is_undone(
    tiny_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows("linear_attention", tiny_pair.target.tokenizer)
    requests = [ask(length, seed) for seed, length in enumerate((9, 20))]
    expected = [rows.plain(request) for request in requests]
    driven = [rows.open(request) for request in requests]
    advance, failed = Target.advance, list[int]()

    def broken(target: Target, tokens: mx.array, cache: Any) -> mx.array | None:
        hidden = advance(target, tokens, cache)
        if len(failed) < 3:
            failed.append(tokens.shape[1])
            raise MemoryError("no memory to run again")
        return hidden

    with monkeypatch.context() as patched:
        patched.setattr(Target, "advance", broken)
        while rows.batch.rows:
            rows.step(5)
    assert len(failed) == 3
    assert [one.answer for one in driven] == expected


@pytest.mark.parametrize("shape", ["sliding", "lists"])
def test_an_engine_whose_grants_are_random_answers_what_plain_steps_answer(shape: str, tiny_pair: Pair) -> None:
    rows = Rows(shape, tiny_pair.target.tokenizer)
    requests = [ask(length, seed) for seed, length in enumerate((*LENGTHS, 2, 2 * WINDOW))]
    expected = [rows.plain(request, chunk_tokens=11) for request in requests]
    limits = EngineLimits(max_active_rows=3, max_queued_rows=64, prefill_chunk_tokens=11)
    drafter: Any = rows.scripted
    engine = Engine(lambda: Pairing(rows.target, drafter, WIDEST, GuardMargins(), RandomGrants(4)), limits, clock_ms)
    engine.start()
    engine.wait_loaded()
    try:
        while not hasattr(engine, "_batch"):
            time.sleep(0.01)
        rows.scripted.batch = engine._batch
        answers = Answers(engine, requests)
        assert [answers.tokens(at) for at in range(len(requests))] == expected
        nothing_is_left(engine)
    finally:
        engine.stop()


def test_a_sliding_target_is_loaded_for_speculation(tiny_pair: Pair, tmp_path: Path) -> None:
    model = make_model("sliding")
    shutil.copytree(tiny_pair.target.path, tmp_path, ignore=lambda *_: ["model.safetensors"], dirs_exist_ok=True)
    (tmp_path / "config.json").write_text(json.dumps(vars(model.args)))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), dict(tree_flatten(model.parameters())))
    target = load_target(str(tmp_path))
    assert (target.shares_forwards, target.irreversible_caches, target.windows) == (False, (), [WINDOW])


def test_a_drafter_is_refused_where_caches_cannot_be_taken_back(tiny_pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mtp_head"}))
    target = replace(tiny_pair.target, irreversible_caches=("SegmentCache", "TapeCache"))
    with pytest.raises(ModelError, match=r"\(SegmentCache, TapeCache\)") as refused:
        find_drafter(str(tmp_path))(target)
    assert refused.value.reason == "CACHE_NOT_REWINDABLE"

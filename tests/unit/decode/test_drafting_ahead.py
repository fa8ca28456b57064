"""What is drafted while a verify computes is what would be drafted behind it, whatever happens to the rows between."""

import random
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from tests.unit.decode.conftest import WIDEST, BatchDriver, Driven, Pair

from burstgate_decode.drafters.base import DraftsAhead
from burstgate_decode.engine.batch import Batch
from burstgate_decode.engine.prefix_cache import PrefixCache
from burstgate_decode.engine.prefix_store import PrefixStore
from burstgate_decode.engine.request import AnswerRequest, SamplingParams, SpeculationChoice
from burstgate_decode.engine.stepper import GuardMargins
from burstgate_decode.models.arrays import int_rows

Ask = Callable[..., AnswerRequest]

_PROMPTS = (
    "Count from 1 to 20, one number per line.",
    "Explain how rivers form.",
    "Write a Python function that adds two numbers.",
)
_MOST_ROWS = 4


@pytest.fixture
def used(rows: BatchDriver, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each draft of a round, whether it had been begun ahead."""
    told: list[bool] = []
    kind: Any = type(rows.batch.drafts)
    begun = kind._begun_ahead

    def noting(batch: Any, count: int) -> Any:
        found = begun(batch, count)
        told.append(found is not None)
        return found

    monkeypatch.setattr(kind, "_begun_ahead", noting)
    return told


@pytest.fixture
def drafted(rows: BatchDriver, monkeypatch: pytest.MonkeyPatch) -> list[list[list[int]]]:
    """The drafts of each round, of the rows that may draft."""
    told: list[list[list[int]]] = []
    kind: Any = type(rows.batch.drafts)
    draft = kind.draft

    def noting(*arguments: Any) -> mx.array:
        drafts: mx.array = draft(*arguments)
        told.append([own for row, own in zip(rows.batch.decoding, int_rows(drafts), strict=True) if row.drafts])
        return drafts

    monkeypatch.setattr(kind, "draft", noting)
    return told


def _prefixes(rows: BatchDriver) -> PrefixCache:
    store = PrefixStore(64 << 20)
    return PrefixCache(rows.batch, store, any_cut=True, chunk_tokens=256)


def _late(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing is drafted ahead."""
    monkeypatch.setattr(Batch, "draft_ahead", lambda *_: None)


def _played(rows: BatchDriver, ask: Ask, seed: int) -> list[list[int]]:
    """The answers of rows that join, draft, step plainly, doubt and leave at random; the same for a seed."""
    rng = random.Random(seed)
    opened: list[Driven] = []
    for step in range(36):
        if len(rows.batch.rows) < _MOST_ROWS and (not rows.batch.rows or rng.random() < 0.2):
            sampling = SamplingParams(seed=step, temperature=rng.choice((0.0, 0.0, 0.7)))
            choice = rng.choice((SpeculationChoice.AUTO, SpeculationChoice.AUTO, SpeculationChoice.OFF))
            budget = rng.randint(5, 40)
            opened.append(rows.open(ask(rng.choice(_PROMPTS), budget, sampling=sampling, speculation=choice)))
        elif rng.random() < 0.05:
            rows.leave(next(one for one in opened if one.row.alive))
            continue
        widths = {id(row): rng.choice((1, 2, 4, WIDEST)) for row in rows.batch.rows}
        margins = GuardMargins(verify=rng.choice((0.0, 0.0, 2.0)))
        rows.step(1 if rng.random() < 0.15 else widths, margins)
    for one in opened:
        if one.row.alive:
            rows.leave(one)
    return [one.answer for one in opened]


@pytest.mark.parametrize("seed", range(3))
def test_drafts_begun_ahead_are_those_that_follow_the_verify(
    rows: BatchDriver,
    ask: Ask,
    used: list[bool],
    drafted: list[list[list[int]]],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    # Copies of slots are taken and put between rounds, too.
    rows.prefixes = _prefixes(rows)
    answers, ahead = _played(rows, ask, seed), list(drafted)
    assert {True, False} == set(used), "every way must have been taken"
    _late(monkeypatch)
    used.clear()
    drafted.clear()
    rows.prefixes = _prefixes(rows)
    assert _played(rows, ask, seed) == answers
    assert drafted == ahead
    assert not any(used)


def test_rows_that_only_draft_begin_every_round_but_the_first_ahead(
    rows: BatchDriver, ask: Ask, used: list[bool]
) -> None:
    for prompt in _PROMPTS:
        rows.open(ask(prompt, max_tokens=80))
    for width in (2, 4, WIDEST, 3, 2):
        rows.step(width)
    assert used == [False, True, True, True, True]


def test_nothing_is_begun_in_front_of_a_plain_step(rows: BatchDriver, ask: Ask, used: list[bool]) -> None:
    rows.open(ask(_PROMPTS[0], max_tokens=80))
    for next_is_plain in (True, True, False, False):
        rows.step(4, look_ahead=next_is_plain)
    assert used == [False, False, False, True]


def test_what_was_begun_is_forgotten_when_rows_change_places(rows: BatchDriver, ask: Ask, used: list[bool]) -> None:
    opened = [rows.open(ask(prompt, max_tokens=80)) for prompt in _PROMPTS]
    rows.step(4)
    rows.leave(opened[0])
    rows.step(4)
    # A row that is told no drafts takes part in the rounds of the others.
    rows.open(ask(_PROMPTS[0], max_tokens=80, speculation=SpeculationChoice.OFF))
    rows.step(4)
    rows.step(4)
    assert used == [False, False, False, True]


def test_a_drafter_that_raises_ahead_of_a_round_costs_no_token(
    rows: BatchDriver, ask: Ask, used: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask(_PROMPTS[1])
    expected = rows.run(request, lambda _step: 1).answer
    kind: Any = type(rows.batch.drafts)
    run = kind._run
    driven = [rows.open(request), rows.open(request)]
    rows.step(4)

    def broken(batch: Any, first: int, hidden: mx.array, tokens: mx.array) -> mx.array:
        if hidden.shape[1] > 1:
            raise MemoryError("no memory for what is drafted ahead")
        output: mx.array = run(batch, first, hidden, tokens)
        return output

    with monkeypatch.context() as patched:
        patched.setattr(kind, "_run", broken)
        rows.step(4)
    while rows.batch.rows:
        rows.step(4)
    assert [one.answer for one in driven] == [expected, expected]
    assert used.count(True) > 1


def test_the_drafter_of_the_default_pair_drafts_ahead(pair: Pair) -> None:
    assert pair.drafter is not None
    assert isinstance(pair.drafter.open_batch(), DraftsAhead)

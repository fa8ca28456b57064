"""The first token of a prompt that is read while nothing decodes comes with its last chunk, and is the same."""

import threading
from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import pytest
from tests.unit.decode.conftest import TINY_VOCAB, WIDEST, BatchDriver, Pair
from tests.unit.decode.driving import Answers, RandomGrants, nothing_is_left, running

from burstgate_decode.engine import engine as engine_module
from burstgate_decode.engine import rounds
from burstgate_decode.engine.batch import Batch
from burstgate_decode.engine.engine import Pairing
from burstgate_decode.engine.limits import EngineLimits
from burstgate_decode.engine.request import (
    AnswerRequest,
    Completion,
    Delta,
    Failure,
    SamplingParams,
    SpeculationChoice,
)
from burstgate_decode.engine.row import Row
from burstgate_decode.engine.stepper import GuardMargins
from burstgate_decode.models.ragged_cache import RaggedCache
from burstgate_decode.models.target import Target

LIMITS = EngineLimits(4, 16, prefill_chunk_tokens=32)
ASKED = "Which rivers of Europe are longer than the Rhine, and through which countries do they flow?"


def pairing(pair: Pair, *, any_cut: bool = True, grants: RandomGrants | None = None) -> Pairing:
    return Pairing(pair.target, pair.drafter, WIDEST, GuardMargins(), grants or RandomGrants(5), any_cut=any_cut)


def tiny(prompt_tokens: int, max_tokens: int, speculation: SpeculationChoice = SpeculationChoice.OFF) -> AnswerRequest:
    prompt = tuple((7 * place + prompt_tokens) % TINY_VOCAB for place in range(prompt_tokens))
    return AnswerRequest("test", 0, prompt, max_tokens, ignore_eos=True, speculation=speculation)


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the tokens a row of every forward of the target."""
    ran: list[int] = []
    run = RaggedCache.run

    def counted(self: RaggedCache, forward: Callable[..., object], tokens: mx.array, first: int) -> list[object]:
        ran.append(tokens.shape[1])
        return run(self, forward, tokens, first)

    monkeypatch.setattr(RaggedCache, "run", counted)
    return ran


@pytest.mark.parametrize(("temperature", "logprobs"), [(0.0, None), (0.8, 3)])
@pytest.mark.parametrize("speculation", SpeculationChoice)
def test_every_answer_is_the_one_of_single_steps(
    rows: BatchDriver,
    ask: Callable[..., AnswerRequest],
    pair: Pair,
    speculation: SpeculationChoice,
    temperature: float,
    logprobs: int | None,
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=3, repetition_penalty=1.1 if temperature else 1.0)
    request = ask(ASKED, 12, ignore_eos=True, sampling=sampling, logprobs=logprobs, speculation=speculation)
    expected = rows.run(replace(request, speculation=SpeculationChoice.OFF), lambda _step: 1)
    with running(pairing(pair), LIMITS) as engine:
        answers = Answers(engine, [request])
        assert answers.tokens(0) == expected.answer
        nothing_is_left(engine)
    told = [
        [one for event in events if isinstance(event, Delta) for one in event.logprobs]
        for events in (answers.events[0], expected.events)
    ]
    assert told[0] == told[1]
    assert len(told[0]) == (12 if logprobs else 0)
    first, last = answers.events[0][0], answers.events[0][-1]
    assert isinstance(first, Delta)
    assert isinstance(last, Completion)
    assert (len(first.token_ids), first.draft_width) == (1, 1)
    # It counts as a plain step.
    stats = last.speculation
    assert stats.plain_steps >= 1
    assert stats.plain_steps + stats.rounds + stats.accepted == 12


def test_one_token_takes_one_forward(tiny_pair: Pair, forwards: list[int]) -> None:
    with running(pairing(tiny_pair), LIMITS) as engine:
        Answers(engine, [tiny(20, 1)]).tokens(0)
        assert forwards == [20]
        # In chunks: the lone ones are large, and the last one takes in what is left.
        forwards.clear()
        Answers(engine, [tiny(LIMITS.longest_chunk_tokens + 9, 1)]).tokens(0)
        assert forwards == [LIMITS.longest_chunk_tokens, 9]
        # A chunk is never larger for it: beyond that many rows, products may have other bits.
        forwards.clear()
        Answers(engine, [tiny(LIMITS.longest_chunk_tokens + 1, 1)]).tokens(0)
        assert forwards == [LIMITS.longest_chunk_tokens, 1]


def test_where_cuts_matter_the_last_token_is_left_to_a_step(tiny_pair: Pair, forwards: list[int]) -> None:
    with running(pairing(tiny_pair, any_cut=False), LIMITS) as engine:
        Answers(engine, [tiny(20, 1)]).tokens(0)
    assert forwards == [19, 1]


def test_beside_a_row_that_decodes_the_last_token_shares_its_step(tiny_pair: Pair, forwards: list[int]) -> None:
    with running(pairing(tiny_pair), LIMITS) as engine:
        first = Answers(engine, [tiny(12, 400)])
        first.wait_delivery()
        Answers(engine, [tiny(20, 1)]).tokens(0)
        first.tickets[0].cancel()
    assert forwards[0] == 12
    assert 19 in forwards
    assert 20 not in forwards


def test_the_step_that_only_reads_it_says_nothing_of_what_steps_cost(tiny_pair: Pair) -> None:
    grants = RandomGrants(5)
    with running(pairing(tiny_pair, grants=grants), LIMITS) as engine:
        Answers(engine, [tiny(20, 6, SpeculationChoice.AUTO)]).tokens(0)
        assert grants.records[0].excluded
        assert not all(record.excluded for record in grants.records)
        steps_before = len(engine._admission.pace._steps)
        Answers(engine, [tiny(20, 1)]).tokens(0)
        assert len(engine._admission.pace._steps) == steps_before


@pytest.mark.parametrize("where", ["forward", "choice"])
def test_what_raises_there_ends_that_answer_alone(tiny_pair: Pair, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    broken = threading.Event()

    def breaks(*_args: object, **_changes: object) -> None:
        broken.set()
        raise ValueError("broken")

    with running(pairing(tiny_pair), LIMITS) as engine:
        expected = Answers(engine, [tiny(20, 8)]).tokens(0)
        with monkeypatch.context() as patch:
            if where == "forward":
                patch.setattr(Target, "forward_last", breaks)
            else:
                patch.setattr(rounds, "choose_rows", breaks)
            failed = Answers(engine, [tiny(21, 8)])
            failed.wait_delivery()
        assert broken.is_set()
        assert isinstance(failed.events[0][-1], Failure)
        assert Answers(engine, [tiny(20, 8)]).tokens(0) == expected
        nothing_is_left(engine)


def test_a_cancel_while_it_is_in_flight_leaves_nothing(tiny_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def cancelled(batch: Batch, row: Row, chunk_tokens: int) -> None:
        rounds.prefill_end(batch, row, chunk_tokens)
        row.ticket.cancel()

    with running(pairing(tiny_pair), LIMITS) as engine:
        expected = Answers(engine, [tiny(20, 8)]).tokens(0)
        with monkeypatch.context() as patch:
            patch.setattr(engine_module, "prefill_end", cancelled)
            given_up = Answers(engine, [tiny(21, 8)])
            nothing_is_left(engine)
        assert given_up.tickets[0].cancelled
        assert given_up.events[0] == []
        assert engine._batch.flight is None
        assert Answers(engine, [tiny(20, 8)]).tokens(0) == expected
        nothing_is_left(engine)


def test_the_logits_of_the_last_token_are_those_of_all(pair: Pair, tiny_pair: Pair) -> None:
    for target in (pair.target, tiny_pair.target, replace(tiny_pair.target, split=None)):
        tokens = mx.array([[place % TINY_VOCAB for place in range(9)]])
        alone, all_of = target.forward_last(tokens, target.make_cache()), target.forward(tokens, target.make_cache())
        assert mx.array_equal(alone.logits, all_of.logits[:, -1:]).item()
        assert (alone.hidden is None) == (all_of.hidden is None)
        if alone.hidden is not None and all_of.hidden is not None:
            assert mx.array_equal(alone.hidden, all_of.hidden).item()

"""How rows share the engine: whose turn it is, and what is told of a step. A tiny pair, since text does not matter."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.decode.conftest import TINY_VOCAB, WIDEST, Pair, clock_ms
from tests.unit.decode.driving import Answers, RandomGrants, chunks_read

from burstgate_decode.engine import engine as engine_module
from burstgate_decode.engine.engine import Engine, Pairing
from burstgate_decode.engine.limits import EngineLimits
from burstgate_decode.engine.request import AnswerRequest, Completion, Event, SpeculationChoice
from burstgate_decode.engine.rounds import prefill_chunk
from burstgate_decode.engine.stepper import GuardMargins


def ask(prompt: Iterable[int], max_tokens: int) -> AnswerRequest:
    return AnswerRequest("test", 0, tuple(token % TINY_VOCAB for token in prompt), max_tokens, ignore_eos=True)


@pytest.fixture
def grants() -> RandomGrants:
    return RandomGrants(4)


@pytest.fixture
def engine(tiny_pair: Pair, grants: RandomGrants) -> Iterator[Engine]:
    limits = EngineLimits(max_active_rows=8, max_queued_rows=64, prefill_chunk_tokens=32)
    pairing = Pairing(tiny_pair.target, tiny_pair.drafter, WIDEST, GuardMargins(), grants)
    running = Engine(lambda: pairing, limits, clock_ms)
    running.start()
    running.wait_loaded()
    yield running
    running.stop()


def test_what_is_reported_is_counted_over_all_rows(engine: Engine, grants: RandomGrants) -> None:
    answers = Answers(engine, [ask((3, 1, 4), 16) for _ in range(3)])
    stats = []
    for at in range(3):
        assert len(answers.tokens(at)) == 16
        (last,) = [event for event in answers.events[at] if isinstance(event, Completion)]
        stats.append(last.speculation)
    assert sum(record.emitted for record in grants.records) >= 48
    assert sum(record.proposed for record in grants.records) == sum(one.proposed for one in stats)
    assert sum(sum(record.accepted_by_position) for record in grants.records) == sum(one.accepted for one in stats)


def test_a_running_answer_waits_for_one_chunk_at_a_time_and_prompts_take_turns(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    def chunk(batch: Any, row: Any, chunk_tokens: int) -> None:
        before = row.prefilled
        prefill_chunk(batch, row, chunk_tokens)
        assert row.prefilled - before <= 32
        happened.append(row.request.request_id)

    monkeypatch.setattr(engine_module, "prefill_chunk", chunk)
    running = replace(ask((1, 2), 400), speculation=SpeculationChoice.OFF)
    first = Answers(engine, [running])
    first.wait_delivery()
    happened.clear()
    take = first.events[0].append
    first.events[0] = _Watched(take, happened)  # type: ignore[assignment]
    # They begin with different tokens, so that neither skips what the other has read.
    long, other = ask(range(150), 1), ask(range(1, 151), 1)
    prompts = Answers(engine, [replace(long, request_id="long"), replace(other, request_id="other")])
    assert len(prompts.tokens(0)) == 1
    assert len(prompts.tokens(1)) == 1
    chunks = [name for name in happened if name != "delta"]
    assert chunks[: 2 * 4] == ["long", "other"] * 4
    assert not any(one != "delta" and other != "delta" for one, other in itertools.pairwise(happened))


@pytest.mark.parametrize(("any_cut", "alone"), [(True, [100, 100, 49]), (False, [32] * 7 + [25])])
def test_a_prompt_that_holds_up_nobody_is_read_in_larger_chunks_where_no_bit_depends_on_them(
    tiny_pair: Pair, monkeypatch: pytest.MonkeyPatch, any_cut: bool, alone: list[int]
) -> None:
    read = chunks_read(monkeypatch)
    limits = EngineLimits(prefill_chunk_tokens=32, lone_chunk_tokens=100, prefix_cache_bytes=0)
    pairing = Pairing(tiny_pair.target, tiny_pair.drafter, WIDEST, GuardMargins(), RandomGrants(4), any_cut=any_cut)
    engine = Engine(lambda: pairing, limits, clock_ms)
    engine.start()
    engine.wait_loaded()
    try:
        answers = [Answers(engine, [ask(range(250), 4)]).tokens(0)]
        assert read == alone
        read.clear()
        beside = Answers(engine, [ask((1, 2), 400)])
        beside.wait_delivery()
        read.clear()
        answers.append(Answers(engine, [ask(range(250), 4)]).tokens(0))
        assert read == [32] * 7 + [25]
        assert answers[0] == answers[1]
    finally:
        engine.stop()


class _Watched(list[Event]):
    """Notes deliveries among the chunks."""

    def __init__(self, take: Callable[[Event], None], happened: list[str]) -> None:
        super().__init__()
        self._take = take
        self._happened = happened

    def append(self, event: Event) -> None:
        self._happened.append("delta")
        self._take(event)

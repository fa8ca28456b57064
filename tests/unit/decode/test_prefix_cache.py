"""A prompt that begins as earlier rows did goes on from what they computed, and answers what it answers without."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from tests.unit.decode.conftest import BatchDriver, Driven, Pair

from burstgate_decode.engine.prefix_cache import PrefixCache
from burstgate_decode.engine.prefix_store import PrefixStore
from burstgate_decode.engine.request import AnswerRequest, SamplingParams, SpeculationChoice
from burstgate_decode.models.exactness import probe_exactness
from burstgate_decode.models.ragged_cache import RaggedCache
from burstgate_decode.models.target import Target

Ask = Callable[..., AnswerRequest]

BLOCK = 16
CHUNK = 32
LONG = "Count from 1 to 30, one number per line, and write nothing else before the first or behind the last of them."


@pytest.fixture
def store() -> PrefixStore:
    return PrefixStore(64 << 20)


@pytest.fixture
def sharing(pair: Pair, store: PrefixStore) -> BatchDriver:
    """Rows that reuse what others computed."""
    return driver(pair, store)


def driver(pair: Pair, store: PrefixStore, any_cut: bool = True) -> BatchDriver:
    made = BatchDriver(pair)
    made.prefixes = PrefixCache(made.batch, store, any_cut=any_cut, chunk_tokens=CHUNK)
    return made


def whole_blocks(tokens: int, size: int = BLOCK) -> int:
    """Tokens in whole blocks, with one more behind them."""
    return (tokens - 1) // size * size


def plain(_step: int) -> int:
    return 1


def mixed(step: int) -> int:
    return (8, 1, 3, 6, 1, 1, 2, 5, 4, 7)[step % 10]


def finish(rows: BatchDriver, driven: Driven, width_of: Callable[[int], int] = plain) -> None:
    step = 0
    while not driven.row.finished:
        rows.step(width_of(step))
        step += 1


def test_the_pair_gives_the_same_bits_however_tokens_are_cut(pair: Pair) -> None:
    assert probe_exactness(pair.target, 1, 1, 128).any_cut


def test_entries_that_depend_on_the_cut_are_found(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    original = RaggedCache.extend

    def extend(self: RaggedCache, first: int, counts: Sequence[int]) -> None:
        original(self, first, counts)
        if counts == [7]:
            values = self._layers[-1].values
            assert values is not None
            values[first, 0, 0, 0] = values[first, 0, 0, 0] * (1 + 2**-23)

    monkeypatch.setattr(RaggedCache, "extend", extend)
    found = probe_exactness(pair.target, 1, 1, 128)
    assert not found.any_cut
    assert found.bit_equal, "only prompts in pieces were touched"


@pytest.mark.parametrize("width_of", [plain, mixed])
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0.9, seed=3)])
def test_hit_and_miss_give_the_same_text(
    rows: BatchDriver, sharing: BatchDriver, ask: Ask, sampling: SamplingParams, width_of: Callable[[int], int]
) -> None:
    request = ask(LONG, max_tokens=20, sampling=sampling)
    expected = rows.run(request, width_of)
    miss, hit = sharing.run(request, width_of), sharing.run(request, width_of)
    assert miss.answer == hit.answer == expected.answer
    assert miss.text == hit.text == expected.text
    assert miss.completion.cached_prompt_tokens == 0
    # The prompt's last token takes the first step, and the one before it is run for the drafter.
    assert hit.completion.cached_prompt_tokens == whole_blocks(len(request.prompt) - 1) > 0


@pytest.mark.parametrize("draft_width", [1, 2, 8])
def test_a_chats_next_turn_goes_on_from_the_answer_that_rounds_wrote(
    rows: BatchDriver, sharing: BatchDriver, ask: Ask, draft_width: int
) -> None:
    first = ask(LONG, max_tokens=28, ignore_eos=True)
    turn = sharing.run(first, lambda _step: draft_width)
    more = ask("Now backwards, please.").prompt
    then = replace(first, prompt=(*turn.row.tokens, *more), max_tokens=8)
    neighbour = sharing.open(ask("Why is the sky blue?", max_tokens=16, ignore_eos=True))
    sharing.step(1, look_ahead=True)
    again = sharing.open(then)
    finish(sharing, again, mixed)
    # The answer's newest token was never run.
    assert again.completion.cached_prompt_tokens == whole_blocks(len(turn.row.tokens) - 1) > len(first.prompt)
    assert again.answer == rows.run(then, plain).answer
    finish(sharing, neighbour)
    assert neighbour.answer == rows.run(neighbour.row.request, plain).answer


def test_the_drafter_goes_on_as_if_it_had_read_the_prompt(rows: BatchDriver, sharing: BatchDriver, ask: Ask) -> None:
    begun = sharing.run(ask(LONG, max_tokens=32, ignore_eos=True), plain)
    request = replace(begun.row.request, prompt=tuple(begun.row.tokens), max_tokens=40)
    accepted = []
    for one in (rows, sharing):
        driven = one.open(request)
        accepted.append([one.step(8).rows[0].accepted for _ in range(4)])
        assert (driven.row.cached_prompt_tokens > 0) == (one is sharing)
    assert accepted[0] == accepted[1]
    assert sum(accepted[0]) > 8, "too little was accepted to show anything"


@pytest.mark.parametrize("tokens", [33, 34])
def test_storing_leaves_a_row_the_position_that_its_drafter_goes_on_from(
    rows: BatchDriver, sharing: BatchDriver, ask: Ask, tokens: int
) -> None:
    request = replace(ask(LONG), prompt=ask(LONG).prompt[:tokens], speculation=SpeculationChoice.ON)
    found = []
    for one in (rows, sharing, sharing):
        driven = one.open(request)
        found.append(
            [(step.draft_width, step.accepted, step.tokens) for step in (one.step(5).rows[0] for _ in range(2))]
        )
        one.leave(driven)
    assert found[0] == found[1] == found[2]


def test_a_cancelled_row_leaves_its_prefix(rows: BatchDriver, sharing: BatchDriver, ask: Ask) -> None:
    request = ask(LONG, max_tokens=36, ignore_eos=True)
    gone = sharing.open(request)
    for _ in range(18):
        sharing.step(1, look_ahead=True)
    assert sharing.batch.flight is not None
    sharing.leave(gone)
    then = replace(request, prompt=(*gone.row.tokens, *request.prompt), max_tokens=8)
    again = sharing.run(then, mixed)
    assert again.completion.cached_prompt_tokens == whole_blocks(len(gone.row.tokens) - 1)
    assert again.answer == rows.run(then, plain).answer


def test_what_is_stored_shares_nothing_with_the_slot_it_came_from(
    sharing: BatchDriver, store: PrefixStore, ask: Ask
) -> None:
    gc.collect()
    before_bytes = mx.get_active_memory()
    neighbour = sharing.open(ask("Hi", max_tokens=40))
    row = sharing.open(ask(LONG))
    held = [array for block in store._blocks.values() for array in block.target.arrays]
    before = [mx.array(array) for array in held]
    sharing.step(8)
    sharing.leave(row)
    other = sharing.open(ask("Write a Python function that reverses a list, and a test of it, without any comment."))
    assert other.row.slot == 1
    assert all(mx.array_equal(one, array).item() for one, array in zip(before, held, strict=True))
    del before
    for driven in (other, neighbour):
        sharing.leave(driven)
    gc.collect()
    assert mx.get_active_memory() - before_bytes < 1.1 * store.nbytes, "a block keeps the batch's arrays alive"


def test_where_cuts_matter_only_whole_chunks_of_prompts_are_reused(
    pair: Pair, store: PrefixStore, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharing = driver(pair, store, any_cut=False)
    ran: list[list[int]] = []
    original = Target.advance

    def advance(self: Target, tokens: mx.array, cache: Any) -> mx.array | None:
        ran.extend(tokens.tolist())  # type: ignore[arg-type]
        return original(self, tokens, cache)

    monkeypatch.setattr(Target, "advance", advance)
    request = ask(f"{LONG} {LONG}", max_tokens=40, ignore_eos=True)
    finish(sharing, sharing.open(request, CHUNK), mixed)
    chunks, count = list(ran), len(request.prompt) - 1
    assert [len(chunk) for chunk in chunks] == [CHUNK] * (count // CHUNK) + [count % CHUNK]
    ran.clear()
    again = sharing.open(request, CHUNK)
    assert ran == chunks[-1:]
    finish(sharing, again)
    ran.clear()
    turn = sharing.open(replace(request, prompt=(*again.row.tokens, 1, 2, 3)), CHUNK)
    assert turn.row.cached_prompt_tokens == whole_blocks(count, CHUNK)
    assert ran[0][: count % CHUNK] == chunks[-1], "tokens of the answer were reused"


def test_a_drafting_row_does_not_go_on_from_a_row_without_a_drafter(
    rows: BatchDriver, sharing: BatchDriver, ask: Ask
) -> None:
    drafting = ask(LONG, max_tokens=4)
    off = replace(drafting, speculation=SpeculationChoice.OFF)
    cached = [
        sharing.run(request, lambda _step: 4).completion.cached_prompt_tokens
        for request in (off, drafting, off, drafting)
    ]
    full = whole_blocks(len(off.prompt) - 1)
    assert cached == [0, 0, full, full]
    assert sharing.run(drafting, lambda _step: 4).answer == rows.run(off, plain).answer


def test_caches_that_cannot_be_cut_anywhere_are_not_reused(pair: Pair, store: PrefixStore, ask: Ask) -> None:
    separate = driver(Pair(replace(pair.target, shares_forwards=False), pair.drafter), store)
    request = ask(LONG, max_tokens=2)
    assert [separate.run(request, plain).completion.cached_prompt_tokens for _ in range(2)] == [0, 0]
    assert store.nbytes == 0


def test_a_copy_that_fails_costs_no_answer(
    rows: BatchDriver, sharing: BatchDriver, store: PrefixStore, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask(LONG, max_tokens=4)
    sharing.run(request, plain)

    def take(*_: object) -> None:
        raise MemoryError("no room for a copy")

    monkeypatch.setattr(RaggedCache, "take", take)
    then = replace(request, prompt=(*request.prompt, *request.prompt))
    assert sharing.run(then, plain).answer == rows.run(then, plain).answer
    assert store.nbytes == 0

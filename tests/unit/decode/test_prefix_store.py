"""The store finds the longest prefix it holds, keeps to its bound, and drops what was used longest ago."""

from collections.abc import Sequence

import mlx.core as mx
from hypothesis import given
from hypothesis import strategies as st

from burstgate_decode.engine.prefix_store import Block, PrefixStore, block_keys
from burstgate_decode.models.kv_span import KvSpan

SIZE = 2
# Two float32 arrays of SIZE entries.
BLOCK_BYTES = 2 * SIZE * 4

# Few different tokens, so that prompts often begin alike.
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=12)


def block(drafter: bool = True) -> Block:
    span = KvSpan((mx.zeros((1, 1, SIZE, 1)),), (mx.zeros((1, 1, SIZE, 1)),))
    return Block(span, span if drafter else None)


def add(store: PrefixStore, tokens: Sequence[int], drafter: bool = False) -> list[Block]:
    keys = block_keys(tokens, SIZE)
    made = [block(drafter) for _ in keys]
    store.add(keys, drafter, lambda known: made[known:])
    return made


def length(store: PrefixStore, tokens: Sequence[int], drafter: bool = False) -> int:
    return SIZE * len(store.match(block_keys(tokens, SIZE), drafter))


@given(st.lists(prompts, max_size=8), prompts)
def test_the_longest_prefix_is_found_of_all_that_was_added(added: list[list[int]], asked: list[int]) -> None:
    store = PrefixStore(1 << 20)
    owners: dict[int, list[int]] = {}
    for tokens in added:
        for at, one in enumerate(add(store, tokens)):
            owners[id(one)] = tokens[: SIZE * (at + 1) + 1]
    found = store.match(block_keys(asked, SIZE), with_drafter=False)
    # A block of n tokens also stands for the one behind them.
    reach = [
        end
        for tokens in added
        for end in range(SIZE, min(len(tokens), len(asked)), SIZE)
        if tokens[: end + 1] == asked[: end + 1]
    ]
    assert SIZE * len(found) == max(reach, default=0)
    assert store.covered(block_keys(asked, SIZE)) == len(found)
    assert [owners[id(one)] for one in found] == [asked[: SIZE * (at + 1) + 1] for at in range(len(found))]


@given(st.lists(st.tuples(prompts, st.booleans(), st.booleans()), max_size=20), st.integers(0, 6))
def test_bytes_are_bounded_and_no_block_outlives_the_one_before_it(
    actions: list[tuple[list[int], bool, bool]], room: int
) -> None:
    store = PrefixStore(room * BLOCK_BYTES)
    added: list[list[int]] = []
    for tokens, adds, drafter in actions:
        if adds:
            add(store, tokens, drafter)
            added.append(tokens)
        else:
            length(store, tokens, drafter)
        assert store.nbytes == sum(one.nbytes for one in store._blocks.values()) <= room * BLOCK_BYTES
        chains = [block_keys(one, SIZE) for one in added]
        assert set(store._blocks) == {key for keys in chains for key in keys[: len(store.match(keys, False))]}


def test_what_was_used_last_is_dropped_last() -> None:
    store = PrefixStore(4 * BLOCK_BYTES)
    first, second, third = [1, 1, 1, 1, 1], [2, 2, 2, 2, 2], [3, 3, 3]
    add(store, first)
    add(store, second)
    assert length(store, first) == 4
    add(store, third)
    assert [length(store, tokens) for tokens in (first, second, third)] == [4, 2, 2]


def test_a_later_turn_adds_only_what_is_new() -> None:
    store = PrefixStore(1 << 20)
    turn = [1, 2, 3, 4, 5]
    add(store, turn)
    made = add(store, [*turn, 6, 7])
    assert store.nbytes == 3 * BLOCK_BYTES
    assert store.match(block_keys([*turn, 6, 7], SIZE), False)[2] is made[2]


def test_a_prefix_larger_than_the_bound_is_kept_as_far_as_there_is_room() -> None:
    store = PrefixStore(2 * BLOCK_BYTES)
    keys = block_keys(range(12), SIZE)
    made = [block(drafter=False) for _ in keys]
    assert store.add(keys, False, lambda known: made[known:]) == made[:2]
    assert length(store, range(12)) == 4


def test_a_drafting_row_takes_no_block_without_drafter_state_and_adds_it() -> None:
    store = PrefixStore(1 << 20)
    tokens = [1, 2, 3, 4, 5]
    add(store, tokens)
    assert (length(store, tokens, drafter=False), length(store, tokens, drafter=True)) == (4, 0)
    add(store, tokens, drafter=True)
    assert length(store, tokens, drafter=True) == 4
    assert store.nbytes == 2 * 2 * BLOCK_BYTES
    add(store, tokens, drafter=False)
    assert length(store, tokens, drafter=True) == 4

"""Positions that wait for a drafter come out in order, each once, however they came in."""

from io import StringIO

import mlx.core as mx
from hypothesis import given, settings
from hypothesis import strategies as st

from burstgate_decode.drafters.waiting import WaitingPositions, padded_positions

SIZE = 3
# Mostly nothing: what is left in many pieces is what can be put together wrongly.
_DROPPED = st.sampled_from([0, 0, 0, 0, 1, 2, 6])


def arrays(rows: int, length: int, first: int) -> tuple[mx.array, mx.array]:
    """Tokens that are all different, and hidden states that repeat their token."""
    tokens = mx.arange(first, first + rows * length).reshape(rows, length)
    return mx.broadcast_to(tokens[..., None].astype(mx.float32), (rows, length, SIZE)), tokens


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, list[int], list[int]]]:
    """Steps: the length of a batch's arrays, how many positions each row keeps, and how many it drops then."""
    rows = draw(st.integers(1, 4))
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        length = draw(st.integers(1, 5))
        # As of a plain step and of a fold, where all rows do the same; or as of a round.
        alike = draw(st.booleans())
        kept = [length] * rows if alike else draw(st.lists(st.integers(0, length), min_size=rows, max_size=rows))
        fewer = draw(_DROPPED)
        dropped = [fewer] * rows if alike else draw(st.lists(_DROPPED, min_size=rows, max_size=rows))
        steps.append((length, kept, dropped))
    return steps


@settings(max_examples=300, deadline=None)
@given(steps=histories(), data=st.data())
def test_rows_come_out_as_they_went_in(steps: list[tuple[int, list[int], list[int]]], data: st.DataObject) -> None:
    rows = len(steps[0][1])
    waiting = [WaitingPositions() for _ in range(rows)]
    expected: list[list[int]] = [[] for _ in range(rows)]
    order = data.draw(st.one_of(st.just(list(range(rows))), st.permutations(range(rows))))
    for number, (length, kept, dropped) in enumerate(steps):
        hidden, tokens = arrays(rows, length, 100 * number)
        for slot, row in enumerate(order):
            waiting[slot].add(hidden, tokens, row, kept[slot])
            expected[slot] += tokens[row, : kept[slot]].tolist()
            count = min(dropped[slot], waiting[slot].total)
            waiting[slot].drop(count)
            del expected[slot][:count]
            assert waiting[slot].total == len(expected[slot])
    everything = data.draw(st.booleans())
    # A row may have joined behind the others, with nothing told of it yet.
    waiting += [WaitingPositions()] * data.draw(st.integers(0, 1))
    counts = [one.total if everything else data.draw(st.integers(0, one.total)) for one in waiting]
    if not any(counts):
        return
    hidden, tokens = padded_positions(waiting, counts)
    assert tokens.shape == (len(waiting), max(counts))
    assert hidden.shape == (len(waiting), max(counts), SIZE)
    for slot, count in enumerate(counts[:rows]):
        assert tokens[slot, :count].tolist() == expected[slot][:count]
        assert hidden[slot, :count, 0].tolist() == expected[slot][:count]


def test_what_one_round_left_behind_is_taken_without_copying_rows() -> None:
    hidden, tokens = arrays(3, 4, 0)
    waiting = [WaitingPositions() for _ in range(3)]
    for row, (one, count) in enumerate(zip(waiting, (2, 4, 1), strict=True)):
        one.add(hidden, tokens, row, count)
    _, found = padded_positions(waiting, [2, 4, 1])
    assert found.tolist() == tokens.tolist(), "the arrays themselves, with what was not kept behind each row"


def test_a_plain_stretch_is_joined_and_not_gathered_row_by_row() -> None:
    waiting = [WaitingPositions() for _ in range(3)]
    for step in range(20):
        hidden, tokens = arrays(3, 1, 100 * step)
        for row, one in enumerate(waiting):
            one.add(hidden, tokens, row, 1)
    hidden, found = padded_positions(waiting, [20, 18, 0])
    assert found[0].tolist() == [100 * step for step in range(20)]
    buffer = StringIO()
    mx.export_to_dot(buffer, hidden)
    graph = buffer.getvalue()
    assert graph.count("Concatenate") == 1
    assert "Pad" not in graph

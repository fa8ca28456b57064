"""A sequence that was taken back computes what one computes that never saw the tokens it dropped, in every shape."""

import functools
import threading
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, make_prompt_cache
from tests.unit.models.shapes import SHAPES, VOCAB, WINDOW, make_model, make_target, read

from burstgate_decode.models.sequence_cache import Mark, SequenceCache
from burstgate_decode.models.target import irreversible_caches

LENGTHS = (1, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW)
WIDEST = 8
# Of the largest logit: rounding of float32 sums in another order, far below what a wrong entry does.
SAME = 1e-4
REPLAYING = {"recurrent", "recurrent_sliding", "convolutions", "linear_attention", "lists"}


@functools.cache
def model_of(shape: str) -> nn.Module:
    return make_model(shape)


def tokens_of(count: int) -> list[int]:
    return [(13 * place + place * place // 5) % VOCAB for place in range(count)]


class Beside:
    """A sequence that is taken back, beside one that reads the same tokens one by one and never is."""

    def __init__(self, shape: str, prompt: Sequence[int], chunk: int = WIDEST * WINDOW) -> None:
        self.model = model_of(shape)
        self.prompt = prompt
        self.straight, self.back = (SequenceCache(functools.partial(make_prompt_cache, self.model)) for _ in range(2))
        for start in range(0, len(prompt), chunk):
            for sequence in (self.straight, self.back):
                read(self.model, sequence, prompt[start : start + chunk])

    def verify(self, tokens: Sequence[int], kept: int) -> int:
        """A verify of the tokens of which some are kept; returns how many tokens are run again."""
        mark, length = self.back.mark(), self.back.length
        read(self.model, self.back, [*tokens[:kept], *((token + 1) % VOCAB for token in tokens[kept:])])
        again = self.cut(length + kept, mark, tokens[:kept])
        for token in tokens[:kept]:
            read(self.model, self.straight, [token])
        return again

    def cut(self, length: int, mark: Mark | None, newest: Sequence[int] = ()) -> int:
        held = self.back.cut(length, mark)
        assert self.back.length == held
        if held < length:
            read(self.model, self.back, [*self.prompt, *newest][held - length :] if held else [*self.prompt, *newest])
        assert self.back.length == length
        return length - held

    def agree(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            found, expected = (read(self.model, sequence, [token]) for sequence in (self.back, self.straight))
            difference = mx.max(mx.abs(found - expected)).item() / mx.max(mx.abs(expected)).item()
            assert difference < SAME


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_follows_a_verify_is_what_follows_plain_steps(shape: str, length: int) -> None:
    tokens = tokens_of(length + WIDEST + 6)
    for width, kept in [(2, 0), (2, 1), (2, 2), (5, 0), (5, 2), (5, 4), (5, 5), (WIDEST, 1), (WIDEST, WIDEST - 1)]:
        rows = Beside(shape, tokens[:length])
        again = rows.verify(tokens[length : length + width], kept)
        assert again == (kept if shape in REPLAYING and kept < width else 0)
        rows.agree(tokens[length + kept : length + kept + 4])


@pytest.mark.parametrize("shape", SHAPES)
def test_verifies_one_after_the_other_cross_windows_and_blocks(shape: str) -> None:
    rows = Beside(shape, tokens_of(WINDOW - 5), chunk=4)
    for width, kept in [(4, 2), (8, 7), (3, 1), (2, 0), (5, 5), (8, 3), (2, 1), (8, 8), (6, 1), (8, 5), (3, 2), (7, 6)]:
        at = rows.back.length
        rows.verify(tokens_of(at + width)[at:], kept)
    rows.agree(tokens_of(WINDOW))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_round_that_decided_a_token_alone_can_still_be_undone(shape: str, length: int) -> None:
    tokens = tokens_of(length + 12)
    rows = Beside(shape, tokens[:length])
    mark = rows.back.mark()
    for kept in (3, 0, 2):
        read(rows.model, rows.back, tokens[length : length + 5])
        rows.cut(length + kept, mark, tokens[length : length + kept])
        read(rows.model, rows.back, tokens[-1:])
        assert rows.back.cut(length, mark) == length
    rows.agree(tokens[length : length + 6])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_forward_that_raises_half_way_is_undone(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for length in (WINDOW - 2, 2 * WINDOW):
        rows = Beside(shape, tokens_of(length))
        mark = rows.back.mark()
        last = rows.model.layers[-1]

        def broken(*_: Any, **__: Any) -> None:
            raise MemoryError("no memory for the last layer")

        with monkeypatch.context() as patched:
            patched.setattr(type(last), "__call__", _raising_at(last, type(last).__call__, broken))
            with pytest.raises(MemoryError):
                read(rows.model, rows.back, [1, 2, 3])
        assert rows.back.cut(length, mark) == length
        rows.agree(tokens_of(6))


def _raising_at(last: nn.Module, original: Any, broken: Any) -> Any:
    return lambda self, *rest, **named: (broken if self is last else functools.partial(original, self))(*rest, **named)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("shape", SHAPES)
def test_without_a_mark_a_step_is_undone_or_nothing_is_left(shape: str, length: int) -> None:
    rows = Beside(shape, tokens_of(length))
    read(rows.model, rows.back, [1])
    rows.cut(length, None)
    rows.agree(tokens_of(6))


def test_a_mark_copies_no_layer_that_can_always_drop_its_newest_entries() -> None:
    mark = Beside("lists", tokens_of(4)).back.mark()
    assert [state is None for state in mark._states] == [False, True] * 2


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_reversible(shape: str) -> None:
    target = make_target(model_of(shape))
    assert target.irreversible_caches == ()
    assert not target.shares_forwards
    assert target.replays is (shape in REPLAYING)


class KeptElsewhere(KVCache):  # type: ignore[misc]
    """A cache that cannot be copied: what it holds grows in a place that it only refers to."""

    _everything: dict[int, list[tuple[mx.array, mx.array]]] = {}  # noqa: RUF012

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        held = self._everything.setdefault(id(self), [])
        held.append((keys, values))
        self.offset += keys.shape[2]
        return tuple(mx.concatenate(parts, axis=2) for parts in zip(*held, strict=True))  # type: ignore[return-value]


class Closed(KVCache):  # type: ignore[misc]
    """A cache that refuses to be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Copyable(KVCache):  # type: ignore[misc]
    """A cache of a class nobody knows, which holds all it holds itself."""


@pytest.mark.parametrize(("cache", "refused"), [(KeptElsewhere, True), (Closed, True), (Copyable, False)])
def test_a_cache_of_an_unknown_class_is_tried_and_named_if_it_cannot_be_taken_back(
    cache: type[KVCache], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("convolutions")
    monkeypatch.setattr(
        type(model),
        "make_cache",
        lambda self: [cache() if layer.is_attention_layer else ArraysCache(1) for layer in self.layers],
    )
    assert irreversible_caches(model, VOCAB) == ((cache.__name__,) if refused else ())

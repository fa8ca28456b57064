"""Text: whole characters, stop strings, nothing lost."""

from typing import Any

import pytest
from tests.unit.decode.conftest import Pair

from burstgate_decode.engine.text import AnswerText


@pytest.fixture
def tokenizer(pair: Pair) -> Any:
    return pair.target.tokenizer


def _pieces(tokenizer: Any, ids: list[int], stops: tuple[str, ...] = ()) -> tuple[list[str], str | None]:
    text = AnswerText(tokenizer, stops)
    pieces = []
    for token in ids:
        piece = text.add(token)
        pieces.append(piece.text)
        if piece.stop_string is not None:
            return pieces, piece.stop_string
    last = text.finish()
    return [*pieces, last.text], last.stop_string


@pytest.mark.parametrize(
    "text", [" leading space", "café 日本語 🙂👩‍👩‍👧", "a\n\n  b\tc", "Ünïcödé", "🏳️‍🌈 end", "x" * 300]
)
def test_pieces_join_to_the_decoded_text_without_broken_characters(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces, _ = _pieces(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_that_never_ends_is_shown_once_at_the_end(tokenizer: Any) -> None:
    ids = tokenizer.encode("🙂", add_special_tokens=False)
    pieces, _ = _pieces(tokenizer, ids[:1])
    assert pieces[0] == ""
    assert "\ufffd" in pieces[-1]


@pytest.mark.parametrize("stop", ["lazy", "o", "fox jumps", "\n"])
def test_text_ends_before_the_stop_string(tokenizer: Any, stop: str) -> None:
    text = "the quick brown fox jumps over the lazy\n dog"
    pieces, matched = _pieces(tokenizer, tokenizer.encode(text, add_special_tokens=False), (stop,))
    assert matched == stop
    assert "".join(pieces) == text[: text.index(stop)]


def test_the_earliest_of_several_stop_strings_wins(tokenizer: Any) -> None:
    ids = tokenizer.encode("one two three", add_special_tokens=False)
    pieces, matched = _pieces(tokenizer, ids, ("three", "two"))
    assert (matched, "".join(pieces)) == ("two", "one ")


def test_text_that_only_begins_a_stop_string_is_released(tokenizer: Any) -> None:
    ids = tokenizer.encode("abcabd", add_special_tokens=False)
    pieces, matched = _pieces(tokenizer, ids, ("abcabcabc",))
    assert (matched, "".join(pieces)) == (None, "abcabd")


def test_no_piece_holds_text_that_may_still_become_a_stop_string(tokenizer: Any) -> None:
    ids = tokenizer.encode("count: STO", add_special_tokens=False)
    text = AnswerText(tokenizer, ("STOP",))
    sent = "".join(text.add(token).text for token in ids)
    assert sent == "count: "
    assert text.finish().text == "STO"

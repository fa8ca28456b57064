"""Turns an answer's tokens into text: whole characters only, cut before a stop string.

The text streamed is always the tokeniser's decoding of the answer's tokens, up to the stop string. Text
that may still become a stop string is held back; a token that ends inside a character is held back too.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from tokenizers.decoders import DecodeStream


@dataclass(frozen=True)
class Piece:
    """Text that may be sent, and the stop string that ended the answer, if one did."""

    text: str
    stop_string: str | None = None


class Detokenizer(Protocol):
    """Turns tokens into text, one at a time."""

    def add(self, token: int) -> str:
        """The text that `token` completed."""
        ...

    def finish(self) -> str:
        """What was still incomplete."""
        ...


class AnswerText:
    """The text of one answer."""

    def __init__(self, tokenizer: Any, stop_strings: tuple[str, ...]) -> None:
        """`tokenizer` is mlx-lm's wrapper."""
        self._detokenizer = _detokenizer(tokenizer)
        self._stops = stop_strings
        self._held = ""

    def add(self, token: int) -> Piece:
        """Takes the next token."""
        return self._release(self._detokenizer.add(token))

    def finish(self) -> Piece:
        """Releases everything held back; the answer has no more tokens."""
        piece = self._release(self._detokenizer.finish())
        if piece.stop_string is not None:
            return piece
        rest, self._held = self._held, ""
        return Piece(piece.text + rest)

    def _release(self, text: str) -> Piece:
        if not self._stops:
            return Piece(text)
        self._held += text
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, stop = min(found)
            released, self._held = self._held[:at], ""
            return Piece(released, stop)
        keep = max(_overlap(self._held, stop) for stop in self._stops)
        released = self._held[: len(self._held) - keep]
        self._held = self._held[len(released) :]
        return Piece(released)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0


def _detokenizer(tokenizer: Any) -> Detokenizer:
    # transformers keeps the `tokenizers` object of a fast tokeniser behind this attribute; its decoding
    # stream is exact, where mlx-lm's drops the first space of a text.
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return _FastDetokenizer(backend) if backend is not None else _SlowDetokenizer(tokenizer.detokenizer)


class _FastDetokenizer:
    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._stream = DecodeStream(skip_special_tokens=False)
        self._pending: list[int] = []

    def add(self, token: int) -> str:
        self._pending.append(token)
        text = self._stream.step(self._backend, token)
        if text is None:
            return ""
        self._pending.clear()
        return str(text)

    def finish(self) -> str:
        # Bytes that never became a character show as replacement characters, as in any decoding.
        text = self._backend.decode(self._pending, skip_special_tokens=False) if self._pending else ""
        self._pending.clear()
        return str(text)


class _SlowDetokenizer:
    def __init__(self, detokenizer: Any) -> None:
        self._detokenizer = detokenizer

    def add(self, token: int) -> str:
        self._detokenizer.add_token(token)
        return str(self._detokenizer.last_segment)

    def finish(self) -> str:
        self._detokenizer.finalize()
        return str(self._detokenizer.last_segment)

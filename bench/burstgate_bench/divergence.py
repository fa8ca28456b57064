"""Where two answers to one prompt part, and how close the target's choice was there. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Doubt:
    """What the target says of a position, computed again."""

    margin: float
    """Gap between its two highest logits: near zero where numerics alone can turn the choice."""
    expected_deficit: float
    """How far the plain answer's token lies below the highest logit; 0 if it is the highest."""
    other_deficit: float
    """The same of the other answer's token."""


@dataclass(frozen=True)
class Divergence:
    """Two answers that should be equal and are not."""

    prompt: str
    arm: str
    position: int
    """First answer token that differs, from 0."""
    expected: int | None
    """The plain answer's token; None where it had ended."""
    got: int | None
    """The other answer's token; None where it had ended."""
    expected_text: str
    got_text: str
    doubt: Doubt

    def __str__(self) -> str:
        """One line for the report."""
        return (
            f"{self.arm} differs on {self.prompt!r} at answer token {self.position}:"
            f" {_shown(self.got, self.got_text)} instead of {_shown(self.expected, self.expected_text)};"
            f" the two highest logits there are {self.doubt.margin:.3g} apart"
            f" (deficits {self.doubt.other_deficit:.3g} and {self.doubt.expected_deficit:.3g})"
        )


def first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """The first place where two answers differ, the end of the shorter one included; None if they are equal."""
    for place, (left, right) in enumerate(zip(expected, got, strict=False)):
        if left != right:
            return place
    return None if len(expected) == len(got) else min(len(expected), len(got))


def token_at(tokens: Sequence[int], position: int) -> int | None:
    """The token at a position; None behind the end."""
    return tokens[position] if position < len(tokens) else None


def _shown(token: int | None, text: str) -> str:
    return "the end" if token is None else f"{token} {text!r}"

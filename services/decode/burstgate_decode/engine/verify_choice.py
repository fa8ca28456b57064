"""Which of a round's drafts are worth verifying: of all rows so many, or of each row its own.

`expected[n][i]` are the tokens that draft n + 1 of row i may be expected to add, fewer than those of the draft before
it, and 0 if the row may not have it. `verify_ms[n]` is a verify with n drafts of each row. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class VerifyChoice:
    """The choice that is worth most."""

    drafts: list[int]
    """Of each row; one that may not have so many has those that it may."""
    worth_ms: float
    """What the tokens are worth, less what the verify costs."""


def choose_columns(
    expected: Sequence[Sequence[float]], verify_ms: Sequence[float], token_price_ms: float
) -> VerifyChoice:
    """The first so many drafts of every row, at least one: where each row costs what the widest one does."""
    best, most, tokens = 1, -float("inf"), 0.0
    for count, column in enumerate(expected, start=1):
        tokens += sum(column)
        worth_ms = token_price_ms * tokens - verify_ms[count]
        if worth_ms > most:
            best, most = count, worth_ms
    return VerifyChoice([best] * len(expected[0]), most)


def choose_by_row(
    expected: Sequence[Sequence[float]], verify_ms: Sequence[float], token_price_ms: float
) -> VerifyChoice:
    """The likeliest drafts of all rows, where a verify costs what is in it, and the first one of each.

    What is known of a row's first drafts is learned from all of them.
    """
    drafts = [int(tokens > 0.0) for tokens in expected[0]]
    chosen, tokens = sum(drafts), sum(expected[0])
    likeliest = sorted(
        ((one, row) for column in expected[1:] for row, one in enumerate(column) if one > 0.0), reverse=True
    )
    best, most = chosen, token_price_ms * tokens - between(verify_ms, chosen / len(drafts))
    for count, (one, _) in enumerate(likeliest, start=chosen + 1):
        tokens += one
        worth_ms = token_price_ms * tokens - between(verify_ms, count / len(drafts))
        if worth_ms > most:
            best, most = count, worth_ms
    for _, row in likeliest[: best - chosen]:
        drafts[row] += 1
    return VerifyChoice(drafts, most)


def between(costs_ms: Sequence[float], drafts: float) -> float:
    """The cost at a mean number of drafts, by a straight line through its neighbours."""
    whole = int(drafts)
    share = drafts - whole
    return costs_ms[whole] + share * (costs_ms[whole + 1] - costs_ms[whole]) if share else costs_ms[whole]

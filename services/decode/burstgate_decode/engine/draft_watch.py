"""Reads the drafter's own probability of each draft while a round drafts, and asks the rule whether to go on.

The probability is that of the plain softmax over the drafter's vocabulary, also where tokens are drawn: it
foretells acceptance better than the softmax at the temperature. With a rule it is read before the next draft is
issued. Nothing is drafted ahead of the answer: building the next graph meanwhile takes the matrix library's time
on the machine's cores, and a draft that is dropped was paid for.
"""

from collections.abc import Sequence

import mlx.core as mx

from burstgate_decode.drafters.base import GoesOn, Pick
from burstgate_decode.engine.stopping import StoppingRule
from burstgate_decode.models.arrays import float_rows, floats
from burstgate_decode.models.softmax import softmax_at


class DraftWatch:
    """The drafts of a batch's rows in one round."""

    def __init__(self, pick: Pick, rule: StoppingRule | None) -> None:
        """`pick` chooses the drafts. Without a rule nothing is read before the round has its drafts."""
        self._pick = pick
        self._rule = rule
        self._probabilities: list[mx.array] = []

    @property
    def goes_on(self) -> GoesOn | None:
        """What the drafter is to ask after each draft."""
        return self._ask_rule if self._rule is not None else None

    def pick(self, logits: mx.array, ids: mx.array | None, depth: int) -> mx.array:
        """Picks a draft for each row from `logits [B, V']` over the token ids `ids [V']`; returns `[B]`, lazily."""
        tokens = self._pick(logits, ids, depth)
        self._probabilities.append(probability_of(logits, ids, tokens))
        return tokens

    def worth_verifying(self, drafts: Sequence[int]) -> list[int]:
        """How many drafts of each row go into the verify, of so many that it has."""
        # A drafter that picks nothing gives no probabilities to judge by.
        if self._rule is None or not self._probabilities:
            return list(drafts)
        return [min(has, worth) for has, worth in zip(drafts, self._rule.worth_verifying(), strict=True)]

    def probabilities(self, rows: int) -> list[list[float]]:
        """Of each draft made, by row; empty if the drafter gives none. Evaluates."""
        if not self._probabilities:
            return [[] for _ in range(rows)]
        return float_rows(mx.stack(self._probabilities, axis=1))

    def _ask_rule(self) -> bool:
        if self._rule is None or not self._probabilities:
            return True
        return self._rule.goes_on(floats(self._probabilities[-1]))


def probability_of(logits: mx.array, ids: mx.array | None, tokens: mx.array) -> mx.array:
    """The softmax's probability of each row's token, `[B]`, for `logits [B, V']`, `ids [V']` and `tokens [B]`. Lazy."""
    columns = tokens[:, None] if ids is None else mx.argmax(ids == tokens[:, None], axis=-1, keepdims=True)
    return softmax_at(logits.astype(mx.float32), columns)[:, 0]

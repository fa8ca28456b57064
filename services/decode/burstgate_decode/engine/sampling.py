"""Chooses tokens from logits: penalties, filters, and randomness that depends only on (seed, position).

Sampling is argmax(scores / temperature + Gumbel noise), which draws from softmax(scores / temperature)
(the Gumbel-max trick). The noise of a position is a function of the seed and the position alone, so the
token drawn there is the same whether a plain step, a verify of any width or a drafter asks for it:
speculation compares draws of common random numbers and changes neither the distribution nor the text.
"""

from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors

from burstgate_decode.engine.request import SamplingParams, TokenLogprobs
from burstgate_decode.models.arrays import float_rows, int_rows

_MASK64 = (1 << 64) - 1
# mlx-lm looks back 20 tokens by default; here penalties see the whole prompt and answer.
_PENALTY_CONTEXT_TOKENS = 1 << 30


@dataclass(frozen=True)
class Choice:
    """Chosen tokens `[L]` and, when wanted, the processed logits `[L, V]` and margins `[L]`. All lazy."""

    tokens: mx.array
    logits: mx.array
    margins: mx.array | None


class Chooser:
    """Chooses the tokens of one answer."""

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        """Prepares penalties and filters. `params` must be validated."""
        self._params = params
        self._vocab_size = vocab_size
        self._processors = make_logits_processors(
            logit_bias=dict(params.logit_bias) or None,
            repetition_penalty=params.repetition_penalty if params.repetition_penalty != 1.0 else None,
            repetition_context_size=_PENALTY_CONTEXT_TOKENS,
            presence_penalty=params.presence_penalty or None,
            presence_context_size=_PENALTY_CONTEXT_TOKENS,
            frequency_penalty=params.frequency_penalty or None,
            frequency_context_size=_PENALTY_CONTEXT_TOKENS,
        )

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self._params.temperature == 0.0

    @property
    def likeliest(self) -> bool:
        """Whether the target's logits are taken as they are and the likeliest token always chosen."""
        return self.greedy and not self._processors

    @property
    def reads_history(self) -> bool:
        """Whether `choose` needs the tokens before each position."""
        return bool(self._processors)

    def choose(self, logits: mx.array, position: int, history: mx.array | None, margins: bool) -> Choice:
        """Chooses one token for each row.

        `logits [L, V]`: row i is the target's answer for absolute position `position + i`. `history
        [H + L - 1]`: the tokens before `position + L - 1`, when `reads_history`. `margins`: also return how
        far each choice's score lies above the next best, in units of the logits.
        """
        logits = self._process(logits, history)
        scores = logits if self.greedy else self._scores(logits, position)
        tokens = mx.argmax(scores, axis=-1)
        if not margins:
            return Choice(tokens, logits, None)
        return Choice(tokens, logits, margins_of(scores, tokens) * (self._params.temperature or 1.0))

    def pick(self, logits: mx.array, ids: mx.array | None, position: int) -> mx.array:
        """Picks a draft from `logits [1, V']` over the token ids `ids [V']`; returns `[1]`, lazily."""
        if not self.greedy:
            noise = self._noise(position)
            logits = logits / self._params.temperature + (noise if ids is None else noise[ids])
        column = mx.argmax(logits, axis=-1)
        return column if ids is None else ids[column]

    def _process(self, logits: mx.array, history: mx.array | None) -> mx.array:
        if not self._processors:
            return logits
        if history is None:
            raise ValueError("penalties need the tokens before each position")
        first = history.shape[0] - logits.shape[0] + 1
        rows = []
        for row in range(logits.shape[0]):
            one = logits[row : row + 1]
            for processor in self._processors:
                one = processor(history[: first + row], one)
            rows.append(one)
        return mx.concatenate(rows, axis=0)

    def _scores(self, logits: mx.array, position: int) -> mx.array:
        params = self._params
        scores = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        if params.top_p < 1.0:
            scores = apply_top_p(scores, params.top_p)
        if params.min_p > 0.0:
            scores = apply_min_p(scores, params.min_p)
        if 0 < params.top_k < self._vocab_size:
            scores = apply_top_k(scores, params.top_k)
        noise = mx.stack([self._noise(position + row) for row in range(logits.shape[0])])
        return scores / params.temperature + noise

    def _noise(self, position: int) -> mx.array:
        key = mx.random.key(_mix(self._params.seed, position))
        return mx.random.gumbel((self._vocab_size,), key=key)


def margins_of(scores: mx.array, tokens: mx.array) -> mx.array:
    """How far the chosen `tokens [...]` lie above the next best of `scores [..., V]`. Lazy."""
    rest = mx.put_along_axis(scores, tokens[..., None], mx.array(-mx.inf, scores.dtype), axis=-1)
    return mx.max(scores, axis=-1) - mx.max(rest, axis=-1)


def logprobs_of(logits: mx.array, tokens: list[int], top: int) -> tuple[TokenLogprobs, ...]:
    """Log-probabilities of the chosen tokens and the `top` likeliest, for `logits [L, V]`. Evaluates."""
    logprobs = logits[: len(tokens)].astype(mx.float32)
    logprobs = logprobs - mx.logsumexp(logprobs, axis=-1, keepdims=True)
    chosen = float_rows(mx.take_along_axis(logprobs, mx.array(tokens)[:, None], axis=-1))
    if not top:
        return tuple(TokenLogprobs(value[0], ()) for value in chosen)
    order = mx.argsort(-logprobs, axis=-1)[:, :top]
    ids = int_rows(order)
    values = float_rows(mx.take_along_axis(logprobs, order, axis=-1))
    return tuple(
        TokenLogprobs(value[0], tuple(zip(row_ids, row_values, strict=True)))
        for value, row_ids, row_values in zip(chosen, ids, values, strict=True)
    )


def _mix(seed: int, position: int) -> int:
    # SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators"): neighbouring
    # seeds and positions give unrelated keys.
    state = (seed + 0x9E3779B97F4A7C15 * (position + 1)) & _MASK64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
    return state ^ (state >> 31)

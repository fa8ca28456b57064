"""Finds out at start whether a verify of several rows computes what one-row steps compute.

Both are run from one prefilled prompt: single steps over a walk of tokens, then verifies of every width
over the same tokens. Equal bits at every position mean that speculation cannot change the text. Where they
differ, the largest difference bounds how close two scores must be for a verify to be in doubt.
"""

from dataclasses import dataclass

import mlx.core as mx

from burstgate_decode.models.arrays import as_float
from burstgate_decode.models.batch_cache import Cache, cache_arrays, rewind
from burstgate_decode.models.target import Target

# Prompts of different lengths, each followed by a walk of single steps: short, and past a few cache blocks.
_PROMPT_TOKENS = (5, 48)
_WALK_TOKENS = 8
# A difference seen in few positions is no bound; doubt starts at this multiple of it.
_GUARD_FACTOR = 4.0


@dataclass(frozen=True)
class Exactness:
    """What the probe found."""

    bit_equal: bool
    positions: int
    max_logit_difference: float
    guard_margin: float
    """A verified choice whose margin is not above this is in doubt; 0 when bits are equal."""
    explanation: str


def probe_exactness(target: Target, draft_width: int) -> Exactness:
    """Compares verifies of 2 to `draft_width` rows with single steps."""
    positions, worst, equal = 0, 0.0, True
    for draw, prompt_tokens in enumerate(_PROMPT_TOKENS):
        for difference in _differences(target, draft_width, draw, prompt_tokens):
            positions += 1
            equal = equal and difference == 0.0
            worst = max(worst, difference)
    if equal:
        return Exactness(
            True,
            positions,
            0.0,
            0.0,
            f"every verify row of {positions} equalled the one-row step bit for bit",
        )
    margin = _GUARD_FACTOR * worst
    return Exactness(
        False,
        positions,
        worst,
        margin,
        f"verify rows differ from one-row steps by up to {worst:.2g}; choices closer than {margin:.2g} are in doubt",
    )


def exact_without_verify() -> Exactness:
    """For a target that is served without a drafter."""
    return Exactness(True, 0, 0.0, 0.0, "without a drafter every step has one row")


def _differences(target: Target, draft_width: int, draw: int, prompt_tokens: int) -> list[float]:
    tokens = [
        (7919 * (place + 1) + 104_729 * draw) % target.vocab_size for place in range(prompt_tokens + _WALK_TOKENS)
    ]
    cache = target.make_cache()
    target.advance(mx.array([tokens[:prompt_tokens]]), cache)
    walk = tokens[prompt_tokens:]
    singles = [_logits(target, cache, [token])[0] for token in walk]
    rewind(cache, prompt_tokens)
    found: list[float] = []
    for width in range(2, draft_width + 1):
        for start in range(0, len(walk) - width + 1, width):
            rows = _logits(target, cache, walk[start : start + width])
            found.extend(_difference(rows[row], singles[start + row]) for row in range(width))
        rewind(cache, prompt_tokens)
    return found


def _logits(target: Target, cache: Cache, tokens: list[int]) -> list[mx.array]:
    logits = target.forward(mx.array([tokens]), cache).logits[0]
    mx.eval(logits, cache_arrays(cache))
    return [logits[row] for row in range(len(tokens))]


def _difference(row: mx.array, single: mx.array) -> float:
    if bool(mx.array_equal(row, single).item()):
        return 0.0
    # Rows may differ only where adding shows nothing, such as the sign of a zero.
    gap = as_float(mx.max(mx.abs(row.astype(mx.float32) - single.astype(mx.float32))))
    return max(gap, float(mx.finfo(row.dtype).eps))

"""Keeps a change to a loaded model only if the model then computes the same bits."""

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

# Tokens of a prompt, of a step and of a verify: enough of a prompt that what is reserved for larger operations runs.
_PIECES = (40, 1, 4)


def change_if_same(model: nn.Module, vocab_size: int, change: Callable[[], object], undo: Callable[[], object]) -> bool:
    """Calls `change`, and `undo` if the model's logits differ afterwards; whether the change stays."""
    before = _logits(model, vocab_size)
    change()
    if all(mx.array_equal(*pair).item() for pair in zip(before, _logits(model, vocab_size), strict=True)):
        return True
    undo()
    return False


def _logits(model: nn.Module, vocab_size: int) -> list[mx.array]:
    cache = make_prompt_cache(model)
    pieces = [[(7 * place + count) % vocab_size for place in range(count)] for count in _PIECES]
    logits = [model(mx.array([piece]), cache=cache) for piece in pieces]
    mx.eval(logits)
    return logits

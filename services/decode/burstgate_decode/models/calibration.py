"""Measures what a step costs here: forwards of every verify width, and drafting, at one context depth.

The table goes to the policy, whose depth controller and static gate price modes by it. Medians of a few
runs each; the whole measurement is bounded by a time budget, so that a slow machine starts all the same.
"""

import statistics
from collections.abc import Callable
from functools import partial

import mlx.core as mx

from burstgate_decode.drafters.base import DraftBatch, Drafter, Kept
from burstgate_decode.models.batch_cache import Cache, cache_arrays, cache_length, rewind
from burstgate_decode.models.target import Target
from burstgate_policy.core.types import CostCell

# Deep enough for a cache block, shallow enough to prefill at once.
_DEPTH_TOKENS = 64
_RUNS = 3
_BUDGET_MS = 5000.0


def measure_costs(
    target: Target, drafter: Drafter | None, draft_width: int, clock: Callable[[], float]
) -> tuple[CostCell, ...]:
    """Cells for widths 1 to `draft_width` of one sequence; fewer when the time budget ends."""
    start_ms = clock()
    tokens = [(7919 * (place + 1)) % target.vocab_size for place in range(_DEPTH_TOKENS + draft_width)]
    cache = target.make_cache()
    hidden = target.advance(mx.array([tokens[:_DEPTH_TOKENS]]), cache)
    mx.eval(cache_arrays(cache))
    state = drafter.open_batch() if drafter is not None and hidden is not None else None
    if state is not None:
        state.open()
    cells: list[CostCell] = []
    # The widest first: it compiles and allocates what the others need.
    for width in sorted({1, *range(2, draft_width + 1)}, key=lambda width: (width not in (1, draft_width), width)):
        if cells and clock() - start_ms > _BUDGET_MS:
            break
        verify_ms = _median_ms(partial(_verify, target, cache, tokens, width), clock)
        draft_ms = 0.0
        if state is not None and hidden is not None and width > 1:
            observed = mx.array([tokens[_DEPTH_TOKENS - 1 : _DEPTH_TOKENS]])
            draft_ms = _median_ms(partial(_draft, state, hidden[:, -1:], observed, width - 1), clock)
        cells.append(CostCell(1, width, _DEPTH_TOKENS, verify_ms, draft_ms))
    return tuple(sorted(cells, key=lambda cell: cell.draft_width))


def _verify(target: Target, cache: Cache, tokens: list[int], width: int) -> None:
    start = cache_length(cache)
    mx.eval(mx.argmax(target.forward(mx.array([tokens[start : start + width]]), cache).logits, axis=-1))
    rewind(cache, start)


def _draft(state: DraftBatch, hidden: mx.array, observed: mx.array, count: int) -> None:
    state.observe(hidden, observed, [Kept(slot=0, row=0, positions=1)])
    mx.eval(state.draft(1, count, _likeliest))


def _likeliest(logits: mx.array, ids: mx.array | None, _position: int) -> mx.array:
    column = mx.argmax(logits, axis=-1)
    return column if ids is None else ids[column]


def _median_ms(run: Callable[[], None], clock: Callable[[], float]) -> float:
    run()
    samples = []
    for _ in range(_RUNS):
        start_ms = clock()
        run()
        samples.append(clock() - start_ms)
    return statistics.median(samples)

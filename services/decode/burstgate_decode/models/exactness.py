"""Finds out at start whether a row's logits depend on what shares its forward.

Three comparisons, each bit for bit: a verify of several rows with one-row steps, a row in a batch of other
lengths with the same row alone, and a prompt read in pieces with the prompt read at once. Verifies follow others that
were kept whole and others that were not, and also run past every window that layers have. Equal bits mean that
neither speculation nor batching can change the text. Where they differ, the largest difference bounds how close
two scores must be for a choice to be in doubt.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from burstgate_decode.models.arrays import as_float
from burstgate_decode.models.batch_cache import BatchCache
from burstgate_decode.models.sequence_cache import SequenceCache
from burstgate_decode.models.target import Step, Target

# Prompts of different lengths, each followed by a walk of single steps: short, and past a few cache blocks.
_PROMPT_TOKENS = (5, 48)
_WALK_TOKENS = 8
# Reading a longer prompt than this would take too much of a start.
_LONGEST_WINDOW_TOKENS = 4096
_PREFILL_TOKENS = 512
# Lengths of the rows of a batch, in an order in which every batch holds a short row beside a long one.
_BATCH_TOKENS = (5, 96, 17, 48, 9, 33, 2, 64)
# A batch of four takes other kernels than one of eight on some backends.
_BATCH_ROWS = (4, 8)
# Uneven pieces, as chunks of prompts, plain steps and rounds cut what an answer becomes; the rest follows at once.
_PIECE_TOKENS = (41, 1, 7)
# A difference seen in few positions is no bound; doubt starts at this multiple of it.
_GUARD_FACTOR = 4.0


@dataclass(frozen=True)
class Exactness:
    """What the probe found."""

    bit_equal: bool
    """Whether a verify, alone or in a batch, gives the bits of one-row steps, and no window is left unseen."""
    positions: int
    max_logit_difference: float
    guard_margin: float
    """A verified choice whose margin is not above this is in doubt; 0 when bits are equal."""
    explanation: str
    batch_margin: float = 0.0
    """A choice of a plain step of several rows whose margin is not above this is in doubt; 0 when bits are equal."""
    any_cut: bool = False
    """Whether keys, values and logits are the same bits however tokens are cut into forwards, of one row or several."""


def probe_exactness(target: Target, draft_width: int, rows: int, chunk_tokens: int) -> Exactness:
    """Compares verifies of 2 to `draft_width` rows, batches of up to `rows` rows, and prompts in pieces with chunks of
    `chunk_tokens`.
    """
    windows = [window for window in target.windows if _WALK_TOKENS <= window < target.context_length]
    # So that the walk has steps before, at and after the window's end.
    before = [window - _WALK_TOKENS // 2 for window in windows if window <= _LONGEST_WINDOW_TOKENS]
    prompts = (*_PROMPT_TOKENS, *before) if draft_width > 1 else ()
    verify = [
        difference
        for draw, prompt_tokens in enumerate(prompts)
        for difference in _verify_differences(target, draft_width, draw, prompt_tokens)
    ]
    batch = list(_batch_differences(target, draft_width, rows)) if rows > 1 and target.shares_forwards else []
    pieces, entries_equal = _pieces_difference(target, chunk_tokens)
    worst_verify, worst_batch = max(verify, default=0.0), max(batch, default=0.0)
    findings = [_finding(f"{len(verify)} verify rows", "one-row steps", worst_verify)] if verify else []
    findings += [_finding(f"{len(batch)} rows of batches", "the same rows alone", worst_batch)] if batch else []
    findings.append(_finding("prompts in chunks", "prompts at once", pieces))
    unseen = [str(window) for window in windows if window > _LONGEST_WINDOW_TOKENS] if verify else []
    findings += [f"nothing is known beyond windows of {', '.join(unseen)} tokens"] if unseen else []
    worst = worst_verify + worst_batch
    return Exactness(
        bit_equal=worst == 0.0 and not unseen,
        positions=len(verify) + len(batch) + 1,
        max_logit_difference=worst,
        guard_margin=_GUARD_FACTOR * worst,
        explanation="; ".join(findings),
        batch_margin=_GUARD_FACTOR * worst_batch,
        any_cut=worst + pieces == 0.0 and entries_equal,
    )


def _finding(what: str, reference: str, difference: float) -> str:
    if difference == 0.0:
        return f"{what} equal {reference} bit for bit"
    return f"{what} differ from {reference} by up to {difference:.2g}"


def _batch_differences(target: Target, draft_width: int, rows: int) -> Iterator[float]:
    """Differences between rows in batches and alone, for plain steps, the widest verify and one of uneven rows."""
    lengths = _BATCH_TOKENS[:rows]
    cache = target.make_batch_cache()
    walks = []
    for row, length in enumerate(lengths):
        tokens = _tokens(target, draw=row, count=length + draft_width)
        _read_prompt(target, cache, tokens[:length])
        walks.append(tokens[length:])
    for width in sorted({1, draft_width}):
        alone = [_next_step(target, cache, [walk[:width]], row, lengths).logits[0] for row, walk in enumerate(walks)]
        for size in sorted({min(size, len(lengths)) for size in _BATCH_ROWS}):
            uneven = [[width - row % width for row in range(size)]] if target.packs_rows and width > 1 else []
            for widths in ([width] * size, *uneven):
                together = _next_step(target, cache, [walk[:width] for walk in walks[:size]], 0, lengths, widths)
                for row, counted in enumerate(widths):
                    for place in range(counted):
                        yield _difference(together.logits_of(row)[place], alone[row][place])


def _pieces_difference(target: Target, chunk_tokens: int) -> tuple[float, bool]:
    """Difference between the logits after a prompt read in pieces and a step, and after the same prompt read at once,
    and whether the caches hold the same bits then.
    """
    count = min(max(*_BATCH_TOKENS, chunk_tokens), target.context_length)
    tokens = _tokens(target, draw=len(_BATCH_TOKENS), count=count)
    whole, cut = target.make_batch_cache(), target.make_batch_cache()
    (at_once,) = whole.run(target.forward_last, mx.array([tokens]), whole.open())
    mx.eval(at_once.logits, whole.arrays())
    _read_prompt(target, cut, tokens[:-1], *_PIECE_TOKENS)
    stepped = _next_step(target, cut, [tokens[-1:]], 0, [len(tokens)]).logits
    held = zip(whole.arrays(), cut.arrays(), strict=True)
    entries_equal = all(bool(mx.array_equal(one, other).item()) for one, other in held)
    return _difference(stepped[0, 0], at_once.logits[0, 0]), entries_equal


def _read_prompt(target: Target, cache: BatchCache, tokens: Sequence[int], *pieces: int) -> None:
    """Runs a prompt in a new slot: pieces of so many tokens, and the rest at once."""
    slot = cache.open()
    ends = [*itertools.accumulate(pieces), len(tokens)]
    for start, end in itertools.pairwise([0, *ends]):
        cache.run(target.advance, mx.array([tokens[start:end]]), slot)
        mx.eval(cache.arrays())


def _next_step(
    target: Target,
    cache: BatchCache,
    tokens: list[list[int]],
    first: int,
    lengths: Sequence[int],
    widths: Sequence[int] | None = None,
) -> Step:
    """One forward, which leaves slots at `lengths`."""
    step = target.forward_rows(mx.array(tokens), cache, first, widths)
    mx.eval(step.logits, cache.arrays())
    for row in range(len(tokens)):
        cache.cut(first + row, lengths[first + row])
    return step


def _tokens(target: Target, draw: int, count: int) -> list[int]:
    return [(7919 * (place + 1) + 104_729 * draw) % target.vocab_size for place in range(count)]


def _verify_differences(target: Target, draft_width: int, draw: int, prompt_tokens: int) -> Iterator[float]:
    """Differences between rows of verifies and one-row steps, over walks of verifies of each width.

    As in a round, each verify starts from a mark, and every second one drops its last row again.
    """
    tokens = _tokens(target, draw, prompt_tokens + _WALK_TOKENS)
    sequence = SequenceCache(target.make_cache)
    for start in range(0, prompt_tokens, _PREFILL_TOKENS):
        sequence.run(target.advance, mx.array([tokens[start : min(start + _PREFILL_TOKENS, prompt_tokens)]]))
        mx.eval(sequence.arrays())
    prompt = sequence.mark()
    singles = [_logits(target, sequence, [token])[0] for token in tokens[prompt_tokens:]]
    for width in range(2, draft_width + 1):
        sequence.cut(prompt_tokens, prompt)
        dropped = 0
        while sequence.length + width <= len(tokens):
            start, mark = sequence.length, sequence.mark()
            rows = _logits(target, sequence, tokens[start : start + width])
            for place, row in enumerate(rows):
                yield _difference(row, singles[start - prompt_tokens + place])
            kept = start + width - dropped
            held = sequence.cut(kept, mark)
            if held < kept:
                sequence.run(target.advance, mx.array([tokens[held:kept]]))
            dropped = 1 - dropped


def _logits(target: Target, sequence: SequenceCache, tokens: list[int]) -> list[mx.array]:
    logits = sequence.run(target.forward, mx.array([tokens])).logits[0]
    mx.eval(logits, sequence.arrays())
    return [logits[row] for row in range(len(tokens))]


def _difference(row: mx.array, single: mx.array) -> float:
    if bool(mx.array_equal(row, single).item()):
        return 0.0
    # Rows may differ only where adding shows nothing, such as the sign of a zero.
    gap = as_float(mx.max(mx.abs(row.astype(mx.float32) - single.astype(mx.float32))))
    return max(gap, float(mx.finfo(row.dtype).eps))

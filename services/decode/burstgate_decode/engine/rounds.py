"""The steps of one row: a chunk of its prompt, a plain step, a draft-verify round.

A round drafts K - 1 tokens, verifies the newest token and the drafts in one forward, keeps the longest
prefix of drafts that equals the target's own choices plus one target token, and rewinds the cache to what
was kept. With a rule it may stop drafting earlier, or leave its last drafts unverified. A round is a
transaction: whatever is raised inside it, the cache ends equal to the committed tokens. K counts the rows of
the verify.
"""

from dataclasses import dataclass

import mlx.core as mx

from burstgate_decode.engine.draft_watch import DraftWatch
from burstgate_decode.engine.request import Clock
from burstgate_decode.engine.row import Flight, Row
from burstgate_decode.engine.stopping import StoppingRule
from burstgate_decode.models.arrays import as_int, floats, ints
from burstgate_decode.models.target import Target, cache_arrays, cache_length, rewind


@dataclass(frozen=True)
class StepResult:
    """What a step chose, before the row commits it. Times are host wall milliseconds."""

    tokens: list[int]
    drafted: list[bool]
    logits: mx.array
    draft_width: int = 1
    """Rows of the verify; 1 for a plain step."""
    probabilities: tuple[float, ...] = ()
    """The drafter's, of each draft; empty where it gives none."""
    proposed: int = 0
    """Drafts verified."""
    dropped: int = 0
    """Drafts made and not verified."""
    matched: int = 0
    """Drafts from the first on that the target chose itself; its last choice speaks for the first one dropped."""
    accepted: int = 0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    redecided: bool = False


def prefill_chunk(target: Target, row: Row, chunk_tokens: int) -> None:
    """Runs the next piece of the row's prompt; its last token is left for the first step."""
    start = row.prefilled
    end = start + min(chunk_tokens, row.prefill_left)
    prompt = row.request.prompt
    hidden = target.advance(mx.array([prompt[start:end]]), row.cache)
    if row.draft is not None and hidden is not None:
        row.draft.observe(hidden, mx.array([prompt[start + 1 : end + 1]]))
        mx.eval(cache_arrays(row.cache), hidden)
    else:
        mx.eval(cache_arrays(row.cache))
    row.prefilled = end


def plain_step(target: Target, row: Row, look_ahead: bool, clock: Clock) -> StepResult:
    """Chooses one token from a one-row forward.

    With `look_ahead` the next plain step is issued before this one's token is read, so that building it
    overlaps with computing this one.
    """
    start_ms = clock()
    flight = row.flight or _issue(target, row, mx.array(row.tokens[-1:]), len(row.tokens), None)
    newest = flight.choice.tokens
    row.flight = _issue(target, row, newest, len(row.tokens) + 1, newest) if look_ahead else None
    token = as_int(newest)
    if row.draft is not None and flight.hidden is not None:
        row.draft.observe(flight.hidden, newest[None])
    return StepResult([token], [False], flight.choice.logits, verify_ms=clock() - start_ms)


def draft_verify_round(
    target: Target, row: Row, draft_width: int, guard_margin: float, clock: Clock, rule: StoppingRule | None = None
) -> StepResult:
    """Runs one round of `draft_width` rows (2 or more), or with a `rule` of as many as it finds worth it.

    A choice whose margin is not above `guard_margin` is not trusted: the round keeps what lies before it
    (perhaps nothing) and asks for a one-row step to decide that position.
    """
    if row.draft is None or row.flight is not None:
        raise RuntimeError("a round needs a drafter and no step in flight")
    start_ms = clock()
    position = len(row.tokens)
    committed = cache_length(row.cache)
    kept = 0
    try:
        watch = DraftWatch(row.chooser.pick, rule)
        made = row.draft.draft(draft_width - 1, position, watch.pick, watch.goes_on)
        drafts = made[: watch.worth_verifying(made.shape[0])]
        mx.async_eval(drafts)
        step = target.forward(mx.concatenate([mx.array(row.tokens[-1:]), drafts])[None], row.cache)
        history = mx.concatenate([mx.array(row.tokens), drafts]) if row.chooser.reads_history else None
        choice = row.chooser.choose(step.logits[0], position, history, margins=guard_margin > 0.0)
        mx.eval(drafts)
        drafted_ms = clock()
        chosen = ints(choice.tokens)
        verified_ms = clock()
        matched = _matching_prefix(ints(made), chosen)
        accepted = min(matched, drafts.shape[0])
        probabilities = watch.probabilities()
        kept = _trusted(choice.margins, guard_margin, accepted + 1)
        tokens = chosen[:kept]
        if kept and step.hidden is not None:
            row.draft.observe(step.hidden[:, :kept], mx.array([tokens]))
    finally:
        rewind(row.cache, committed + kept)
    return StepResult(
        tokens,
        [place < accepted for place in range(kept)],
        choice.logits,
        draft_width=drafts.shape[0] + 1,
        probabilities=tuple(probabilities),
        proposed=drafts.shape[0],
        dropped=made.shape[0] - drafts.shape[0],
        matched=matched,
        accepted=min(accepted, kept),
        draft_ms=drafted_ms - start_ms,
        verify_ms=verified_ms - drafted_ms,
        redecided=kept <= accepted,
    )


def _issue(target: Target, row: Row, newest: mx.array, position: int, in_flight: mx.array | None) -> Flight:
    step = target.forward(newest[None], row.cache)
    history = None
    if row.chooser.reads_history:
        history = mx.array(row.tokens)
        history = history if in_flight is None else mx.concatenate([history, in_flight])
    choice = row.chooser.choose(step.logits[0], position, history, margins=False)
    mx.async_eval(choice.tokens)
    return Flight(choice, step.hidden)


def _matching_prefix(drafts: list[int], chosen: list[int]) -> int:
    count = 0
    while count < min(len(drafts), len(chosen)) and drafts[count] == chosen[count]:
        count += 1
    return count


def _trusted(margins: mx.array | None, guard_margin: float, count: int) -> int:
    """How many of the first `count` choices come before the first one inside the guard margin."""
    if margins is None:
        return count
    values = floats(margins)
    for place in range(count):
        if values[place] <= guard_margin:
            return place
    return count

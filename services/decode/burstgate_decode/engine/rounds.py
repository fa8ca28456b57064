"""The forwards of a batch: a chunk of one prompt, a plain step of all rows, a draft-verify round of all rows.

A round drafts K - 1 tokens, verifies the newest token and the drafts in one forward, keeps the longest
prefix of drafts that equals the target's own choices plus one target token, and cuts the cache to what
was kept. With a rule it may stop drafting earlier for all rows at once, or leave a row's last drafts unverified. K
counts the rows of the verify. Every row of a batch has a K of its own: one that may not draft, or fewer tokens
than its neighbours, rides along; what lies behind its own K is left out, or else cut off unread.
A step is a transaction: whatever is raised inside it, the caches end equal to the committed tokens. A round marks them
first; a plain step does not, since a live copy would make caches that write in place copy themselves at every step,
so that one that raises may leave rows to be read again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import mlx.core as mx

from burstgate_decode.engine.batch import Batch, Flight, slot_of
from burstgate_decode.engine.choosing import Place, choose_rows, pick_rows
from burstgate_decode.engine.draft_watch import DraftWatch
from burstgate_decode.engine.request import Clock, Divergence
from burstgate_decode.engine.row import Row
from burstgate_decode.engine.stopping import StoppingRule
from burstgate_decode.models.arrays import as_int, float_rows, int_rows


@dataclass(frozen=True)
class RowResult:
    """What a step chose for one row, before the row commits it."""

    row: Row
    tokens: list[int]
    drafted: list[bool]
    logits: mx.array | None
    """Processed logits of the tokens, `[L, V]`, if the row reports log-probabilities."""
    draft_width: int = 1
    accepted: int = 0
    doubted: tuple[int, float] | None = None
    """The choice behind `tokens` that a one-row step has to decide again, or has decided again, and its margin."""
    divergence: Divergence | None = None
    """What came of that, if it was another token."""
    dropped: int = 0
    """Drafts made and not verified."""
    saved: int = 0
    """Drafts not made, of those that the row's width allowed."""
    matched: int = 0
    """Drafts from the first on that the target chose itself; its last choice speaks for the first one dropped."""
    probabilities: tuple[float, ...] = ()
    """The drafter's, of each draft; empty where it gives none."""


@dataclass(frozen=True)
class StepResult:
    """One step of the batch. Times are host wall milliseconds."""

    rows: list[RowResult]
    draft_ms: float
    verify_ms: float
    borrowed_ms: float = 0.0
    """What issuing this step took during the one before, less what issuing the next took during this one. With it,
    the time between begin and end is what this step costs, also as the first or last of a few."""


def prefill_chunk(batch: Batch, row: Row, chunk_tokens: int) -> None:
    """Runs the next piece of a row's prompt; its last token is left for the first step."""
    start = row.prefilled
    end = start + min(chunk_tokens, row.prefill_left)
    prompt = row.request.prompt
    row.chunk_tokens = chunk_tokens
    (hidden,) = batch.cache.run(batch.target.advance, mx.array([prompt[start:end]]), slot_of(row))
    batch.observe([row], hidden, mx.array([prompt[start + 1 : end + 1]]), [end - start])
    mx.eval(batch.cache.arrays(), hidden if hidden is not None else [])
    row.prefilled = end


def prefill_end(batch: Batch, row: Row, chunk_tokens: int) -> None:
    """Runs what is left of a row's prompt with its last token, and leaves the first token as the step in flight.

    Only where no row decodes, and where it does not matter how tokens are cut into forwards: it saves the first step.
    """
    start = row.prefilled
    prompt = row.request.prompt
    row.chunk_tokens = chunk_tokens
    tokens = mx.array([prompt[start:]], mx.uint32)
    (step,) = batch.cache.run(batch.target.forward_last, tokens, slot_of(row))
    place = Place(row, len(row.tokens), 1, partial(_history, row, tokens, 0, 0))
    choice = choose_rows([place], step, margins=False)
    # Before the drafter follows, so that the first token does not wait for it.
    mx.async_eval(choice.tokens)
    batch.observe([row], step.hidden, tokens[:, 1:], [tokens.shape[1] - 1])
    mx.eval(choice.tokens, batch.cache.arrays())
    row.prefilled = len(prompt) - 1
    newest = None if step.hidden is None else step.hidden[:, -1:]
    batch.flight = Flight((row,), choice, newest, issue_ms=0.0, landed=True)


def plain_step(batch: Batch, look_ahead: bool, guard_margin: float, clock: Clock) -> StepResult:
    """Chooses one token for every decoding row.

    With `look_ahead` the next plain step is issued before this one's tokens are read, so that building it
    overlaps with computing this one. A row that joined while a step was in flight is first part of the next
    one. `guard_margin`: a choice whose margin is not above it is left to a forward of that row alone, which takes the
    row out of the next step; 0 trusts every choice.
    """
    start_ms = clock()
    with batch.undone_on_error():
        borrowed_ms = batch.flight.issue_ms if batch.flight is not None else 0.0
        flight = batch.flight or _issue(batch, None, guard_margin, clock)
        batch.flight = _issue(batch, flight, guard_margin, clock) if look_ahead else None
        chosen = int_rows(flight.choice.tokens)
        margins = float_rows(flight.choice.margins) if flight.choice.margins is not None else None
        kept = [1 if margins is None else _trusted(margins[at], guard_margin, 1) for at in range(len(flight.rows))]
        if batch.flight is not None and not all(kept):
            # The next step took in choices that are not trusted.
            batch.flight = batch.flight.without(
                [row for row, count in zip(flight.rows, kept, strict=True) if not count]
            )
        if batch.flight is not None:
            # A step that nobody is left of was issued in vain, at this one's cost.
            borrowed_ms -= batch.flight.issue_ms
        results = [
            RowResult(
                row, chosen[at][: kept[at]], [False] * kept[at], flight.choice.logits[at],
                doubted=_doubted(chosen[at], margins, at, kept[at], 1),
            )
            for at, row in enumerate(flight.rows)
            if row.slot is not None
        ]  # fmt: skip
        results = _finished(batch, results, flight.rows, flight.hidden, flight.choice.tokens, kept)
    return StepResult(results, 0.0, clock() - start_ms + borrowed_ms, borrowed_ms)


def draft_verify_round(
    batch: Batch,
    widths: Sequence[int],
    guard_margin: float,
    clock: Clock,
    rule: StoppingRule | None = None,
    next_is_plain: Callable[[], bool] = lambda: False,
) -> StepResult:
    """Runs one round in which decoding row i has `widths[i]` rows of the verify: 1 or more, and some 2 or more.

    With a `rule` these are the most that a row may have, and as many run as the rule finds worth it.
    A choice whose margin is not above `guard_margin` is not trusted: the row keeps what lies before it (perhaps
    nothing), and a one-row forward decides that position. Unless `next_is_plain`, asked while the verify computes, the
    drafter begins the next round before this one is read.
    """
    if batch.drafts is None or batch.flight is not None:
        raise RuntimeError("a round needs a drafter and no step in flight")
    start_ms = clock()
    rows = batch.decoding
    with batch.undone_on_error():
        for row in rows:
            # Runs what a step that raised left the row without.
            batch.cut(row)
        batch.cache.mark(len(rows))
        watch = DraftWatch(partial(pick_rows, rows), rule)
        made = batch.drafts.draft(len(rows), max(widths) - 1, watch.pick, watch.goes_on)
        verified = [1 + drafts for drafts in watch.worth_verifying([min(width - 1, made.shape[1]) for width in widths])]
        drafts = made[:, : max(verified) - 1]
        mx.eval(made)
        drafted_ms = clock()
        inputs = mx.concatenate([_newest(rows), drafts], axis=1)
        step = batch.target.forward_rows(inputs, batch.cache, 0, verified)
        places = [
            Place(row, len(row.tokens), width, partial(_history, row, drafts, at, width - 1))
            for at, (row, width) in enumerate(zip(rows, verified, strict=True))
        ]
        choice = choose_rows(places, step, margins=guard_margin > 0.0)
        mx.async_eval(choice.tokens)
        if not next_is_plain():
            batch.draft_ahead(step.hidden, choice.tokens, _last_kept(drafts, choice.tokens, verified))
        chosen, drafted = int_rows(choice.tokens), int_rows(made)
        probabilities = watch.probabilities(len(rows))
        margins = float_rows(choice.margins) if choice.margins is not None else None
        results: list[RowResult] = []
        for at, (row, allowed, width) in enumerate(zip(rows, widths, verified, strict=True)):
            own = min(made.shape[1], allowed - 1)
            matched = _matching_prefix(drafted[at][:own], chosen[at][:width])
            accepted = min(matched, width - 1)
            kept = accepted + 1 if margins is None else _trusted(margins[at], guard_margin, accepted + 1)
            batch.cut(row, chosen[at][:kept])
            flags = [place < accepted for place in range(kept)]
            results.append(
                RowResult(
                    row, chosen[at][:kept], flags, choice.logits[at], width, min(accepted, kept),
                    dropped=own - (width - 1), saved=allowed - 1 - own, matched=matched,
                    probabilities=tuple(probabilities[at][:own]),
                    doubted=_doubted(chosen[at], margins, at, kept, accepted + 1),
                )
            )  # fmt: skip
        counts = [len(result.tokens) for result in results]
        results = _finished(batch, results, rows, step.hidden, choice.tokens, counts)
    return StepResult(results, drafted_ms - start_ms, clock() - drafted_ms)


def step_alone(batch: Batch, row: Row) -> RowResult:
    """A plain step of one row by itself, with no step in flight."""
    decision = _decide_alone(batch, row, [])
    batch.observe([row], decision.hidden, decision.token[None], [1])
    return RowResult(row, [as_int(decision.token)], [False], decision.logits)


@dataclass(frozen=True)
class _Decision:
    """A token `[1]` that a one-row forward chose, the logits `[1, V]` it chose from and the hidden state."""

    token: mx.array
    logits: mx.array
    hidden: mx.array | None


def _decide_alone(batch: Batch, row: Row, kept: Sequence[int]) -> _Decision:
    """Chooses a row's token behind its committed ones and `kept` by a forward of one row and one token."""
    tokens = [*row.tokens, *kept]
    batch.cut(row, kept)
    step = batch.target.forward_rows(mx.array([tokens[-1:]]), batch.cache, slot_of(row))
    history = mx.array(tokens) if row.chooser.reads_history else None
    choice = row.chooser.choose(step.logits[0], len(tokens), history, margins=False)
    mx.eval(choice.tokens)
    return _Decision(choice.tokens, choice.logits, step.hidden)


def _finished(
    batch: Batch,
    results: Sequence[RowResult],
    rows: Sequence[Row],
    hidden: mx.array | None,
    tokens: mx.array,
    counts: Sequence[int],
) -> list[RowResult]:
    """Decides what was not trusted, and tells the drafter what `rows` kept of the forward and of that."""
    decisions = {
        at: _decide_alone(batch, result.row, result.tokens)
        for at, result in enumerate(results)
        if result.doubted is not None
    }
    batch.observe(rows, hidden, tokens, counts)
    finished = list(results)
    for at, decision in decisions.items():
        result = results[at]
        batch.observe([result.row], decision.hidden, decision.token[None], [1])
        known = (
            None if result.logits is None else mx.concatenate([result.logits[: len(result.tokens)], decision.logits])
        )
        token = as_int(decision.token)
        finished[at] = replace(
            result,
            tokens=[*result.tokens, token],
            drafted=[*result.drafted, False],
            logits=known,
            divergence=_divergence(result, token),
        )
    return finished


def _divergence(result: RowResult, token: int) -> Divergence | None:
    if result.doubted is None or result.doubted[0] == token:
        return None
    shared, margin = result.doubted
    return Divergence(result.row.emitted + len(result.tokens), shared, token, margin)


def _issue(batch: Batch, flight: Flight | None, guard_margin: float, clock: Clock) -> Flight:
    """Issues a plain step of all decoding rows, behind the tokens that `flight` is choosing."""
    start_ms, rows = clock(), batch.decoding
    aloft = {} if flight is None else {id(row): at for at, row in enumerate(flight.rows)}
    sources = [aloft.get(id(row)) for row in rows]
    for row, source in zip(rows, sources, strict=True):
        if source is None:
            # Runs what a step that raised left the row without.
            batch.cut(row)
    if flight is None:
        newest = _newest(rows)
    elif sources == list(range(len(flight.rows))):
        newest = flight.choice.tokens
    else:
        tokens = flight.choice.tokens
        newest = mx.concatenate(
            [_newest([row]) if at is None else tokens[at : at + 1] for row, at in zip(rows, sources, strict=True)]
        )
    step = batch.target.forward_rows(newest, batch.cache, 0)
    places = [
        Place(
            row, len(row.tokens) + (source is not None), 1, partial(_history, row, newest, at, int(source is not None))
        )
        for at, (row, source) in enumerate(zip(rows, sources, strict=True))
    ]
    choice = choose_rows(places, step, margins=guard_margin > 0.0 and len(rows) > 1)
    mx.async_eval(choice.tokens)
    return Flight(tuple(rows), choice, step.hidden, clock() - start_ms)


def _newest(rows: Sequence[Row]) -> mx.array:
    """The rows' newest committed tokens, `[B, 1]`."""
    return mx.array([row.tokens[-1:] for row in rows], mx.uint32)


def _history(row: Row, more: mx.array, at: int, count: int) -> mx.array:
    """The row's tokens and the first `count` of row `at` of `more [B, L]`."""
    tokens = mx.array(row.tokens, more.dtype)
    return mx.concatenate([tokens, more[at, :count]]) if count else tokens


def _matching_prefix(drafts: Sequence[int], chosen: Sequence[int]) -> int:
    count = 0
    while count < min(len(drafts), len(chosen)) and drafts[count] == chosen[count]:
        count += 1
    return count


def _last_kept(drafts: mx.array, chosen: mx.array, verified: list[int]) -> mx.array:
    """The place of each row's last position that a round keeps if every choice is trusted, `[B]`. Lazy.

    `drafts [B, L - 1]` stand behind the newest token, `chosen [B, L]` behind each position. The same as
    `_matching_prefix` of the drafts that were verified.
    """
    count = drafts.shape[1]
    verifies = mx.arange(count) < mx.array(verified)[:, None] - 1
    agrees = (drafts == chosen[:, :count]) & verifies
    return mx.cumprod(agrees.astype(mx.int32), axis=1).sum(axis=1)


def _trusted(margins: Sequence[float], guard_margin: float, count: int) -> int:
    """How many of the first `count` choices come before the first one inside the guard margin."""
    for place in range(count):
        if margins[place] <= guard_margin:
            return place
    return count


def _doubted(
    chosen: Sequence[int], margins: Sequence[Sequence[float]] | None, at: int, kept: int, count: int
) -> tuple[int, float] | None:
    """The first of row `at`'s first `count` choices that is not trusted, and its margin; `kept` lie before it."""
    return None if margins is None or kept == count else (chosen[kept], margins[at][kept])

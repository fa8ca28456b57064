"""Rounds of the real pair that stop early: the same text, fewer drafts, and nothing left behind."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from tests.unit.decode.conftest import WIDEST, RowDriver, clock_ms

from burstgate_decode.engine.bursts import BurstRunner
from burstgate_decode.engine.draft_watch import probability_of
from burstgate_decode.engine.request import AnswerRequest, Delta, SamplingParams, SpeculationChoice
from burstgate_decode.engine.rounds import draft_verify_round
from burstgate_decode.engine.row import Row
from burstgate_decode.engine.stepper import Stepper
from burstgate_decode.engine.stopping import Stopping, StoppingRule
from burstgate_decode.models.arrays import floats
from burstgate_decode.models.target import cache_length
from burstgate_policy.core.types import CostCell, Grant, Mode, Reason, Situation, StepRecord

Ask = Callable[..., AnswerRequest]

# Of a two-core machine. The tests must not depend on what rounds cost here, so every drafter state gets these.
COSTS = [CostCell(1, width, 64, 64.0 + 2.0 * width, 3.4 * (width - 1)) for width in range(1, WIDEST + 1)]
QUESTIONS = ["Count from 1 to 20, one number per line.", "Explain how rivers form."]


@pytest.fixture
def stops(rows: RowDriver) -> RowDriver:
    """Rows whose rounds may stop early."""
    rows.stopping = Stopping(COSTS, WIDEST)
    return rows


def _plain(_step: int) -> int:
    return 1


class _Scripted(StoppingRule):
    """Makes `drafts` drafts and verifies `verified` of them, whatever they are."""

    def __init__(self, drafts: int, verified: int) -> None:
        self.asked: list[float] = []
        self._drafts = drafts
        self._verified = verified

    def goes_on(self, probabilities: Any) -> bool:
        self.asked += probabilities
        return len(self.asked) < self._drafts

    def worth_verifying(self) -> int:
        return self._verified


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("cap", [2, 4, 8])
def test_stopping_early_changes_no_token(stops: RowDriver, ask: Ask, question: str, cap: int) -> None:
    request = ask(question)
    stopped = stops.run(request, lambda _step: cap)
    stops.stopping = None
    assert stopped.answer == stops.run(request, _plain).answer
    assert stopped.answer == stops.run(request, lambda _step: cap).answer


@pytest.mark.parametrize("temperature", [0.7, 1.2])
def test_stopping_early_changes_no_drawn_token(stops: RowDriver, ask: Ask, temperature: float) -> None:
    request = ask("Tell me about the sea.", sampling=SamplingParams(temperature=temperature, top_p=0.95, seed=3))
    stopped = stops.run(request, lambda _step: WIDEST)
    stops.stopping = None
    assert stopped.answer == stops.run(request, _plain).answer


def test_any_number_of_drafts_made_and_verified_gives_the_tokens_of_plain_steps(rows: RowDriver, ask: Ask) -> None:
    request = ask(QUESTIONS[0])
    plain = rows.run(request, _plain).answer
    driven = rows.open(request)
    shapes = [(drafts, verified) for drafts in (1, 2, 4, 7) for verified in range(1, drafts + 1)]
    got: list[int] = []
    for drafts, verified in shapes:
        result = draft_verify_round(rows.target, driven.row, WIDEST, 0.0, lambda: 0.0, _Scripted(drafts, verified))
        assert (result.draft_width, result.proposed, result.dropped) == (verified + 1, verified, drafts - verified)
        assert len(result.probabilities) == drafts
        assert result.accepted <= verified
        driven.row.tokens += result.tokens
        got += result.tokens
        assert cache_length(driven.row.cache) == len(driven.row.tokens) - 1
    assert got[:40] == plain[: len(got)]


def test_a_list_is_drafted_further_than_prose_and_fewer_drafts_are_wasted(stops: RowDriver, ask: Ask) -> None:
    listed = stops.run(ask("Count from 1 to 40, one number per line.", max_tokens=60), lambda _step: WIDEST)
    told = stops.run(ask("Explain how rivers form.", max_tokens=60), lambda _step: WIDEST)
    means = [
        sum(width * rounds for width, rounds in one.row.stats.rounds_by_draft_width.items()) / one.row.stats.rounds
        for one in (listed, told)
    ]
    assert means[0] > means[1] + 1
    stats = told.row.stats
    assert stats.stopped_early > 0
    assert stats.saved > 0
    assert stats.proposed + stats.dropped + stats.saved <= (WIDEST - 1) * stats.rounds
    stops.stopping = None
    whole = stops.run(ask("Explain how rivers form.", max_tokens=60), lambda _step: WIDEST).row.stats
    assert stats.accepted / (stats.proposed + stats.dropped) > 1.3 * whole.accepted / whole.proposed
    assert (whole.stopped_early, whole.saved, whole.dropped) == (0, 0, 0)


def test_a_delta_says_how_wide_its_verify_was(stops: RowDriver, ask: Ask) -> None:
    driven = stops.open(ask("Explain how rivers form."))
    while not driven.row.finished:
        result = stops.step(driven, WIDEST)
        deltas = [event for event in driven.events if isinstance(event, Delta)]
        assert deltas[-1].draft_width == result.draft_width
    assert len({delta.draft_width for delta in deltas}) > 1


@pytest.mark.parametrize("reason", [Reason.PROFILING_SPECULATIVE, Reason.RECHALLENGE])
def test_a_round_that_measures_a_width_runs_all_of_it(stops: RowDriver, ask: Ask, reason: Reason) -> None:
    driven = stops.open(ask("Explain how rivers form.", max_tokens=60))
    widths = {stops.step(driven, 6, reason=reason).draft_width for _ in range(8)}
    assert widths == {6}


def test_a_request_that_fixes_a_width_gets_it_and_one_that_does_not_stops_early(stops: RowDriver, ask: Ask) -> None:
    request = ask("Explain how rivers form.", max_tokens=60, speculation=SpeculationChoice.ON)
    fixed = stops.open(replace(request, max_draft_width=6))
    free = stops.open(request)
    capped = stops.open(replace(request, speculation=SpeculationChoice.AUTO, max_draft_width=6))
    widths = [
        {stops.step(driven, WIDEST, reason=Reason.REQUEST_ON).draft_width for _ in range(8)}
        for driven in (fixed, free, capped)
    ]
    assert widths[0] == {6}
    assert len(widths[1]) > 1
    assert len(widths[2]) > 1
    assert max(widths[2]) <= 6


class _Recorder:
    """Grants rounds of one width and keeps what they measured."""

    def __init__(self, draft_width: int) -> None:
        self.steps: list[StepRecord] = []
        self._draft_width = draft_width

    def prefetch(self, situation: Situation) -> None:
        """Nothing to prepare."""

    def upcoming(self, wait_ms: float) -> Grant | None:
        return None

    def next(self, situation: Situation) -> Grant:
        return Grant(Mode.SPECULATIVE, self._draft_width, 8, Reason.GATE_SPECULATIVE, "granted")

    def report(self, step: StepRecord) -> None:
        self.steps.append(step)

    def idle(self) -> None:
        """Nothing to hand over."""


def test_the_record_of_a_step_has_the_width_that_ran_and_every_draft_that_was_made(stops: RowDriver, ask: Ask) -> None:
    driven = stops.open(ask("Explain how rivers form.", max_tokens=60))
    recorder = _Recorder(4)

    def raised(_row: Row, error: Exception) -> None:
        raise error

    stepper = Stepper(stops.target, stops.drafter, 0.0, WIDEST, clock_ms, stops.stopping)
    runner = BurstRunner(recorder, stepper, raised, clock_ms)
    while not driven.row.finished:
        runner.step([driven.row])
    deltas = [event for event in driven.events if isinstance(event, Delta)]
    assert [step.draft_width for step in recorder.steps] == [delta.draft_width for delta in deltas]
    assert [step.emitted for step in recorder.steps] == [len(delta.token_ids) for delta in deltas]
    rounds = [step for step in recorder.steps if step.draft_width > 1]
    stats = driven.row.stats
    assert sum(step.proposed for step in rounds) == stats.proposed + stats.dropped
    assert all(len(step.accepted_by_position) <= step.draft_width - 1 <= step.proposed for step in rounds)
    # The granted width bounds no round that decides for itself.
    assert {step.draft_width for step in rounds} - {2, 3, 4}


def test_the_probability_is_that_of_the_picked_token_under_the_drafters_softmax() -> None:
    logits = mx.array([[0.0, 2.0, 1.0, -1.0], [3.0, 0.0, 0.0, 0.0]])
    ids = mx.array([7, 3, 9, 11])
    expected = mx.softmax(logits, axis=-1)
    assert floats(probability_of(logits, ids, mx.array([9, 7]))) == pytest.approx(
        [expected[0, 2].item(), expected[1, 0].item()]
    )
    assert floats(probability_of(logits, None, mx.array([1, 3]))) == pytest.approx(
        [expected[0, 1].item(), expected[1, 3].item()]
    )


def test_a_round_that_reads_as_it_goes_drafts_what_a_whole_round_drafts(rows: RowDriver, ask: Ask) -> None:
    request = ask(QUESTIONS[1])
    results = []
    for rule in (None, _Scripted(5, 5)):
        driven = rows.open(request)
        rows.step(driven, 1)
        results.append(draft_verify_round(rows.target, driven.row, 6, 0.0, lambda: 0.0, rule))
    whole, watched = results
    assert len(whole.probabilities) == 5
    assert whole.probabilities == pytest.approx(watched.probabilities)
    assert (whole.tokens, whole.matched) == (watched.tokens, watched.matched)


@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_rule_that_raises_leaves_row_and_drafter_as_committed(rows: RowDriver, ask: Ask, at: int) -> None:
    class Broken(_Scripted):
        def goes_on(self, probabilities: Any) -> bool:
            super().goes_on(probabilities)
            if len(self.asked) == at:
                raise MemoryError("no memory for the next draft")
            return True

    request = ask(QUESTIONS[0])
    driven, untouched = rows.open(request), rows.open(request)
    for one in (driven, untouched):
        rows.step(one, 4)
    tokens, length = list(driven.row.tokens), cache_length(driven.row.cache)
    with pytest.raises(MemoryError):
        draft_verify_round(rows.target, driven.row, WIDEST, 0.0, lambda: 0.0, Broken(7, 7))
    assert (driven.row.tokens, cache_length(driven.row.cache)) == (tokens, length)
    # The step that follows drafts from the committed tokens alone, as if nothing had happened.
    for one in (driven, untouched):
        rows.step(one, 1)
    drafted, expected = (rows.step(one, 6) for one in (driven, untouched))
    assert drafted.probabilities == pytest.approx(expected.probabilities)
    assert drafted.tokens == expected.tokens
    while not driven.row.finished:
        rows.step(driven, 5)
    assert driven.answer == rows.run(request, _plain).answer


def test_guarded_rounds_that_stop_early_choose_the_tokens_of_plain_steps(stops: RowDriver, ask: Ask) -> None:
    request = ask("Write a haiku about the sea.", max_tokens=30)
    driven = stops.open(request)
    while not driven.row.finished:
        stops.step(driven, 6, guard_margin=0.5)
    stops.stopping = None
    assert driven.answer == stops.run(request, _plain).answer

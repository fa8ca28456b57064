"""Rounds of the real pair that stop early: the same text, fewer drafts, and nothing left behind."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import mlx.core as mx
import pytest
from tests.unit.decode.conftest import WIDEST, BatchDriver, Driven

from burstgate_decode.engine.bursts import BurstRunner, situation_of
from burstgate_decode.engine.draft_watch import probability_of
from burstgate_decode.engine.request import AnswerRequest, Delta, SamplingParams, SpeculationChoice
from burstgate_decode.engine.rounds import RowResult, draft_verify_round
from burstgate_decode.engine.stepper import GuardMargins
from burstgate_decode.engine.stopping import Stopping, StoppingRule
from burstgate_decode.models.arrays import floats
from burstgate_policy.core.types import CostCell, Grant, Mode, Reason, Situation, StepRecord

Ask = Callable[..., AnswerRequest]

# Of a two-core machine. What is tested must not depend on what rounds cost here.
COSTS = [CostCell(1, width, 64, 64.0 + 2.0 * width, 3.4 * (width - 1)) for width in range(1, WIDEST + 1)]
LIST, PROSE = "Count from 1 to 20, one number per line.", "Explain how rivers form."


@pytest.fixture
def stops(rows: BatchDriver) -> BatchDriver:
    """Rows whose rounds may stop early."""
    rows.stopping = Stopping(COSTS, WIDEST)
    # Rounds that take no time teach no price, so that a busy machine changes nothing.
    rows.clock = lambda: 0.0
    return rows


def _plain(_step: int) -> int:
    return 1


class _Scripted(StoppingRule):
    """Makes `drafts` drafts and verifies `verified` of them, whatever they are; raises at draft `broken_at`."""

    def __init__(self, drafts: int, verified: int, broken_at: int = 0) -> None:
        self.asked: list[Sequence[float]] = []
        self._drafts = drafts
        self._verified = verified
        self._broken_at = broken_at

    def goes_on(self, probabilities: Sequence[float]) -> bool:
        self.asked.append(probabilities)
        if len(self.asked) == self._broken_at:
            raise MemoryError("no memory for the next draft")
        return len(self.asked) < self._drafts

    def worth_verifying(self) -> list[int]:
        return [self._verified] * len(self.asked[-1])


def _round(rows: BatchDriver, width: int, rule: StoppingRule | None, guard: float = 0.0) -> list[RowResult]:
    """A round of all rows, which nobody commits."""
    return draft_verify_round(rows.batch, [width] * len(rows.batch.decoding), guard, lambda: 0.0, rule).rows


@pytest.mark.parametrize("question", [LIST, PROSE])
@pytest.mark.parametrize("cap", [2, 4, 8])
def test_stopping_early_changes_no_token(stops: BatchDriver, ask: Ask, question: str, cap: int) -> None:
    request = ask(question, max_draft_width=cap)
    stopped = stops.run(request, lambda _step: cap)
    stops.stopping = None
    assert stopped.answer == stops.run(request, _plain).answer
    assert stopped.answer == stops.run(request, lambda _step: cap).answer


@pytest.mark.parametrize("temperature", [0.7, 1.2])
def test_stopping_early_changes_no_drawn_token(stops: BatchDriver, ask: Ask, temperature: float) -> None:
    request = ask("Tell me about the sea.", sampling=SamplingParams(temperature=temperature, top_p=0.95, seed=3))
    stopped = stops.run(request, lambda _step: 4)
    stops.stopping = None
    assert stopped.answer == stops.run(request, _plain).answer


@pytest.mark.parametrize("apart", [False, True])
def test_rows_that_stop_together_give_what_each_gives_alone(stops: BatchDriver, ask: Ask, apart: bool) -> None:
    stops.stopping = Stopping(COSTS, WIDEST, apart=apart)
    requests = [
        ask(LIST),
        ask(PROSE),
        ask("Name three colours.", max_draft_width=3),
        ask("Tell me about the sea.", sampling=SamplingParams(temperature=0.8, seed=3)),
        ask("What is ice?", speculation=SpeculationChoice.OFF),
    ]
    together = [stops.open(request) for request in requests]
    uneven = False
    while any(not one.row.finished for one in together):
        done = stops.step(
            {id(one.row): 1 if one.row.request.speculation is SpeculationChoice.OFF else 4 for one in together}
        )
        # Of rows that may have the same, by what that is.
        widths: dict[int, set[int]] = {}
        for one in done.rows:
            widths.setdefault(one.draft_width + one.dropped + one.saved, set()).add(one.draft_width)
        uneven = uneven or any(len(own) > 1 for own in widths.values())
    assert uneven == apart
    stops.stopping = None
    for request, one in zip(requests, together, strict=True):
        assert one.answer == stops.run(request, _plain).answer
    assert max(together[2].row.stats.rounds_by_draft_width) <= 3
    assert together[4].row.stats.rounds == 0
    assert sum(one.row.stats.stopped_early for one in together) > 0


def test_any_number_of_drafts_made_and_verified_gives_the_tokens_of_plain_steps(rows: BatchDriver, ask: Ask) -> None:
    plain = rows.run(ask(LIST), _plain).answer
    driven = rows.open(ask(LIST))
    shapes = [(drafts, verified) for drafts in (1, 2, 4, 7) for verified in range(1, drafts + 1)]
    for drafts, verified in shapes[:9]:
        (result,) = _round(rows, WIDEST, _Scripted(drafts, verified))
        assert (result.draft_width, result.dropped) == (verified + 1, drafts - verified)
        assert result.saved == WIDEST - 1 - drafts
        assert len(result.probabilities) == drafts
        assert result.accepted == min(result.matched, verified)
        driven.row.tokens += result.tokens
        assert list(rows.batch.cache.lengths) == [len(driven.row.tokens) - 1]
    assert driven.answer[: len(plain)] == plain[: len(driven.answer)]


def test_prose_is_drafted_less_far_than_a_list_and_wastes_fewer_drafts_than_whole_rounds(
    stops: BatchDriver, ask: Ask
) -> None:
    listed, told = (
        stops.run(ask(question, max_tokens=60), lambda _step: 4).row.stats
        for question in ("Count from 1 to 40, one number per line.", PROSE)
    )
    widths = [
        sum(width * rounds for width, rounds in stats.rounds_by_draft_width.items()) / stats.rounds
        for stats in (listed, told)
    ]
    assert widths[0] > widths[1] + 1
    assert told.stopped_early > 0
    assert told.saved > 0
    stops.stopping = None
    whole = stops.run(ask(PROSE, max_tokens=60), lambda _step: WIDEST).row.stats
    assert told.accepted / (told.proposed + told.dropped) > 1.3 * whole.accepted / whole.proposed
    assert (whole.stopped_early, whole.saved, whole.dropped) == (0, 0, 0)


@pytest.mark.parametrize(
    ("reason", "mode"),
    [
        (Reason.PROFILING_SPECULATIVE, Mode.SPECULATIVE),
        (Reason.RECHALLENGE, Mode.SPECULATIVE),
        (Reason.GATE_PROBE_SPECULATIVE, Mode.PROBE_SPECULATIVE),
    ],
)
def test_a_round_that_measures_a_width_runs_all_of_it(stops: BatchDriver, ask: Ask, reason: Reason, mode: Mode) -> None:
    stops.open(ask(PROSE, max_tokens=60))
    widths = {stops.step(6, reason=reason, mode=mode).rows[0].draft_width for _ in range(8)}
    assert widths == {6}


def _widths(stops: BatchDriver, driven: Driven, granted: int) -> set[int]:
    widths = {stops.step(granted, reason=Reason.REQUEST_ON).rows[0].draft_width for _ in range(8)}
    stops.leave(driven)
    return widths


def test_a_request_that_fixes_a_width_gets_it_and_one_that_does_not_stops_early(stops: BatchDriver, ask: Ask) -> None:
    request = ask(PROSE, max_tokens=60, speculation=SpeculationChoice.ON)
    assert _widths(stops, stops.open(replace(request, max_draft_width=6)), 6) == {6}
    assert len(_widths(stops, stops.open(request), WIDEST)) > 1
    capped = replace(request, speculation=SpeculationChoice.AUTO, max_draft_width=3)
    assert max(_widths(stops, stops.open(capped), 3)) <= 3


def test_a_row_beside_one_that_fixes_its_width_runs_the_width_it_was_granted(stops: BatchDriver, ask: Ask) -> None:
    stops.open(ask(PROSE, max_tokens=60, speculation=SpeculationChoice.ON, max_draft_width=6))
    stops.open(ask(LIST, max_tokens=60))
    for _ in range(4):
        assert {result.draft_width for result in stops.step(6).rows} == {6}


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


def test_the_record_of_a_step_and_its_delta_have_the_width_that_ran(stops: BatchDriver, ask: Ask) -> None:
    driven = stops.open(ask("Count from 1 to 30, one number per line.", max_tokens=60))
    recorder = _Recorder(4)
    bursts = BurstRunner(recorder)
    while not driven.row.finished:
        situation = situation_of([driven.row], [driven.row], [WIDEST])
        bursts.begin(situation)
        bursts.end(stops.step(4), situation, 100.0, disturbed=False)
    deltas = [event for event in driven.events if isinstance(event, Delta)]
    rounds = [(step, delta) for step, delta in zip(recorder.steps, deltas, strict=True) if not step.excluded]
    assert [step.draft_width for step, _ in rounds] == [delta.draft_width for _, delta in rounds]
    stats = driven.row.stats
    assert sum(step.proposed for step in recorder.steps) == stats.proposed + stats.dropped
    assert all(len(step.accepted_by_position) <= step.draft_width - 1 <= step.proposed for step, _ in rounds)
    # The granted width bounds no round that decides for itself.
    assert max(step.draft_width for step, _ in rounds) > 4


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


def test_the_rule_is_asked_of_all_rows_at_once_and_each_has_what_its_width_leaves(rows: BatchDriver, ask: Ask) -> None:
    for question in (LIST, PROSE, "Hi"):
        rows.open(ask(question))
    rule = _Scripted(5, 3)
    done = draft_verify_round(rows.batch, [WIDEST, 1, 3], 0.0, lambda: 0.0, rule)
    assert [len(probabilities) for probabilities in rule.asked] == [3] * 5
    found = [(result.draft_width, result.dropped, result.saved, len(result.probabilities)) for result in done.rows]
    assert found == [(4, 2, 2, 5), (1, 0, 0, 0), (3, 0, 0, 2)]


def test_a_round_that_reads_as_it_goes_drafts_what_a_whole_round_drafts(rows: BatchDriver, ask: Ask) -> None:
    results = []
    for rule in (None, _Scripted(5, 5)):
        driven = rows.open(ask(PROSE))
        rows.step(1)
        results += _round(rows, 6, rule)
        rows.leave(driven)
    whole, watched = results
    assert len(whole.probabilities) == 5
    assert all(0.0 < probability <= 1.0 for probability in whole.probabilities)
    assert whole.probabilities == pytest.approx(watched.probabilities)
    assert (whole.tokens, whole.matched) == (watched.tokens, watched.matched)


@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_rule_that_raises_leaves_target_and_drafter_as_committed(rows: BatchDriver, ask: Ask, at: int) -> None:
    following = []
    for broken_at in (at, 0):
        driven = rows.open(ask(LIST))
        rows.step(4)
        tokens = list(driven.row.tokens)
        if broken_at:
            with pytest.raises(MemoryError):
                _round(rows, WIDEST, _Scripted(7, 7, broken_at))
        assert driven.row.tokens == tokens
        assert list(rows.batch.cache.lengths) == [len(tokens) - 1]
        # A drafter that held on to what was never committed would now draft something else.
        rows.step(1)
        following += _round(rows, 6, None)
        rows.leave(driven)
    broken, untouched = following
    assert broken.probabilities == pytest.approx(untouched.probabilities)
    assert broken.tokens == untouched.tokens


def test_guarded_rounds_that_stop_early_choose_the_tokens_of_plain_steps(stops: BatchDriver, ask: Ask) -> None:
    request = ask("Write a haiku about the sea.", max_tokens=30)
    driven = stops.open(request)
    while not driven.row.finished:
        stops.step(6, GuardMargins(verify=0.5))
    stops.stopping = None
    assert driven.answer == stops.run(request, _plain).answer

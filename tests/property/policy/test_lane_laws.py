"""Laws of a lane: no input breaks it, and how steps are cut into outcomes does not matter."""

import math
import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.hint import Hint
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.stages import Profiling, Settled
from burstgate_policy.core.types import (
    BurstOutcome,
    CostCell,
    Grant,
    LaneCapabilities,
    Mode,
    PolicyKey,
    Reason,
    Situation,
    State,
    StepRecord,
    Verdict,
)

KEY = PolicyKey("target", "drafter", "machine", 8, "t", "d", "float32", "cpu", "openblas", "0.32.4")
CAPABILITIES = LaneCapabilities(batchable=True, max_width=32, drafter_kind="mtp_head", apple_gpu_generation=0)
COSTS = [CostCell(1, k, 64, 60.0 + 5 * k, 3.5 * (k - 1)) for k in (1, 2, 4, 8)]
NOW = 1_800_000_000.0
counts = st.integers(0, 2**32 - 1)
times_ms = st.floats(allow_nan=True, allow_infinity=True)


def wild(modes: st.SearchStrategy[Mode], excluded: st.SearchStrategy[bool]) -> st.SearchStrategy[StepRecord]:
    return st.builds(
        StepRecord,
        mode=modes,
        draft_width=counts,
        width=st.one_of(st.integers(0, 32), counts),
        depth_tokens=counts,
        emitted=counts,
        proposed=counts,
        accepted_by_position=st.lists(counts, max_size=12).map(tuple),
        draft_ms=times_ms,
        verify_ms=times_ms,
        overhead_ms=times_ms,
        wall_ms=times_ms,
        excluded=excluded,
    )


wild_steps = wild(st.sampled_from(Mode), st.booleans())
wild_probes = wild(st.sampled_from([Mode.PROBE_PLAIN, Mode.PROBE_SPECULATIVE]), st.just(False))
wild_rounds = wild(st.just(Mode.PROBE_SPECULATIVE), st.just(False))
wild_situations = st.builds(
    Situation,
    width=counts,
    depth_tokens=counts,
    min_emitted_tokens=counts,
    eligible=st.booleans(),
    max_draft_width=counts,
)


@st.composite
def sane_steps(draw: st.DrawFn) -> StepRecord:
    mode = draw(st.sampled_from([mode for mode in Mode if mode is not Mode.UNSPECIFIED]))
    width = draw(st.integers(1, 9))
    draft_width = draw(st.integers(2, 8)) if mode.speculates else 1
    accepted = tuple(sorted(draw(st.lists(st.integers(0, width), max_size=draft_width - 1)), reverse=True))
    draft_ms, verify_ms = draw(st.floats(0.0, 30.0)), draw(st.floats(20.0, 200.0))
    return StepRecord(
        mode=mode,
        draft_width=draft_width,
        width=width,
        depth_tokens=draw(st.integers(1, 5000)),
        emitted=width + sum(accepted),
        proposed=width * (draft_width - 1),
        accepted_by_position=accepted,
        draft_ms=draft_ms,
        verify_ms=verify_ms,
        overhead_ms=1.0,
        wall_ms=draft_ms + verify_ms + 1.0,
        excluded=draw(st.booleans()) and draw(st.booleans()),
    )


beginnings = st.tuples(
    st.sampled_from([None, True, False]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, Verdict.ENABLE, Verdict.DECLINE]),
)
Beginning = tuple[bool | None, bool, bool, Verdict | None]


def lane(beginning: Beginning) -> Lane:
    force, adaptive, static_default, verdict = beginning
    hint = Hint(KEY, verdict, 0.5, 4) if verdict else None
    config = CoreConfig()
    policy = MtpPolicy.start(
        KEY, force=force, adaptive=adaptive, static_default=static_default, hint=hint, config=config, now_s=NOW
    )
    return Lane(policy, CAPABILITIES, COSTS, config)


def check_grant(grant: Grant, situation: Situation) -> None:
    assert grant.mode is not Mode.UNSPECIFIED
    assert grant.reason is not Reason.UNSPECIFIED
    assert 1 <= grant.max_steps <= 8
    assert grant.explanation
    assert "nan" not in grant.explanation
    if grant.mode.speculates:
        assert 2 <= grant.draft_width <= min(8, situation.max_draft_width or 8)
        assert situation.eligible
    else:
        assert grant.draft_width == 1
    if grant.mode is Mode.PINNED:
        assert grant.max_steps <= 8 - situation.min_emitted_tokens


@settings(max_examples=200)
@given(beginnings, st.lists(st.tuples(wild_situations, st.lists(wild_steps, max_size=10)), max_size=12))
def test_no_input_raises_or_leaves_the_documented_states(
    beginning: Beginning, story: list[tuple[Situation, list[StepRecord]]]
) -> None:
    subject = lane(beginning)
    for sequence, (situation, steps) in enumerate(story, start=1):
        check_grant(subject.decide(situation, NOW), situation)
        subject.observe(BurstOutcome("", sequence, tuple(steps), 0), NOW)
    check_snapshot(subject)


@settings(max_examples=100)
@given(st.lists(wild_probes, max_size=8), st.lists(wild_rounds, min_size=1, max_size=6), st.booleans())
def test_wild_profiles_settle_and_never_to_a_number_that_is_none(
    probes: list[StepRecord], rounds: list[StepRecord], static_default: bool
) -> None:
    subject = lane((None, True, static_default, None))
    subject.observe(BurstOutcome("", 1, (*probes, *rounds * 128), 0), NOW)
    stage = subject.policy.stage
    # Rounds as wild as these may drift at once from the verdict that they gave; it rules all the same.
    assert isinstance(stage, Settled) or (isinstance(stage, Profiling) and stage.held is not None)
    check_snapshot(subject)


def check_snapshot(subject: Lane) -> None:
    view = subject.policy.snapshot(NOW)
    assert view.state is not State.UNSPECIFIED
    assert (view.verdict is Verdict.UNSPECIFIED) == (view.state is not State.SETTLED)
    assert view.speedup is None or math.isfinite(view.speedup)
    assert view.acceptance_rate is None or 0.0 <= view.acceptance_rate <= 1.0
    assert "nan" not in view.explanation


@settings(max_examples=150)
@given(beginnings, st.lists(sane_steps(), max_size=120), st.data())
def test_cutting_the_same_steps_into_other_outcomes_gives_the_same_lane(
    beginning: Beginning, steps: list[StepRecord], data: st.DataObject
) -> None:
    whole, cut = lane(beginning), lane(beginning)
    whole.observe(BurstOutcome("", 1, tuple(steps), 0), NOW)
    places = sorted(data.draw(st.lists(st.integers(0, len(steps)), max_size=20)))
    for sequence, (start, end) in enumerate(zip([0, *places], [*places, len(steps)], strict=True), start=1):
        cut.observe(BurstOutcome("", sequence, tuple(steps[start:end]), 0), NOW)
    assert state(whole) == state(cut, sequence_like=whole)
    situation = Situation(2, 100, 3, eligible=True, max_draft_width=0)
    assert whole.decide(situation, NOW) == cut.decide(situation, NOW)


@given(beginnings, st.lists(st.lists(sane_steps(), max_size=10), max_size=8), st.data())
def test_outcomes_seen_before_change_nothing(
    beginning: Beginning, bursts: list[list[StepRecord]], data: st.DataObject
) -> None:
    once, again = lane(beginning), lane(beginning)
    outcomes = [BurstOutcome("", i, tuple(steps), i) for i, steps in enumerate(bursts, start=1)]
    for index, outcome in enumerate(outcomes):
        once.observe(outcome, NOW)
        again.observe(outcome, NOW)
        again.observe(outcomes[data.draw(st.integers(0, index))], NOW)
    assert state(once) == state(again)


@given(beginnings, st.lists(st.tuples(wild_situations, st.lists(wild_steps, max_size=6)), max_size=8))
def test_the_same_inputs_give_the_same_grants(
    beginning: Beginning, story: list[tuple[Situation, list[StepRecord]]]
) -> None:
    left, right = lane(beginning), lane(beginning)
    for sequence, (situation, steps) in enumerate(story, start=1):
        assert left.decide(situation, NOW) == right.decide(situation, NOW)
        outcome = BurstOutcome("", sequence, tuple(steps), 0)
        left.observe(outcome, NOW)
        right.observe(outcome, NOW)


def state(subject: Lane, *, sequence_like: Lane | None = None) -> bytes:
    """Everything a lane holds, to the last bit."""
    last = (sequence_like or subject)._last_sequence
    saved, subject._last_sequence = subject._last_sequence, last
    try:
        # Twice through, so that objects that are merely shared look like equal ones.
        return pickle.dumps(pickle.loads(pickle.dumps(subject)))
    finally:
        subject._last_sequence = saved

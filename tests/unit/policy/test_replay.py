"""What a recorded trace would have cost under the core's decisions."""

import dataclasses

import pytest
from tests.unit.policy.loop import MakeStep

from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.replay import Replay, replay
from burstgate_policy.core.types import BurstOutcome, CostCell, LaneCapabilities, Mode, PolicyKey, Reason, StepRecord
from burstgate_policy.core.verdict_config import VerdictConfig

COSTS = [CostCell(1, 1, 64, 60.0, 0.0), CostCell(1, 4, 64, 80.0, 10.0), CostCell(1, 8, 64, 110.0, 20.0)]
SEED = CoreConfig(verdict=VerdictConfig.seed())


def run(
    key: PolicyKey,
    capabilities: LaneCapabilities,
    *steps: StepRecord,
    force: bool | None = None,
    adaptive: bool = True,
    costs: list[CostCell] | None = None,
) -> Replay:
    outcomes = [BurstOutcome("", i, steps[i * 8 - 8 : i * 8], 0) for i in range(1, len(steps) // 8 + 2)]
    return replay(
        key=key,
        capabilities=capabilities,
        costs=COSTS if costs is None else costs,
        outcomes=outcomes,
        config=SEED,
        force=force,
        adaptive=adaptive,
    )


@pytest.fixture
def key4(key: PolicyKey) -> PolicyKey:
    return dataclasses.replace(key, draft_width=4)


@pytest.fixture
def four_tokens(make_step: MakeStep) -> StepRecord:
    """A round that keeps all three drafts, at the price the table says."""
    return make_step(Mode.SPECULATIVE, draft_width=4, accepted=3, verify_ms=80.0, draft_ms=10.0, overhead_ms=0.0)


@pytest.fixture
def plain(make_step: MakeStep) -> StepRecord:
    return make_step(Mode.PLAIN, plain_ms=60.0)


def test_deciding_as_recorded_costs_what_was_recorded(
    key4: PolicyKey, capabilities: LaneCapabilities, plain: StepRecord
) -> None:
    slow = dataclasses.replace(plain, wall_ms=77.0)
    result = run(key4, capabilities, *[slow] * 20, force=False)
    assert (result.recorded_ms, result.replayed_ms, result.tokens) == (20 * 77.0, 20 * 77.0, 20)
    assert {step.reason for step in result.steps} == {Reason.FORCED_OFF}


def test_plain_steps_in_place_of_rounds_take_one_each_token(
    key4: PolicyKey, capabilities: LaneCapabilities, four_tokens: StepRecord
) -> None:
    result = run(key4, capabilities, *[four_tokens] * 40, force=False)
    assert result.tokens == 160
    assert result.recorded_ms == pytest.approx(40 * 90.0)
    assert result.replayed_ms == pytest.approx(160 * 60.0, rel=0.01)
    assert result.steps[0].recorded_draft_width == 4
    assert result.steps[0].draft_width == 1


def test_a_narrower_verify_keeps_no_more_than_it_drafts(
    key: PolicyKey, capabilities: LaneCapabilities, four_tokens: StepRecord
) -> None:
    two = dataclasses.replace(key, draft_width=2)
    costs = [CostCell(1, 1, 64, 60.0, 0.0), CostCell(1, 2, 64, 70.0, 5.0)]
    # Recorded at K=4 on a lane that may run K=2 only: the costs of K=4 say nothing about K=2.
    result = run(two, capabilities, *[four_tokens] * 8, force=True, costs=costs)
    assert {step.draft_width for step in result.steps} == {2}
    assert result.replayed_ms / result.recorded_ms > 1.5


def test_a_wider_verify_is_credited_no_draft_beyond_the_recorded_ones(
    key: PolicyKey, capabilities: LaneCapabilities, four_tokens: StepRecord
) -> None:
    cheap = [CostCell(1, k, 64, 90.0, 0.0) for k in (1, 4, 8)]
    result = run(key, capabilities, *[four_tokens] * 200, force=True, costs=cheap)
    assert {step.draft_width for step in result.steps} <= {5, 6, 7, 8}  # where K=4 would keep as many
    assert result.steps[-1].draft_width == 8
    assert result.tokens == 800
    assert result.replayed_ms == pytest.approx(result.recorded_ms)


def test_rounds_in_place_of_plain_steps_keep_what_the_latest_round_kept(
    key4: PolicyKey, capabilities: LaneCapabilities, four_tokens: StepRecord, plain: StepRecord
) -> None:
    blind = run(key4, capabilities, *[plain] * 40, force=True)
    assert blind.replayed_ms > blind.recorded_ms  # nothing is known to be kept
    shown = run(key4, capabilities, *[four_tokens] * 8, *[plain] * 40, force=True)
    assert shown.replayed_ms < 0.6 * shown.recorded_ms


def test_costs_are_corrected_by_the_recorded_times(
    key4: PolicyKey, capabilities: LaneCapabilities, four_tokens: StepRecord
) -> None:
    """On a machine twice as slow as its table, plain steps are taken to be twice as slow too."""
    slow = dataclasses.replace(four_tokens, draft_ms=20.0, verify_ms=160.0, wall_ms=180.0)
    result = run(key4, capabilities, *[slow] * 400, force=False)
    assert result.replayed_ms == pytest.approx(1600 * 120.0)


def test_other_settings_give_other_decisions(
    key4: PolicyKey, capabilities: LaneCapabilities, four_tokens: StepRecord
) -> None:
    adaptive = run(key4, capabilities, *[four_tokens] * 80)
    static = run(key4, capabilities, *[four_tokens] * 80, adaptive=False)
    assert {step.reason for step in static.steps} == {Reason.STATIC_ON}
    assert {step.reason for step in adaptive.steps} >= {Reason.PROFILING_PLAIN, Reason.PROFILING_SPECULATIVE}
    assert adaptive.snapshot.evidence is not None
    assert adaptive.snapshot.evidence.plain_steps == 8


def test_an_outcome_that_was_delivered_twice_is_replayed_once(
    key4: PolicyKey, capabilities: LaneCapabilities, plain: StepRecord
) -> None:
    outcome = BurstOutcome("", 1, (plain,) * 8, 0)
    result = replay(
        key=key4, capabilities=capabilities, costs=COSTS, outcomes=[outcome, outcome], config=SEED, force=False
    )
    assert len(result.steps) == 8


def test_openings_and_ineligible_rows_are_replayed_as_such(
    key4: PolicyKey, capabilities: LaneCapabilities, plain: StepRecord
) -> None:
    ineligible = dataclasses.replace(plain, excluded=True)
    result = run(key4, capabilities, *[ineligible] * 8, force=True)
    assert {step.reason for step in result.steps} == {Reason.INELIGIBLE}


def test_an_empty_trace_costs_nothing(key4: PolicyKey, capabilities: LaneCapabilities) -> None:
    result = run(key4, capabilities)
    assert (result.steps, result.recorded_ms, result.replayed_ms, result.tokens) == ((), 0.0, 0.0, 0)


def test_a_trace_without_a_cost_table_is_replayed_on_recorded_times(
    key4: PolicyKey, capabilities: LaneCapabilities, four_tokens: StepRecord
) -> None:
    result = run(key4, capabilities, *[four_tokens] * 16, force=False, costs=[])
    assert result.replayed_ms == pytest.approx(64 * 90.0)

"""The simulated worlds: the same for every policy, the same from the same seed, and of the size asked for."""

import numpy as np
import pytest
from tests.unit.bench.gate_worlds import Script, flat_world, random

from burstgate_bench.gate.arms import ARMS, FixedMode
from burstgate_bench.gate.costs import apple, glm_single, nvidia_4bit, openblas, qwen_gb10, reference_blas
from burstgate_bench.gate.families import FAMILIES
from burstgate_bench.gate.machine import Machine, compiling, correlated_noise, iid_noise
from burstgate_bench.gate.play import play
from burstgate_bench.gate.recipe import build
from burstgate_bench.gate.texts import KINDS, Kind, draw_accepted
from burstgate_bench.gate.tournament import match
from burstgate_bench.gate.world import Text, World
from burstgate_policy.core.types import Mode

STEPS = 300
every_family = pytest.mark.parametrize("name", FAMILIES)


@every_family
def test_a_family_says_what_it_is_and_builds_worlds_of_the_size_asked_for(name: str) -> None:
    assert FAMILIES[name].__doc__
    for index in range(2):
        built = build(name, FAMILIES[name], seed=1, index=index, steps=STEPS)
        assert built.best.steps >= STEPS
        assert len(built.fixed) == built.world.cap
        assert all(run.tokens[-1] == built.world.tokens for run in built.fixed.values())


@every_family
def test_fixed_modes_in_arrays_equal_fixed_modes_driven_burst_by_burst(name: str) -> None:
    built = build(name, FAMILIES[name], seed=3, index=1, steps=STEPS)
    for k in (1, 2, built.world.cap):
        driven = play(built.world, FixedMode(k))
        np.testing.assert_array_equal(driven.tokens, built.fixed[k].tokens)
        np.testing.assert_allclose(driven.busy_ms, built.fixed[k].busy_ms, rtol=1e-9)


@pytest.mark.parametrize("name", ["kind_changes", "joins_fixture", "thermal"])
def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(name: str) -> None:
    first, again = (match(name, 0, arms=list(ARMS), seed=7, steps=STEPS) for _ in range(2))
    assert first == again
    assert match(name, 0, arms=["default"], seed=8, steps=STEPS).scores["default"] != first.scores["default"]
    assert match(name, 1, arms=["default"], seed=7, steps=STEPS).scores["default"] != first.scores["default"]


@pytest.mark.parametrize("arm", ARMS)
def test_every_policy_decodes_the_whole_text_and_no_more(arm: str) -> None:
    for name in ("flapping", "thinking", "short_requests_fixture"):
        world = build(name, FAMILIES[name], seed=2, index=0, steps=STEPS).world
        assert play(world, ARMS[arm](world)).tokens[-1] == world.tokens


@pytest.mark.parametrize("draw", KINDS)
def test_drafts_are_kept_as_often_as_their_kind_says(draw: object) -> None:
    kind: Kind = draw(random(4))  # type: ignore[operator]
    accepted = draw_accepted([kind], np.zeros(60_000, np.uint8), random(5))
    for k in range(1, 9):
        assert 1.0 + np.minimum(accepted, k - 1).mean() == pytest.approx(kind.expected_tokens()[k - 1], abs=0.05)


def test_bursts_and_the_stretches_between_have_their_own_rates() -> None:
    kind = Kind("bursts", 0.2, 1.0, burst_rate=0.9, burst_tokens=50.0)
    accepted = draw_accepted([kind], np.zeros(60_000, np.uint8), random(6))
    first_kept = accepted > 0
    assert first_kept.mean() == pytest.approx(0.55, abs=0.03)
    # Within a burst the neighbours are alike, which draws by themselves would not be.
    alike = np.corrcoef(first_kept[:-10], first_kept[10:])[0, 1]
    assert alike > 0.2


def test_a_round_keeps_what_the_text_says_as_far_as_it_drafts_and_the_text_reaches() -> None:
    world = flat_world(11, kept=7)
    script = Script((Mode.SPECULATIVE, 4), burst_steps=3)
    played = play(world, script, ahead=False)
    (outcome,) = script.outcomes
    assert [step.emitted for step in outcome.steps] == [4, 4, 3]
    assert [step.proposed for step in outcome.steps] == [3, 3, 2]
    assert [step.accepted_by_position for step in outcome.steps] == [(1, 1, 1), (1, 1, 1), (1, 1)]
    assert [step.depth_tokens for step in outcome.steps] == [50, 54, 58]
    assert played.busy_ms.tolist() == [20.0, 40.0, 60.0]
    assert script.situations[0].max_draft_width == 8


def test_rows_of_a_batch_are_counted_together() -> None:
    rows = tuple(Text(50, bytes([kept]) * 40, bytes(40)) for kept in (0, 1, 3))
    flat = flat_world(1, kept=0)
    world = World("three", flat.kinds, rows, 3, (), flat.machine, (), 8)
    script = Script((Mode.SPECULATIVE, 4), burst_steps=1)
    play(world, script)
    (step,) = script.outcomes[0].steps
    assert (step.width, step.emitted, step.proposed) == (3, 1 + 2 + 4, 9)
    assert step.accepted_by_position == (2, 1, 1)


def test_a_burst_ends_where_the_width_bucket_changes_and_a_round_with_no_room_for_a_row_counts_for_nothing() -> None:
    rows = (Text(50, bytes(100), bytes(100)), Text(50, bytes(3), bytes(3)))
    flat = flat_world(1, kept=0)
    script = Script((Mode.SPECULATIVE, 4))
    play(World("two", flat.kinds, rows, 2, (), flat.machine, (), 8), script, ahead=False)
    assert [len(outcome.steps) for outcome in script.outcomes[:2]] == [3, 8]
    assert [situation.width for situation in script.situations[:2]] == [2, 1]
    assert [step.excluded for step in script.outcomes[0].steps] == [False, False, True]


def test_a_thinking_row_runs_plain_whatever_was_granted_and_teaches_nothing() -> None:
    flat = flat_world(1, kept=0)
    text = Text(50, bytes([7]) * 100, bytes(100), thinking_tokens=5)
    script = Script((Mode.SPECULATIVE, 4))
    play(World("thought", flat.kinds, (text,), 1, (), flat.machine, (), 8), script)
    assert [situation.eligible for situation in script.situations[:2]] == [False, True]
    assert [(step.emitted, step.proposed, step.excluded) for step in script.outcomes[0].steps] == [(1, 0, True)] * 5
    assert script.outcomes[1].steps[0].emitted == 4


def test_visitors_join_when_the_world_has_emitted_enough() -> None:
    flat = flat_world(40, kept=0)
    visitor = Text(10, bytes(4), bytes(4), after_tokens=10)
    script = Script((Mode.PLAIN, 1))
    play(World("visit", flat.kinds, flat.texts, 1, (visitor,), flat.machine, (), 8), script)
    widths = [step.width for outcome in script.outcomes for step in outcome.steps]
    assert widths == [1] * 10 + [2] * 4 + [1] * 26


def test_simulated_time_is_the_sum_of_the_steps() -> None:
    script = Script((Mode.PLAIN, 1), (Mode.SPECULATIVE, 2))
    play(flat_world(100, kept=1), script, ahead=False)
    assert np.diff(script.times[:3]).tolist() == pytest.approx([0.08, 0.16])


def test_the_next_grant_is_asked_for_before_the_last_step_which_is_told_with_the_question_after_it() -> None:
    script = Script((Mode.PLAIN, 1), (Mode.SPECULATIVE, 2), burst_steps=4)
    play(flat_world(30, kept=1), script)
    assert [situation.steps_in_flight for situation in script.situations[:3]] == [0, 1, 1]
    assert [situation.depth_tokens for situation in script.situations[:3]] == [50, 53, 54 + 6]
    assert [len(outcome.steps) for outcome in script.outcomes[:2]] == [3, 4]
    modes = [step.mode for outcome in script.outcomes for step in outcome.steps]
    assert modes == [Mode.PLAIN] * 4 + [Mode.SPECULATIVE] * 13


def test_a_grant_that_was_asked_for_ahead_is_dropped_when_every_row_has_ended() -> None:
    script = Script((Mode.PLAIN, 1), burst_steps=1)
    play(flat_world(5, kept=0, texts=2), script)
    assert [situation.steps_in_flight for situation in script.situations] == [0, 1, 1, 1, 1, 1] * 2


def test_the_first_step_of_a_shape_compiles_once() -> None:
    world = flat_world(40, kept=0)
    machine = Machine(world.machine.costs, [1.0], compile_factors={(1, 4): 10.0})
    played = play(World("compiles", world.kinds, world.texts, 1, (), machine, (), 8), Script((Mode.SPECULATIVE, 4)))
    assert np.diff(played.busy_ms, prepend=0.0)[:3].tolist() == pytest.approx([200.0, 20.0, 20.0])


def test_noise_has_mean_one_and_the_asked_deviation_and_only_correlated_noise_remembers() -> None:
    for draw, remembers in ((iid_noise, 0.0), (correlated_noise, np.exp(-1.0 / 16.0))):
        noise = np.array(draw(random(8), 0.1))
        assert noise.mean() == pytest.approx(1.0, abs=0.01)
        assert noise.std() == pytest.approx(0.1, rel=0.1)
        assert np.corrcoef(noise[:-1], noise[1:])[0, 1] == pytest.approx(remembers, abs=0.03)


def test_cost_models_say_what_was_measured() -> None:
    table = openblas()
    assert [table.at(1).verify_ms[k] for k in (1, 2, 4, 6, 8)] == [68.0, 74.0, 78.0, 95.0, 84.0]
    assert table.at(8).verify_ms[4] == 181.0
    assert table.at(2).verify_ms[3] == pytest.approx((84.0 + 83.0) / 2)
    assert qwen_gb10().step_ms(4, 2, 100) == 93.6
    assert glm_single().step_ms(1, 8, 100) == 76.8
    reference = reference_blas().at(2)
    assert reference.verify_ms[5] == 5 * reference.verify_ms[1]
    slow, wide = (apple(fit).at(1).verify_ms for fit in ("Qwen on M1 Ultra", "12B on M3 Ultra"))
    assert slow[4] / slow[1] == pytest.approx(0.46 + 0.771 * 4)
    assert wide[4] / wide[1] == pytest.approx(1.14 + 0.090 * 4)
    cliff = nvidia_4bit(0.7, 0.46).at(1).verify_ms
    assert cliff[1] < cliff[8] < cliff[2] < cliff[6]


def test_equal_modes_cost_the_same_for_each_token_and_no_other_mode_is_as_good() -> None:
    world = build("equal_modes", FAMILIES["equal_modes"], seed=1, index=0, steps=4000).world
    rates = world.rates((0,), 100, 1.0)[1:]
    plain, best, *others = sorted(rates, reverse=True)
    assert rates[0] in (plain, best)
    assert plain == pytest.approx(best, rel=0.02)
    assert all(rate < 0.93 * best for rate in others)


def test_every_shape_compiles_at_its_own_cost() -> None:
    factors = compiling(random(9))
    assert {k for _, k in factors} == set(range(1, 9))
    assert {width for width, _ in factors} == {1, 2, 4, 8, 16, 32}
    assert all(5.0 <= factor <= 15.0 for factor in factors.values())

"""Scores are what arithmetic says: of the best mode, of a wrong one, of one that wavers."""

import dataclasses

import numpy as np
import pytest
from tests.unit.bench.gate_worlds import PLAIN_MS, ROUND_MS, Script, flat_world

from burstgate_bench.gate.arms import ARMS, AcceptanceRule, Bandit, FixedMode
from burstgate_bench.gate.families import FAMILIES
from burstgate_bench.gate.fixed import fixed_runs
from burstgate_bench.gate.play import Policy, play
from burstgate_bench.gate.recipe import build
from burstgate_bench.gate.score import COLD_STEPS, Score, score, score_fixed
from burstgate_bench.gate.summary import Summary, line_of
from burstgate_bench.gate.tournament import Match
from burstgate_bench.gate.world import World
from burstgate_policy.core.types import Mode


def scored(world: World, policy: Policy) -> Score:
    return score(play(world, policy), fixed_runs(world))


@pytest.mark.parametrize("name", ["wide", "drift", "compilation", "equal_modes"])
def test_a_policy_that_always_picks_the_best_mode_scores_one(name: str) -> None:
    built = build(name, FAMILIES[name], seed=5, index=0, steps=200)
    fixed = built.fixed
    best = min(fixed, key=lambda k: score_fixed(fixed[k], fixed).regret_ms)
    result = score(play(built.world, FixedMode(best)), fixed)
    assert result.score == pytest.approx(1.0, rel=1e-9)
    assert result.regret_ms == pytest.approx(0.0, abs=1e-6)
    assert result.cold == pytest.approx(1.0, rel=1e-9)
    assert (result.switches, result.probe_share, result.best) == (0, 0.0, best)


def test_a_policy_that_always_picks_a_wrong_mode_scores_what_arithmetic_says() -> None:
    # Eight tokens in 20 ms are the best; a plain step gives one in 10 ms.
    world = flat_world(8 * 400, kept=7)
    result = scored(world, FixedMode(1))
    assert result.score == pytest.approx((ROUND_MS / 8) / PLAIN_MS, rel=1e-6)
    assert result.plain == pytest.approx(1.0)
    assert result.best == 8
    # The last step has room for one token only, so there was nothing to choose.
    assert result.longest_wrong == result.steps - COLD_STEPS - 1
    assert scored(world, FixedMode(4)).score == pytest.approx(0.5, rel=1e-6)
    assert scored(world, FixedMode(4)).plain == pytest.approx(2.0, rel=1e-6)


def test_a_hopeless_text_makes_every_round_cost_two_plain_steps() -> None:
    result = scored(flat_world(400, kept=0), FixedMode(8))
    assert result.score == result.plain == pytest.approx(0.5, rel=0.01)
    assert result.best == 1


def test_the_first_steps_are_scored_on_their_own() -> None:
    wrong_first = [(Mode.SPECULATIVE, 2)] * (COLD_STEPS // 8)
    result = scored(flat_world(2000, kept=0), Script(*wrong_first, (Mode.PLAIN, 1)))
    assert result.score == pytest.approx(1.0)
    assert result.cold == pytest.approx(PLAIN_MS / ROUND_MS)


def test_changes_of_mode_are_switches_and_probes_are_not() -> None:
    plain, rounds = (Mode.PLAIN, 1), (Mode.SPECULATIVE, 4)
    probe = (Mode.PROBE_SPECULATIVE, 4)
    world = flat_world(3000, kept=0)
    assert scored(world, Script(plain, rounds, plain, probe, plain, rounds)).switches == 3
    probing = scored(world, Script(*[plain] * 20, *[probe] * 20, plain))
    assert probing.switches == 0
    assert probing.probe_share == pytest.approx(20 * 8 / (3000 - COLD_STEPS))
    # A probe in the wrong mode is time in a wrong mode all the same.
    assert probing.longest_wrong == 20 * 8


def test_what_nobody_chose_is_not_wrong() -> None:
    world = flat_world(1000, kept=7)
    thinking = dataclasses.replace(world, texts=(dataclasses.replace(world.texts[0], thinking_tokens=900),))
    result = scored(thinking, FixedMode(8))
    assert (result.longest_wrong, result.wrong_share) == (0, 0.0)


def test_time_inside_a_step_is_shared_out() -> None:
    run = fixed_runs(flat_world(80, kept=3))[4]
    assert run.ms_until(0) == 0.0
    assert run.ms_until(2) == ROUND_MS / 2
    assert run.ms_until(6) == ROUND_MS * 1.5
    assert run.ms_until(80) == run.total_ms == 20 * ROUND_MS


def test_the_bandit_settles_on_the_best_mode_and_the_threshold_rule_knows_no_cost() -> None:
    good, hopeless = flat_world(8 * 3000, kept=7), flat_world(8000, kept=0)
    assert scored(good, Bandit(8)).score > 0.95
    assert scored(hopeless, Bandit(8)).score > 0.95
    assert scored(hopeless, AcceptanceRule()).score > 0.85
    # Of three drafts two are kept, so it speculates although nothing could be lost faster.
    dear = flat_world(8000, kept=2)
    assert scored(dear, AcceptanceRule()).probe_share == 0.0


def test_the_default_leaves_a_mode_that_loses_at_once_and_the_plain_gate_after_a_thousand_tokens() -> None:
    # Short enough that no context doubles, which would bring the probe forward.
    world = flat_world(600, kept=0, texts=10)
    assert scored(world, ARMS["default"](world)).score > 0.95
    seed = play(world, ARMS["seed"](world), ahead=False)
    # A probe after 1024 tokens, one step, a second probe: what the rules of the plain gate give. The last round
    # of the first text had no room for a draft and did not count.
    assert np.flatnonzero(seed.switched).tolist() == [1024 + 16 + 1 + 16 + 1]
    assert score(seed, fixed_runs(world)).probe_share > 0.04


def test_a_summary_holds_the_median_the_worst_decile_and_the_fifth_percentile() -> None:
    scores = [
        Score(
            score=at / 100,
            plain=1 + at / 100,
            cold=1.0,
            best=1,
            regret_ms=0.0,
            steps=1,
            switches=at,
            longest_wrong=at,
            wrong_share=0.5,
            probe_share=at / 1000,
        )
        for at in range(101)
    ]
    summary = Summary.of(scores)
    assert (summary.median, summary.p10, summary.least, summary.plain_p5) == (0.5, 0.1, 0.0, 1.05)
    assert (summary.switches_most, summary.probe_share, summary.probe_share_most) == (100, 0.05, 0.1)
    matches = [Match("a" if at < 60 else "b", at, 1, {"default": one, "seed": one}) for at, one in enumerate(scores)]
    line = line_of(matches)
    assert (line["median"], line["seed_median"], line["probe_share"]) == (0.5, 0.5, 0.05)
    assert line["by_family"]["b"]["median"] == 0.8
    assert np.isfinite(line["plain_p5"])

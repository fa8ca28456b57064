"""When a round goes on drafting, what it verifies, and what rounds teach. On simulated costs, no clock."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decode.simulated import (
    DEPTH,
    VERIFY_MS,
    WIDEST,
    Text,
    best_fixed_rate,
    cost_ms,
    play,
    rate,
    table,
    texts,
)

from burstgate_decode.engine.draft_calibration import DraftCalibration
from burstgate_decode.engine.stopping import (
    RoundOutcome,
    RoundRow,
    RowOutcome,
    Stopping,
    StoppingConfig,
    StoppingRule,
)
from burstgate_decode.engine.stopping_worth import WorthConfig
from burstgate_decode.engine.verify_choice import between
from burstgate_policy.core.types import CostCell

COSTS_MS = [0.0, *(cost_ms(width) for width in range(2, WIDEST + 1))]
STEP_MS = 3.4


def rule(
    price_ms: float = 30.0, costs_ms: Sequence[float] = COSTS_MS, rows: int = 1, step_ms: float = STEP_MS
) -> StoppingRule:
    return StoppingRule(DraftCalibration(), costs_ms, step_ms, price_ms, [RoundRow(4, WIDEST, sampled=False)] * rows)


def drafts_of(one: StoppingRule, probability: float, most: int = WIDEST - 1) -> int:
    """How many drafts are made when the drafter gives each the same probability."""
    for made in range(1, most):
        if not one.goes_on([probability]):
            return made
    one.goes_on([probability])
    return most


def test_an_unlikely_draft_ends_the_round_and_a_likely_one_does_not() -> None:
    assert not rule().goes_on([0.05])
    assert rule().goes_on([0.95])


def test_likelier_drafts_make_longer_rounds() -> None:
    lengths = [drafts_of(rule(), probability) for probability in (0.05, 0.5, 0.7, 0.97)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 1
    assert lengths[-1] == WIDEST - 1
    assert len(set(lengths)) > 2


def test_where_tokens_are_cheap_rounds_are_short() -> None:
    lengths = [drafts_of(rule(price_ms=price_ms), 0.7) for price_ms in (5.0, 15.0, 30.0, 60.0)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_a_round_goes_on_across_a_dear_width_to_a_cheap_one() -> None:
    # As 4-bit products on some devices: 6 rows are dear, 8 are cheap.
    cliff_ms = [0.0, 60.0, 60.0, 60.0, 100.0, 100.0, 100.0, 61.0]
    plain_ms = [0.0, 60.0, 60.0, 60.0, 100.0, 100.0, 100.0, 100.0]
    for costs_ms, goes_on in ((cliff_ms, True), (plain_ms, False)):
        one = rule(costs_ms=costs_ms, step_ms=0.0)
        assert [one.goes_on([0.9]) for _ in range(3)] == [True, True, goes_on]


def test_the_last_draft_is_left_out_of_the_verify_when_its_row_does_not_pay() -> None:
    one = rule(costs_ms=[0.0, 60.0, 63.0, 80.0], step_ms=2.0)
    one.goes_on([0.9])
    one.goes_on([0.9])
    one.goes_on([0.01])
    assert one.worth_verifying() == [2]


def test_one_draft_is_always_verified() -> None:
    one = rule(price_ms=0.001)
    assert not one.goes_on([0.001])
    assert one.worth_verifying() == [1]


def test_nothing_follows_the_widest_verify() -> None:
    one = rule(costs_ms=COSTS_MS[:3])
    assert one.goes_on([0.99])
    assert not one.goes_on([0.99])


def test_rows_that_share_a_forward_go_on_together_for_what_none_would_go_on_for_alone() -> None:
    assert not rule(price_ms=30.0).goes_on([0.12])
    assert rule(price_ms=30.0, rows=4).goes_on([0.12] * 4)


@given(probabilities=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=WIDEST - 1), price_ms=st.floats(0.1, 500.0))
def test_what_is_verified_was_drafted_and_is_at_least_one(probabilities: list[float], price_ms: float) -> None:
    one = rule(price_ms=price_ms)
    for probability in probabilities:
        one.goes_on([probability])
    (verified,) = one.worth_verifying()
    assert 1 <= verified <= len(probabilities)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_on_mixed_text_the_rule_beats_every_fixed_width(seed: int) -> None:
    text = texts(["list", "prose", "code", "prose"] * 25, 30, seed)
    rounds = list(play(Stopping(table(), WIDEST), text))
    assert rate(rounds) > 1.05 * best_fixed_rate(text)


@pytest.mark.parametrize("kind", ["code", "prose"])
def test_on_text_of_one_kind_the_rule_beats_even_the_width_that_fits_it(kind: str) -> None:
    text = texts([kind], 1500)
    assert rate(list(play(Stopping(table(), WIDEST), text))) > 1.01 * best_fixed_rate(text)


def test_where_the_widest_verify_is_always_best_the_rule_runs_it() -> None:
    text = texts(["list"], 1500)
    assert rate(list(play(Stopping(table(), WIDEST), text))) > 0.98 * best_fixed_rate(text)


def test_the_width_follows_the_kind_of_text() -> None:
    rounds = list(play(Stopping(table(), WIDEST), texts(["list", "prose"], 200)))

    def mean_width(part: Sequence[int]) -> float:
        return sum(rounds[at].draft_width for at in part) / len(part)

    assert mean_width(range(50, 200)) > mean_width(range(250, 400)) + 2


def test_a_table_that_is_wrong_about_wide_verifies_is_corrected_by_the_rounds() -> None:
    dear = {width: ms + (40.0 if width > 4 else 0.0) for width, ms in VERIFY_MS.items()}
    text = texts(["list", "prose", "code"] * 10, 30)
    wrong, right = (
        list(play(Stopping(table(believed), WIDEST), text, verify_ms=dear)) for believed in (VERIFY_MS, dear)
    )
    assert sum(one.draft_width > 4 for one in wrong[:60]) > 10
    assert rate(wrong[300:]) > 0.96 * rate(right[300:])


def test_no_round_is_wider_than_it_may_be() -> None:
    for width in range(2, WIDEST + 1):
        rounds = list(play(Stopping(table(), WIDEST), texts(["list", "prose"], 60), width=width))
        assert max(one.draft_width for one in rounds) <= width
        assert max(one.drafts for one in rounds) <= width - 1
        assert min(one.draft_width for one in rounds) == 2


def test_without_costs_to_price_a_round_it_runs_its_full_width() -> None:
    plan = Stopping([], WIDEST).plan([RoundRow(5, WIDEST, sampled=False)], DEPTH)
    assert (plan.widths, plan.rule) == ([5], None)


def test_one_stalled_cell_of_the_table_does_not_make_tokens_dear() -> None:
    stalled = [replace(cell, verify_ms=400.0) if cell.draft_width in (1, 6) else cell for cell in table()]
    text = texts(["prose", "list"] * 5, 20)
    rounds = [list(play(Stopping(cells, WIDEST), text)) for cells in (stalled, table())]
    assert rate(rounds[0]) > 0.97 * rate(rounds[1])


def test_now_and_then_a_round_runs_whole_at_the_width_of_the_last_one() -> None:
    rounds = list(play(Stopping(table(), WIDEST), texts(["prose"], 600)))
    whole = [(last, one) for last, one in itertools.pairwise(rounds) if not one.watched]
    assert 10 < len(whole) < 40
    assert all(one.draft_width == last.draft_width for last, one in whole)


def test_rounds_that_have_become_short_find_out_that_text_has_become_fluent() -> None:
    rng = random.Random(3)

    def text(rounds: int, first: float, further: float) -> list[Text]:
        """Drafts of a drafter that always says the same, kept with these chances."""
        drawn = [[rng.random() < first, *(rng.random() < further for _ in range(WIDEST - 2))] for _ in range(rounds)]
        return [Text((0.9, *[0.6] * (WIDEST - 2)), [*kept, False].index(False)) for kept in drawn]

    verify_ms = {width: ms * (1.0 + (width - 1) / WIDEST) for width, ms in VERIFY_MS.items()}
    stopping = Stopping(table(verify_ms), WIDEST, StoppingConfig(worth=WorthConfig(judged_after=10**9)))
    rounds = list(play(stopping, [*text(150, 0.9, 0.05), *text(150, 0.97, 0.95)], verify_ms=verify_ms))
    assert sum(one.drafts for one in rounds[50:150]) < 1.3 * 100
    assert sum(one.drafts for one in rounds[200:]) > 4 * 100


ROW = RoundRow(4, WIDEST, sampled=False)
OUTCOME = RoundOutcome([RowOutcome(8, False, [0.5] * 7, 0)], 1, 90.0, DEPTH)


def test_rounds_that_were_not_planned_teach_acceptance_and_no_price() -> None:
    taught, untaught = Stopping(table(), WIDEST), Stopping(table(), WIDEST)
    for _ in range(40):
        taught.learn(OUTCOME, None)
    rules = [stopping.plan([ROW], DEPTH).rule for stopping in (taught, untaught)]
    assert rules[0] is not None
    assert rules[1] is not None
    assert not rules[0].goes_on([0.5])
    assert rules[1].goes_on([0.5])
    assert rules[0]._price_ms == rules[1]._price_ms == VERIFY_MS[1]


def test_a_stall_does_not_make_tokens_dear() -> None:
    prices = []
    for stall in (1.0, 100.0):
        stopping = Stopping(table(), WIDEST)
        for number in range(30):
            plan = stopping.plan([ROW], DEPTH)
            stopping.learn(
                replace(
                    OUTCOME,
                    rows=[RowOutcome(8, False, [0.5] * 7, 7)],
                    emitted=8,
                    wall_ms=98.0 * (stall if number == 25 else 1.0),
                ),
                plan,
            )
        following = stopping.plan([ROW], DEPTH).rule
        assert following is not None
        prices.append(following._price_ms)
    assert prices[1] < 1.15 * prices[0]


def test_a_round_that_no_clock_measured_teaches_no_cost() -> None:
    stopping = Stopping(table(), WIDEST)
    plan = stopping.plan([ROW], DEPTH)
    stopping.learn(replace(OUTCOME, wall_ms=0.0), plan)
    following = stopping.plan([ROW], DEPTH).rule
    assert following is not None
    assert following._price_ms == VERIFY_MS[1]


def test_a_drafter_without_probabilities_is_learned_from_all_the_same() -> None:
    stopping = Stopping(table(), WIDEST)
    for _ in range(20):
        plan = stopping.plan([ROW], DEPTH)
        stopping.learn(RoundOutcome([RowOutcome(8, False, [], 7)], 8, 95.0, DEPTH), plan)
    following = stopping.plan([ROW], DEPTH).rule
    assert following is not None
    assert following._price_ms < 30.0


def test_a_row_that_may_not_draft_so_far_adds_nothing_to_what_further_drafts_promise() -> None:
    free, short, rider = (RoundRow(4, widest, sampled=False) for widest in (WIDEST, 2, 1))
    alone, beside = (
        StoppingRule(DraftCalibration(), COSTS_MS, STEP_MS, 30.0, rows) for rows in ([free], [free, short, rider])
    )
    for probability in (0.9, 0.6, 0.3):
        assert alone.goes_on([probability]) == beside.goes_on([probability, 0.99, 0.99])
    assert alone.worth_verifying()[0] == beside.worth_verifying()[0]


def test_every_row_gets_at_most_what_it_may_have() -> None:
    rows = [RoundRow(4, widest, sampled=False) for widest in (WIDEST, 3, 1)]
    stopping = Stopping(table(), WIDEST)
    plans = [stopping.plan(rows, DEPTH) for _ in range(40)]
    for plan in plans:
        if plan.rule is not None:
            assert plan.widths == [WIDEST, 3, 1]
        else:
            assert all(width <= row.widest for width, row in zip(plan.widths, rows, strict=True))
    assert any(plan.rule is None for plan in plans)


def test_tokens_of_a_wide_batch_do_not_price_those_of_a_single_stream() -> None:
    stopping = Stopping(table(), WIDEST)
    row = RowOutcome(4, False, [0.5] * 3, 3)
    for _ in range(100):
        stopping.learn(RoundOutcome([row] * 8, 32, 180.0, DEPTH), stopping.plan([ROW] * 8, DEPTH))
    single, wide = (stopping.plan([ROW] * rows, DEPTH).rule for rows in (1, 8))
    assert single is not None
    assert wide is not None
    assert single._price_ms == VERIFY_MS[1]
    assert wide._price_ms == pytest.approx(180.0 / 32, rel=0.05)


def test_drafts_that_are_not_verified_make_no_width_look_dear() -> None:
    # Rounds of one draft verified and six dropped, at what the table says that they cost.
    costs = []
    for drafts in (1, 7):
        stopping = Stopping(table(), WIDEST)
        row = RowOutcome(2, False, [0.5] * drafts, 1)
        for _ in range(60):
            stopping.learn(RoundOutcome([row], 2, cost_ms(2, drafts), DEPTH), None)
        rule = stopping.plan([ROW], DEPTH).rule
        assert rule is not None
        costs.append(rule._verify_ms[1] + rule._draft_step_ms)
    assert costs == pytest.approx([cost_ms(2)] * 2, rel=0.01)


@pytest.mark.parametrize("slower", [1.0, 1.6])
def test_uneven_rows_teach_the_cost_of_their_mean_width(slower: float) -> None:
    # Two rows of 1 and 7 drafts, where a verify costs what is in it: that of 4 drafts each, and seven drafts to make.
    stopping = Stopping(table(), WIDEST, apart=True)
    rows = [RowOutcome(2, False, [0.5] * 7, 1), RowOutcome(8, False, [0.5] * 7, 7)]
    wall_ms = slower * cost_ms(5, 7)
    for _ in range(60):
        stopping.learn(RoundOutcome(rows, 10, wall_ms, DEPTH), stopping.plan([ROW] * 2, DEPTH))
    rule = stopping.plan([ROW] * 2, DEPTH).rule
    assert rule is not None
    assert rule._verify_ms[4] == pytest.approx(wall_ms - 7 * rule._draft_step_ms, rel=0.03)
    assert rule._price_ms == pytest.approx(wall_ms / 10, rel=0.06)


@pytest.mark.parametrize("cheaper", [0.75, 0.85, 0.92])
def test_rows_whose_drafts_are_all_accepted_draft_on_where_every_round_is_cheaper_than_the_table(
    cheaper: float,
) -> None:
    # Of eight rows on a real two-core machine. At these costs, and at any share of them, K=4 pays most.
    costs_ms = {1: 53.1, 2: 75.3, 4: 131.2, 8: 261.3}
    cells = [CostCell(8, width, DEPTH, ms - 4.0 * (width - 1), 4.0 * (width - 1)) for width, ms in costs_ms.items()]
    stopping = Stopping(cells, WIDEST, apart=True)
    table_ms = stopping._costs_ms(DEPTH, 8)
    ran: list[int] = []
    for _ in range(60):
        plan = stopping.plan([ROW] * 8, DEPTH)
        made, drafts = min(plan.widths) - 1, [width - 1 for width in plan.widths]
        if plan.rule is not None:
            made = 1
            while plan.rule.goes_on([0.95] * 8) and made < WIDEST - 1:
                made += 1
            drafts = plan.rule.worth_verifying()
        rows = [RowOutcome(count + 1, False, [0.95] * made, min(made, count + 1)) for count in drafts]
        wall_ms = cheaper * between(table_ms, sum(drafts) / 8)
        stopping.learn(RoundOutcome(rows, sum(drafts) + 8, wall_ms, DEPTH), plan)
        ran.append(max(drafts) + 1)
    assert min(ran[-30:]) >= 4


DEAR_COSTS_MS = [50.0 + 43.0 * drafts for drafts in range(WIDEST)]


def rules_of(rows: int) -> list[StoppingRule]:
    """For rows that share their width, and for rows of which each costs its own."""
    return [
        StoppingRule(DraftCalibration(), DEAR_COSTS_MS, 3.0, 30.0, [ROW] * rows, apart=apart) for apart in (False, True)
    ]


def test_unlikely_drafts_are_left_out_row_by_row_where_each_costs_its_own() -> None:
    together, apart = rules_of(4)
    for one in (together, apart):
        for _ in range(4):
            one.goes_on([0.97, 0.03, 0.6, 0.6])
    assert len(set(together.worth_verifying())) == 1
    assert apart.worth_verifying() == [4, 1, 2, 2]


def test_drafting_goes_on_for_one_row_where_the_others_need_not_be_verified() -> None:
    together, apart = rules_of(4)
    probabilities = [0.97, 0.02, 0.02, 0.02]
    assert not together.goes_on(probabilities)
    assert apart.goes_on(probabilities)


def test_a_batch_is_priced_by_the_cells_of_its_own_width_and_least_depth() -> None:
    wide = [replace(cell, width=8, verify_ms=2 * cell.verify_ms, draft_ms=4 * cell.draft_ms) for cell in table()]
    deep = [replace(cell, depth_tokens=2048, draft_ms=20 * cell.draft_ms) for cell in table()]
    stopping = Stopping([*deep, *table(), *wide], WIDEST)
    for rows, cells in ((1, table()), (8, wide)):
        rule = stopping.plan([ROW] * rows, DEPTH).rule
        assert rule is not None
        assert rule._price_ms == pytest.approx(min(cell.verify_ms for cell in cells) / rows)
        assert rule._draft_step_ms == pytest.approx(cells[1].draft_ms)

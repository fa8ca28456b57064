"""The draft width follows acceptance and cost, on the costs of a real two-core machine."""

import dataclasses
import math
import random

import pytest
from tests.unit.policy.loop import MakeStep

from burstgate_policy.core.config import DepthConfig
from burstgate_policy.core.costs import CostTable
from burstgate_policy.core.depth import DepthController
from burstgate_policy.core.regime import regime
from burstgate_policy.core.types import CostCell, Mode, StepRecord

VERIFY_MS = {2: 74.0, 3: 76.0, 4: 78.0, 5: 81.5, 6: 85.0, 7: 90.0, 8: 95.0}
DRAFT_STEP_MS = 3.5
OVERHEAD_MS = 0.5
ACCEPTANCE = {"list": [0.98] * 7, "prose": [0.65, 0.5, 0.35, 0.3, 0.3, 0.3, 0.3]}
BURST_STEPS = 8


def round_ms(draft_width: int) -> float:
    return VERIFY_MS[draft_width] + DRAFT_STEP_MS * (draft_width - 1) + OVERHEAD_MS


def expected_tokens(kind: str, draft_width: int) -> float:
    reach = tokens = 1.0
    for rate in ACCEPTANCE[kind][: draft_width - 1]:
        reach *= rate
        tokens += reach
    return tokens


def best_fixed(text: list[str]) -> float:
    return max(sum(expected_tokens(kind, k) for kind in text) / (len(text) * round_ms(k)) for k in VERIFY_MS)


def controller(costs: list[CostCell], cap: int = 8, **constants: float) -> DepthController:
    return DepthController(cap=cap, costs=costs, config=DepthConfig(**constants))  # type: ignore[arg-type]


def played(depth: DepthController, text: list[str], seed: int, noise: float = 0.05) -> tuple[float, list[int]]:
    """Plays a text through the controller: tokens per millisecond and the width of every round."""
    rng = random.Random(seed)
    tokens = cost_ms = 0.0
    widths: list[int] = []
    for start in range(0, len(text), BURST_STEPS):
        k = depth.pick(width=1, depth_tokens=100 + start, max_draft_width=8).draft_width
        for kind in text[start : start + BURST_STEPS]:
            kept = 0
            while kept < k - 1 and rng.random() < ACCEPTANCE[kind][kept]:
                kept += 1
            depth.observe(record(k, kept, jitter=max(rng.gauss(1.0, noise), 0.5)))
            tokens += expected_tokens(kind, k)
            cost_ms += round_ms(k)
            widths.append(k)
    return tokens / cost_ms, widths


def record(draft_width: int, kept: int, *, jitter: float = 1.0, width: int = 1) -> StepRecord:
    verify_ms, draft_ms = VERIFY_MS[draft_width] * jitter, DRAFT_STEP_MS * (draft_width - 1) * jitter
    return StepRecord(
        mode=Mode.SPECULATIVE,
        draft_width=draft_width,
        width=width,
        depth_tokens=100,
        emitted=width * (kept + 1),
        proposed=width * (draft_width - 1),
        accepted_by_position=tuple(width if i < kept else 0 for i in range(draft_width - 1)),
        draft_ms=draft_ms,
        verify_ms=verify_ms,
        overhead_ms=OVERHEAD_MS,
        wall_ms=verify_ms + draft_ms + OVERHEAD_MS,
        excluded=False,
    )


def test_the_numbers_make_eight_right_for_lists_and_three_for_prose() -> None:
    def best(kind: str) -> int:
        return max(VERIFY_MS, key=lambda k: expected_tokens(kind, k) / round_ms(k))

    assert (best("list"), best("prose")) == (8, 3)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "text",
    [
        ["list"] * 400,
        ["prose"] * 400,
        (["list"] * 64 + ["prose"] * 64) * 4,
        (["prose"] * 128 + ["list"] * 128) * 2,
    ],
    ids=["list", "prose", "short mix", "long mix"],
)
def test_it_reaches_95_percent_of_the_best_fixed_width(costs: list[CostCell], text: list[str], seed: int) -> None:
    delivered, _ = played(controller(costs), text, seed)
    assert delivered >= 0.95 * best_fixed(text)


def test_on_a_mix_it_beats_every_fixed_width(costs: list[CostCell]) -> None:
    text = (["list"] * 128 + ["prose"] * 128) * 2
    delivered = [played(controller(costs), text, seed)[0] for seed in range(8)]
    assert sum(delivered) / 8 > 1.03 * best_fixed(text)


def test_it_follows_a_change_of_text_within_about_20_rounds(costs: list[CostCell]) -> None:
    text = ["prose"] * 152 + ["list"] * 64 + ["prose"] * 64
    wider, narrower = [], []
    for seed in range(16):
        _, widths = played(controller(costs), text, seed)
        wider.append(next((i for i, k in enumerate(widths[152:216]) if k >= 7), 64))
        narrower.append(next((i for i, k in enumerate(widths[216:]) if k <= 4), 64))
    assert sum(wider) / 16 <= 20
    assert sum(narrower) / 16 <= 24
    assert max(wider) <= 32


def test_a_machine_whose_rounds_cost_more_than_its_table_says_is_learned(costs: list[CostCell]) -> None:
    depth = controller(costs)
    widths = []
    for _ in range(100):
        k = depth.pick(width=1, depth_tokens=100, max_draft_width=8).draft_width
        widths.append(k)
        for _ in range(BURST_STEPS):
            depth.observe(record(k, k - 1, jitter=3.0 if k > 4 else 1.0))
    assert sum(k <= 4 for k in widths[20:]) >= 64


def test_the_price_of_a_plain_step_stays_while_only_rounds_run(costs: list[CostCell], make_step: MakeStep) -> None:
    """The table says less than rounds cost; what they are known to cost must not wander over to plain steps."""
    depth = controller(costs)
    at = regime(1, 100)
    for _ in range(4):
        depth.observe(make_step(Mode.PLAIN, plain_ms=68.0))
    for _ in range(1000):
        depth.observe(record(4, 1, jitter=2.0))
    assert depth.plain_ms(at) == pytest.approx(68.0, rel=0.01)
    assert depth.step_ms(at, 4) == pytest.approx(record(4, 1, jitter=2.0).wall_ms, rel=0.01)


def test_plain_steps_that_run_first_tell_the_level_of_the_machine(costs: list[CostCell], make_step: MakeStep) -> None:
    """What is twice as slow as its table is so in rounds as well, until they show otherwise."""
    depth = controller(costs)
    at = regime(1, 100)
    for _ in range(4):
        depth.observe(make_step(Mode.PLAIN, plain_ms=136.0))
    assert depth.plain_ms(at) == pytest.approx(136.0, rel=0.01)
    assert depth.step_ms(at, 4) == pytest.approx(2.0 * (78.0 + 3 * DRAFT_STEP_MS), rel=0.01)
    for _ in range(4):
        depth.observe(record(4, 1))
    assert depth.step_ms(at, 4) == pytest.approx(record(4, 1).wall_ms, rel=0.01)
    assert depth.plain_ms(at) == pytest.approx(136.0, rel=0.05)


def test_one_stalled_round_changes_nothing(costs: list[CostCell]) -> None:
    depth = controller(costs)
    for _ in range(40):
        depth.observe(record(8, 7))
    before = depth.pick(width=1, depth_tokens=100, max_draft_width=8)
    depth.observe(record(8, 7, jitter=1000.0))
    after = depth.pick(width=1, depth_tokens=100, max_draft_width=8)
    assert before.draft_width == after.draft_width == 8
    assert before.round_ms is not None
    assert after.round_ms is not None
    assert after.round_ms <= 1.16 * before.round_ms


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1e9])
def test_a_cost_that_no_clock_gives_is_left_out(costs: list[CostCell], wrong: float) -> None:
    depth = controller(costs)
    before = depth.pick(width=1, depth_tokens=100, max_draft_width=8).round_ms
    step = record(8, 0)
    depth.observe(StepRecord(Mode.SPECULATIVE, 8, 1, 100, 1, 7, step.accepted_by_position, 0.0, wrong, 0.0, 1.0, False))
    after = depth.pick(width=1, depth_tokens=100, max_draft_width=8)
    assert after.round_ms is not None
    assert after.draft_width != 8 or after.round_ms == before


@pytest.mark.parametrize("cap", [2, 3, 4, 8])
def test_without_costs_it_starts_at_four_or_the_cap(cap: int) -> None:
    choice = controller([], cap).pick(width=1, depth_tokens=10, max_draft_width=cap)
    assert (choice.draft_width, choice.round_ms) == (min(4, cap), None)


def test_without_a_table_it_learns_costs_and_explores_its_neighbours() -> None:
    depth = controller([], explore_every=4)
    seen = set()
    for _ in range(400):
        k = depth.pick(width=1, depth_tokens=10, max_draft_width=8).draft_width
        seen.add(k)
        depth.observe(record(k, k - 1))
    assert {4, 7, 8} <= seen
    assert depth.pick(width=1, depth_tokens=10, max_draft_width=8).draft_width >= 7


def test_trials_back_off_while_they_change_nothing(costs: list[CostCell]) -> None:
    depth = controller(costs)
    for k in (2, 3, 4, 5, 6, 7, *[8] * 10):
        for _ in range(3):
            depth.observe(record(k, k - 1))
    trials = []
    for i in range(1, 1100):
        choice = depth.pick(width=1, depth_tokens=100, max_draft_width=8)
        if choice.trial:
            trials.append(i)
            assert choice.draft_width == 7
    assert trials == [32, 96, 224, 480, 992]


def test_a_width_that_never_ran_here_is_tried_soon_if_it_might_be_better(costs: list[CostCell]) -> None:
    depth = controller(costs)
    for _ in range(30):
        depth.observe(record(8, 7))
    tried = []
    for i in range(1, 200):
        choice = depth.pick(width=1, depth_tokens=100, max_draft_width=8)
        if choice.trial:
            tried.append((i, choice.draft_width))
            for _ in range(3):
                depth.observe(record(choice.draft_width, choice.draft_width - 1))
    assert tried[:2] == [(8, 7), (16, 6)]
    assert 2 not in {k for _, k in tried}  # it could not be better, however wrong the table is


def test_the_slowest_stream_wants_a_narrower_verify_than_the_mean(costs: list[CostCell]) -> None:
    best = {}
    for objective in ("throughput", "latency"):
        depth = controller(costs, objective=objective)  # type: ignore[arg-type]
        for _ in range(60):
            kept = (7, 6, 6, 5, 5, 5, 4)
            depth.observe(dataclasses.replace(record(8, 0, width=8), emitted=8 + sum(kept), accepted_by_position=kept))
        gains = depth.gains((3, 0), 8)
        best[objective] = max(gains, key=gains.__getitem__), max(gains.values())
    assert best["latency"] < best["throughput"]
    assert best["latency"][1] < best["throughput"][1]


def test_rows_budgets_narrow_the_choice(costs: list[CostCell]) -> None:
    depth = controller(costs)
    for _ in range(30):
        depth.observe(record(8, 7))
    for narrow in (2, 3, 5):
        assert depth.pick(width=1, depth_tokens=100, max_draft_width=narrow).draft_width == narrow


def test_a_wider_batch_uses_its_own_costs() -> None:
    cells = [CostCell(1, k, 64, 68.0 + k, 0.0) for k in (1, 2, 4, 8)]
    cells += [CostCell(8, k, 64, 76.0 * k, 0.0) for k in (1, 2, 4, 8)]
    depth = controller(cells)
    for width in (1, 7, 1):
        choice = depth.pick(width=width, depth_tokens=100, max_draft_width=8)
        assert choice.draft_width == (2 if width == 7 else 8)
        assert choice.round_ms == pytest.approx(152.0 if width == 7 else 76.0)


def test_a_machine_that_slows_down_keeps_its_width_and_recovers(costs: list[CostCell]) -> None:
    depth = controller(costs)
    delivered = []
    for jitter in (1.0, 1.6, 1.0):
        widths = []
        for _ in range(25):
            k = depth.pick(width=1, depth_tokens=100, max_draft_width=8).draft_width
            widths.append(k)
            for _ in range(BURST_STEPS):
                depth.observe(record(k, k - 1, jitter=jitter))
        delivered.append(sum(widths) / len(widths))
    assert min(delivered) >= 7.0


def test_contradicting_counts_are_cut_to_what_is_possible(costs: list[CostCell]) -> None:
    depth = controller(costs)
    step = StepRecord(Mode.SPECULATIVE, 4, 2, 100, 99, 6, (9, 7, 8, 5, 5, 5, 5, 5, 5), 1.0, 80.0, 0.0, 81.0, False)
    for _ in range(50):
        depth.observe(step)
    choice = depth.pick(width=2, depth_tokens=100, max_draft_width=8)
    assert 1.0 <= choice.expected_tokens <= choice.draft_width


def test_the_table_reads_between_widths_and_never_below_its_ends() -> None:
    table = CostTable([CostCell(1, 2, 64, 80.0, 4.0), CostCell(1, 4, 64, 70.0, 8.0), CostCell(1, 6, 64, 90.0, 9.0)])
    curve = table.curve(width=1, depth_tokens=64, max_draft_width=9)
    assert curve is not None
    assert curve[2:7] == pytest.approx((84.0, 81.0, 78.0, 88.5, 99.0))
    assert curve[8] == pytest.approx(120.0)
    assert curve[1] == pytest.approx(87.0)


def test_cells_that_no_clock_gives_are_left_out() -> None:
    bad = [(math.nan, 0.0), (0.0, 1.0), (-1.0, 0.0), (5.0, math.inf), (5.0, -1.0)]
    assert not CostTable([CostCell(1, 2, 64, verify_ms, draft_ms) for verify_ms, draft_ms in bad])

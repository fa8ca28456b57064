"""Which arms run, in which order, and how the result names them."""

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from burstgate_bench.arms import Arm, ArmKind, abba, all_arms, by_arm, fixed_arm


def test_a_block_runs_every_arm_of_a_kind_in_turn_and_then_all_of_it_backwards() -> None:
    forwards = [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert abba(["a", "b"], [1, 2], 1) == [*forwards, *reversed(forwards)]


@given(arms=st.integers(1, 8), kinds=st.integers(1, 4), blocks=st.integers(1, 4))
def test_every_cell_runs_as_often_and_on_average_at_the_same_time(arms: int, kinds: int, blocks: int) -> None:
    order = abba(range(arms), range(kinds), blocks)
    assert set(Counter(order).values()) == {2 * blocks}
    moments = {cell: sum(at for at, other in enumerate(order) if other == cell) for cell in order}
    assert len(set(moments.values())) == 1


def test_fixed_arms_go_up_to_the_widest_verify_and_padding_is_measured_only_if_asked() -> None:
    arms = all_arms(4, openblas=False)
    assert [arm.draft_width for arm in arms if arm.kind is ArmKind.FIXED] == [2, 3, 4]
    assert Counter(arm.kind for arm in arms) == {
        ArmKind.MLX_LM: 1,
        ArmKind.CLASSIC: 1,
        ArmKind.AUTO: 1,
        ArmKind.FIXED: 3,
    }
    assert set(all_arms(4, openblas=True)) - set(arms) == {Arm(ArmKind.MLX_LM_ON_OPENBLAS)}


def test_fixed_widths_take_turns_over_the_prompts() -> None:
    assert [fixed_arm(place, 8).draft_width for place in range(9)] == [2, 3, 4, 5, 6, 7, 8, 2, 3]
    assert {fixed_arm(place, 2).draft_width for place in range(5)} == {2}


def test_the_result_line_has_fixed_arms_under_their_width() -> None:
    rates = {arm: {"prose": 10.0 + arm.draft_width / 3} for arm in all_arms(3, openblas=False)}
    assert json.loads(json.dumps(by_arm(rates))) == {
        "mlx_lm": {"prose": 10.0},
        "classic": {"prose": 10.0},
        "auto": {"prose": 10.0},
        "fixed": {"2": {"prose": 10.67}, "3": {"prose": 11.0}},
    }

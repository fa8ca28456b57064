"""The static gate's order and its hardware knowledge."""

import pytest

from burstgate_policy.core.static_gate import apple_gpu_generation, static_gate
from burstgate_policy.core.types import CostCell, LaneCapabilities


def capabilities(*, batchable: bool = True, generation: int = 0) -> LaneCapabilities:
    return LaneCapabilities(batchable=batchable, max_width=16, drafter_kind="mtp_head", apple_gpu_generation=generation)


def table(verify_ms: dict[int, float], draft_step_ms: float = 3.5) -> list[CostCell]:
    return [CostCell(1, k, 64, ms, draft_step_ms * (k - 1)) for k, ms in verify_ms.items()]


OPENBLAS = table({1: 68.0, 2: 74.0, 4: 78.0, 6: 95.0, 8: 84.0})
REFERENCE_BLAS = table({k: 140.0 * k for k in (1, 2, 4, 8)})


@pytest.mark.parametrize("pin", [True, False])
def test_an_operators_pin_beats_everything_in_both_directions(pin: bool) -> None:
    assert static_gate(capabilities(batchable=False), OPENBLAS, pin=pin).enabled is pin
    assert static_gate(capabilities(generation=17), [], pin=pin).enabled is pin


def test_a_target_that_cannot_batch_speculates_on_any_hardware() -> None:
    assert static_gate(capabilities(batchable=False, generation=13), REFERENCE_BLAS).enabled


@pytest.mark.parametrize(("generation", "enabled"), [(13, False), (14, False), (15, True), (16, True), (17, True)])
def test_apple_hardware_is_split_at_generation_15(generation: int, enabled: bool) -> None:
    assert static_gate(capabilities(generation=generation), []).enabled is enabled


def test_a_machine_whose_verify_costs_little_more_than_a_step_is_on() -> None:
    assert static_gate(capabilities(), OPENBLAS).enabled


def test_a_machine_where_k_rows_cost_k_steps_declines() -> None:
    assert not static_gate(capabilities(), REFERENCE_BLAS).enabled


def test_two_rows_may_cost_up_to_their_tokens_at_sixty_percent_acceptance() -> None:
    assert static_gate(capabilities(), table({1: 100.0, 2: 159.0}, 0.0)).enabled
    assert not static_gate(capabilities(), table({1: 100.0, 2: 161.0}, 0.0)).enabled


def test_drafting_time_is_charged() -> None:
    assert not static_gate(capabilities(), table({1: 100.0, 2: 110.0}, 60.0)).enabled


@pytest.mark.parametrize(
    "cells",
    [
        [],
        table({1: 68.0}),
        table({2: 74.0}),
        table({1: float("nan"), 2: 74.0}),
        table({1: 0.0, 2: 74.0}),
        table({1: 68.0, 2: float("inf")}),
    ],
)
def test_other_hardware_without_a_usable_table_declines(cells: list[CostCell]) -> None:
    assert not static_gate(capabilities(), cells).enabled


def test_the_answer_says_why_with_numbers() -> None:
    assert "1.14 plain steps" in static_gate(capabilities(), table({1: 68.0, 2: 74.0})).explanation


@pytest.mark.parametrize(
    ("chip", "generation"),
    [
        ("Apple M1", 13),
        ("Apple M1 Ultra", 13),
        ("Apple M2 Max", 14),
        ("Apple M3 Ultra", 15),
        ("Apple M4", 16),
        ("Apple M5 Max", 17),
        ("Apple M10 Pro", 22),
        ("Apple A17 Pro", 0),
        ("Apple M0", 0),
        ("Apple M3x", 0),
        ("AMD EPYC 9554", 0),
        ("Apple processor", 0),
        ("", 0),
    ],
)
def test_brand_strings_name_the_gpu_generation(chip: str, generation: int) -> None:
    assert apple_gpu_generation(chip) == generation

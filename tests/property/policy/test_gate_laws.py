"""Laws of the gate that hold for every sequence of steps."""

import math

from hypothesis import given
from hypothesis import strategies as st

from burstgate_policy.core.gate import GateMode, GateStep, MtpGate
from burstgate_policy.core.gate_config import SeedGateConfig

configs = st.sampled_from([SeedGateConfig(), SeedGateConfig(window_steps=3, settle_steps=0)])
walls = st.one_of(st.floats(1.0, 500.0), st.floats(allow_nan=True, allow_infinity=True))
actions = st.one_of(
    st.tuples(st.just("step"), walls, st.integers(0, 300), st.integers(0, 40)),
    st.tuples(st.just("depth"), st.just(0.0), st.integers(0, 2**32 - 1), st.just(1)),
)


def apply(gate: MtpGate, action: tuple[str, float, int, int]) -> None:
    kind, wall_ms, number, width = action
    if kind == "depth":
        gate.maybe_remeasure(number)
        gate.note_depth(number)
    elif gate.next_step() is GateStep.VERIFY:
        gate.record_verify(wall_ms, number, width)
    else:
        gate.record_plain(wall_ms, width)


@given(configs, st.lists(st.tuples(actions, st.integers(1, 40)), max_size=60))
def test_no_sequence_raises_or_gives_an_estimate_that_is_no_number(
    config: SeedGateConfig, story: list[tuple[tuple[str, float, int, int], int]]
) -> None:
    gate = MtpGate(config)
    for action, times in story:
        for _ in range(times):
            apply(gate, action)
        for mode in GateMode:
            tps = gate.tokens_per_second(mode)
            assert tps is None or (math.isfinite(tps) and tps >= 0.0)
        assert 0 <= gate.snapshot().window_steps < config.window_steps
        assert 0 <= gate.snapshot().losses < config.dwell_windows


@given(
    configs,
    st.lists(st.tuples(actions, st.integers(1, 40)), max_size=30),
    st.integers(1, 40),
    st.integers(1, 8),
    st.data(),
)
def test_a_grant_of_the_promised_steps_never_runs_past_a_decision(
    config: SeedGateConfig,
    story: list[tuple[tuple[str, float, int, int], int]],
    width: int,
    draft_width: int,
    data: st.DataObject,
) -> None:
    gate = MtpGate(config)
    for action, times in story:
        for _ in range(times):
            apply(gate, action)
    before, steps = gate.next_step(), gate.steps_until_change(width, draft_width)
    assert steps >= 1
    for _ in range(steps - 1):
        emitted = data.draw(st.integers(0, width * draft_width)) if steps < 20 else width * draft_width
        apply(gate, ("step", 50.0, emitted, width))
        assert gate.next_step() is before


@given(configs, st.lists(st.tuples(actions, st.integers(1, 40)), max_size=40))
def test_the_same_steps_give_the_same_gate(
    config: SeedGateConfig, story: list[tuple[tuple[str, float, int, int], int]]
) -> None:
    left, right = MtpGate(config), MtpGate(config)
    for action, times in story:
        for _ in range(times):
            apply(left, action)
            apply(right, action)
    assert left.snapshot() == right.snapshot()
    assert left.take_decision() is right.take_decision()

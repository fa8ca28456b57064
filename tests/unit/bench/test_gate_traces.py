"""Recorded runs: what a file may hold, and what another policy would have met."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.unit.bench.gate_worlds import Script, random

from burstgate_bench.gate.arms import ARMS
from burstgate_bench.gate.fixed import fixed_run
from burstgate_bench.gate.play import play
from burstgate_bench.gate.traces import LaneLine, TraceError, read_trace, trace_lines, world_of
from burstgate_policy.core.types import CostCell, Mode, StepRecord

CELLS = tuple(CostCell(1, k, 64, 40.0 + 5.0 * k, 2.0 * (k - 1)) for k in (1, 2, 4, 8))
LANE = LaneLine(hardware="a machine", draft_width=8, cells=CELLS)


def round_of(draft_width: int, kept: int, wall_ms: float = 90.0) -> StepRecord:
    return StepRecord(
        mode=Mode.SPECULATIVE,
        draft_width=draft_width,
        width=1,
        depth_tokens=100,
        emitted=kept + 1,
        proposed=draft_width - 1,
        accepted_by_position=tuple(int(at < kept) for at in range(draft_width - 1)),
        draft_ms=10.0,
        verify_ms=wall_ms - 12.0,
        overhead_ms=2.0,
        wall_ms=wall_ms,
        excluded=False,
    )


def plain_step(wall_ms: float = 50.0) -> StepRecord:
    return StepRecord(Mode.PLAIN, 1, 1, 100, 1, 0, (), 0.0, wall_ms, 0.0, wall_ms, excluded=False)


def write(file: Path, *streams: list[StepRecord]) -> Path:
    steps = [(f"answer {number}", step) for number, stream in enumerate(streams) for step in stream]
    file.write_text("\n".join(trace_lines(LANE, steps)) + "\n")
    return file


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    first, second = [round_of(8, 5), plain_step(), round_of(8, 0)], [round_of(8, 7)]
    trace = read_trace(write(tmp_path / "run.jsonl", first, second))
    assert trace.name == "run"
    assert trace.lane == LANE
    assert list(trace.streams.values()) == [tuple(first), tuple(second)]


def test_a_narrower_round_emits_one_and_what_it_would_have_kept(tmp_path: Path) -> None:
    stream = [round_of(8, 5), round_of(8, 0), round_of(8, 2)]
    world = world_of(read_trace(write(tmp_path / "run.jsonl", stream)), random(), 10)
    assert world.tokens == 6 + 1 + 3

    def emitted(k: int) -> list[int]:
        return np.diff(fixed_run(world, k).tokens, prepend=0).tolist()

    assert emitted(8) == [6, 1, 3]
    # 1 + min(5, 2), then the rest of what is known to be kept.
    assert emitted(3) == [3, 3, 1, 3]
    assert emitted(2) == [2, 2, 2, 1, 2, 1]
    assert emitted(1) == [1] * 10


def test_drafts_that_were_never_recorded_are_not_credited(tmp_path: Path) -> None:
    world = world_of(
        read_trace(write(tmp_path / "run.jsonl", [round_of(4, 3), plain_step(), round_of(4, 3)])), random(), 9
    )
    script = Script((Mode.SPECULATIVE, 8), burst_steps=1)
    play(world, script)
    assert [outcome.steps[0].emitted for outcome in script.outcomes] == [4, 1, 4]


def test_times_are_the_recorded_ones_and_the_table_corrected_where_nothing_ran(tmp_path: Path) -> None:
    stream = [round_of(8, 1, ms) for ms in (90.0, 100.0, 110.0)] + [plain_step(ms) for ms in (45.0, 50.0, 55.0)]
    world = world_of(read_trace(write(tmp_path / "run.jsonl", stream)), random(), 9)
    step_ms = world.machine.costs.step_ms
    assert step_ms(1, 8, 100) == pytest.approx(100.0)
    assert step_ms(1, 1, 100) == pytest.approx(50.0)
    # The table says 66 where it missed 94 by 100/94 and 45 by 50/45: the median factor corrects it.
    assert step_ms(1, 4, 100) == pytest.approx(66.0 * (100.0 / 94.0 + 50.0 / 45.0) / 2)
    assert world.machine.noise == pytest.approx([0.9, 1.0, 1.1, 0.9, 1.0, 1.1])


def test_a_step_of_no_answer_only_tells_times(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text(
        "\n".join(trace_lines(LANE, [("one", round_of(8, 3)), ("", round_of(2, 1, 66.0)), ("", plain_step())]))
    )
    world = world_of(read_trace(file), random(), 4)
    assert world.tokens == 4
    assert [world.machine.costs.step_ms(1, k, 100) for k in (1, 2, 8)] == pytest.approx([50.0, 66.0, 90.0])


def test_times_of_widths_that_ran_in_turn_are_believed_before_those_of_an_answer(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    steps = [("one", round_of(8, 3, 900.0)), ("", round_of(8, 1, 100.0)), ("", plain_step())]
    file.write_text("\n".join(trace_lines(LANE, steps)))
    world = world_of(read_trace(file), random(), 4)
    assert world.machine.costs.step_ms(1, 8, 100) == pytest.approx(100.0)
    assert world.machine.noise == pytest.approx([9.0, 1.0, 1.0])


def test_a_policy_can_be_scored_on_a_recorded_run(tmp_path: Path) -> None:
    draws = random(3)
    stream = [round_of(8, int(draws.integers(8)), float(draws.normal(90.0, 2.0))) for _ in range(200)]
    world = world_of(read_trace(write(tmp_path / "run.jsonl", stream, [plain_step()] * 30)), draws, 5000)
    assert play(world, ARMS["default"](world)).tokens[-1] == world.tokens >= 5000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: [], "the first line must describe the lane"),
        (lambda lines: lines[1:], "line 1: hardware: Field required"),
        (lambda lines: [lines[0], "{"], "line 2: the line: Invalid JSON"),
        (lambda lines: [lines[0], lines[1].replace('"width":1', '"width":2')], "line 2: width must be 1, not 2"),
        (lambda lines: [lines[0], lines[1].replace('"emitted"', '"emited"')], "line 2: step.emitted"),
        (lambda lines: [lines[0].replace('"draft_width":8', '"draft_width":9', 1), lines[1]], "line 1: draft_width"),
        (lambda lines: [lines[0], lines[2]], "no answer has a round"),
    ],
)
def test_a_trace_that_cannot_be_used_says_where_and_why(tmp_path: Path, change: object, words: str) -> None:
    file = write(tmp_path / "run.jsonl", [round_of(8, 1), plain_step()])
    file.write_text("\n".join(change(file.read_text().splitlines())))  # type: ignore[operator]
    with pytest.raises(TraceError, match=words) as caught:
        read_trace(file)
    assert str(file) in str(caught.value)


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere\.jsonl"):
        read_trace(tmp_path / "nowhere.jsonl")


def test_the_lines_are_plain_json(tmp_path: Path) -> None:
    lines = write(tmp_path / "run.jsonl", [round_of(8, 1)]).read_text().splitlines()
    assert json.loads(lines[0])["cells"][1] == {
        "width": 1,
        "draft_width": 2,
        "depth_tokens": 64,
        "verify_ms": 50.0,
        "draft_ms": 2.0,
    }
    assert json.loads(lines[1])["step"]["mode"] == Mode.SPECULATIVE

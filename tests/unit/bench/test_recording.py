"""The recorder: one width throughout, and nothing is written when nothing could be recorded."""

import os
import subprocess
import sys
from pathlib import Path

from tests.unit.bench.test_gate_traces import round_of

from burstgate_bench.recording_run import TurnGrants
from burstgate_policy.core.types import Mode, Situation


def test_grants_take_turns_as_far_as_the_rows_have_room() -> None:
    grants = TurnGrants()
    roomy = Situation(width=1, depth_tokens=10, min_emitted_tokens=0, eligible=True, max_draft_width=8)
    narrow = Situation(width=1, depth_tokens=10, min_emitted_tokens=0, eligible=True, max_draft_width=1)
    grants.start((1, 8))
    granted = [grants.next(situation) for situation in (roomy, roomy, roomy, narrow)]
    assert [grant.draft_width for grant in granted] == [1, 8, 1, 1]
    assert [grant.mode for grant in granted] == [Mode.PLAIN, Mode.SPECULATIVE, Mode.PLAIN, Mode.PLAIN]


def test_reported_steps_are_kept_in_order_until_the_next_start() -> None:
    grants = TurnGrants()
    grants.start((8,))
    steps = [round_of(8, kept) for kept in range(3)]
    for step in steps:
        grants.report(step)
    grants.idle()
    assert grants.steps == steps
    assert grants.idled.is_set()
    grants.start((8,))
    assert grants.steps == []
    assert not grants.idled.is_set()


def test_a_bad_setting_ends_with_code_2_and_leaves_no_file(tmp_path: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BURSTGATE_")}
    done = subprocess.run(
        [sys.executable, "-m", "burstgate_bench.recording", "--out", str(tmp_path / "trace.jsonl")],
        env={**inherited, "BURSTGATE_BLAS": "fast"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "BURSTGATE_BLAS=fast: must be one of auto, openblas, reference" in done.stderr
    assert not list(tmp_path.iterdir())

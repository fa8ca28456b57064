"""The cost table of the real pair, from one start to the next and to `burstgate models calibrate`."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningProcess
from tests.integration.decode.asking import Decode

import burstgate_decode
from burstgate.decode.v1 import decode_pb2

Start = Callable[..., RunningProcess]
Calibrate = Callable[..., subprocess.CompletedProcess[str]]
DRAFTER = Path(burstgate_decode.__file__).parent / "assets" / "smollm2-135m-mtp"
COMMAND_S = 240


@pytest.fixture
def cache(default_folder: Path, tmp_path: Path) -> Path:
    """A cache folder of the test's own, with the models and the BLAS of the machine's."""
    folder = tmp_path / "cache"
    folder.mkdir()
    for name in ("models", "blas"):
        shared = default_folder.parent.parent / name
        shared.mkdir(exist_ok=True)
        (folder / name).symlink_to(shared)
    return folder


@pytest.fixture
def calibrate(cache: Path) -> Calibrate:
    """Runs the command to its end, in a terminal of eighty columns."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = "from burstgate.cli.main import run; run()"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("BURSTGATE_")}
        return subprocess.run(
            [sys.executable, "-c", code, "models", "calibrate", *arguments],
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            env={**kept, "BURSTGATE_CACHE_DIR": str(cache), "COLUMNS": "80"},
            check=False,
        )

    return run


def costs_of(service: RunningProcess) -> list[Any]:
    connected = Decode(service.address, service.pid)
    try:
        return list(connected.stub.GetModel(decode_pb2.GetModelRequest()).costs)
    finally:
        connected.close()


def places_of(cells: list[Any]) -> set[tuple[int, int, int]]:
    return {(cell.width, cell.draft_width, cell.depth_tokens) for cell in cells}


def cost_events(service: RunningProcess) -> list[str]:
    return [line["event"] for line in service.lines if line["event"].startswith("costs_")]


def test_a_start_stores_its_table_for_the_next_one_and_for_the_command(
    start_decode: Start, calibrate: Calibrate, cache: Path
) -> None:
    first = start_decode(drafter=DRAFTER, cache_dir=cache)
    assert cost_events(first) == ["costs_measured"]
    measured = costs_of(first)
    assert {(1, 1, 64), (1, 8, 64)} <= places_of(measured)
    assert all(cell.verify_ms > 0 and (cell.draft_ms > 0) is (cell.draft_width > 1) for cell in measured)
    first.stop()
    (file,) = (cache / "costs").iterdir()
    assert len(json.loads(file.read_text())["cells"]) == len(measured)

    second = start_decode(drafter=DRAFTER, cache_dir=cache)
    # A machine that got busy meanwhile may rightly not trust the table; it has looked at it all the same.
    assert cost_events(second) in (
        ["costs_read"],
        ["costs_outdated", "costs_measured"],
        ["costs_incomplete", "costs_measured"],
    )
    if cost_events(second) == ["costs_read"]:
        assert costs_of(second) == measured
    second.stop()
    assert list((cache / "costs").iterdir()) == [file]

    picture = cache / "costs.svg"
    done = calibrate("--json", "--plot", str(picture))
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["key"]["draft_width"] == 8
    assert {"width": 1, "draft_width": 1, "depth_tokens": 64}.items() <= document["cells"][0].items()
    assert document["places"][0]["tokens_to_pay"]["1"] == 1.0
    assert set(document["places"][0]["best_at_acceptance"]) == {"0.6", "0.8"}
    assert "yield at 80%" in picture.read_text()
    assert list((cache / "costs").iterdir()) == [file]


def test_a_cache_folder_that_cannot_be_used_stops_no_start(start_decode: Start, cache: Path) -> None:
    (cache / "costs").write_text("not a folder")
    service = start_decode(drafter=DRAFTER, cache_dir=cache)
    assert cost_events(service) == ["costs_file_ignored", "costs_measured", "costs_not_stored"]
    warnings = service.events("costs_file_ignored") + service.events("costs_not_stored")
    assert [line["level"] for line in warnings] == ["warning", "warning"]
    assert all(str(cache / "costs") in line["why"] for line in warnings)
    assert {(1, 1, 64), (1, 8, 64)} <= places_of(costs_of(service))


def test_the_command_prints_tables_and_a_plot_that_fit_a_terminal(calibrate: Calibrate, cache: Path) -> None:
    done = calibrate("--fresh", "--draft-width", "4", "--max-active-rows", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    for words in ("K<=4", "measured just now", "K=4", "at 60% acceptance", "batch 1"):
        assert words in done.stdout
    assert "batch 2" not in done.stdout
    (file,) = (cache / "costs").iterdir()
    assert json.loads(file.read_text())["key"]["max_width"] == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--drafter", "none"], "there are no rounds to measure, because the server has no drafter"),
        (["--target", "/nowhere"], "/nowhere is neither a folder nor a hub repository like owner/name"),
        (["--drafter", "/nowhere"], "/nowhere is neither a folder nor a hub repository like owner/name"),
    ],
)
def test_a_pairing_that_cannot_be_measured_is_one_line(
    calibrate: Calibrate, arguments: list[str], complaint: str
) -> None:
    done = calibrate(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"burstgate: {complaint}")
    assert line.endswith(")")

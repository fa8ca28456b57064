"""The command, in a process of its own and in this one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.bench.test_gate_traces import round_of, write
from typer import Typer
from typer.testing import CliRunner, Result

from burstgate_bench.gate.__main__ import main

APP = Typer()
APP.command()(main)


def run(*args: str) -> Result:
    return CliRunner().invoke(APP, ["--workloads", "1", "--steps", "200", "--processes", "1", *args])


def test_it_ends_with_one_json_object() -> None:
    result = run("--families", "single_stream, wide")
    assert result.exit_code == 0
    line = json.loads(result.stdout.splitlines()[-1])
    assert set(line) == {"median", "p10", "plain_p5", "probe_share", "seed_median", "by_family"}
    assert set(line["by_family"]) == {"single_stream", "wide"}
    assert set(line["by_family"]["wide"]) == set(line) - {"by_family"}
    for word in ("acceptance", "bandit", "K=8", "plain"):
        assert word in result.stdout


def test_processes_beside_each_other_change_no_number() -> None:
    args = ("-m", "burstgate_bench.gate", "--workloads", "3", "--steps", "200", "--families", "contexts")
    lines = [
        subprocess.run(
            [sys.executable, *args, "--processes", processes], capture_output=True, text=True, timeout=120, check=True
        ).stdout.splitlines()[-1]
        for processes in ("1", "2")
    ]
    assert lines[0] == lines[1]


def test_the_record_holds_the_seeds_and_the_plot_is_drawn(tmp_path: Path) -> None:
    result = run("--families", "drift", "--seed", "9", "--out", str(tmp_path / "results"))
    assert result.exit_code == 0
    (record,), (plot,) = ((tmp_path / "results").glob(f"gate-*.{suffix}") for suffix in ("json", "svg"))
    content = json.loads(record.read_text())
    assert content["options"]["seed"] == 9
    assert content["line"] == json.loads(result.stdout.splitlines()[-1])
    assert len(content["worlds"]["drift"]["default"]["score"]) == 1
    assert content["families"]["drift"]["K=8"]["worlds"] == 1
    assert "longest_wrong" in content["families"]["drift"]["default"]
    assert "longest_wrong" not in content["families"]["drift"]["K=8"]
    assert plot.read_text().lstrip().startswith("<?xml")


def test_a_recorded_run_is_one_more_family(tmp_path: Path) -> None:
    file = write(tmp_path / "monday.jsonl", [round_of(8, at % 8) for at in range(60)])
    result = run("--families", "none", "--trace", str(file))
    assert result.exit_code == 0
    assert list(json.loads(result.stdout.splitlines()[-1])["by_family"]) == ["trace monday"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--families", "single_steam"), "'single_steam' is none of single_stream, "),
        (("--arms", "default,best"), "'best' is none of default, "),
        (("--trace", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--workloads", "0"), "--workloads"),
    ],
)
def test_a_wrong_option_ends_with_code_2_and_is_named(args: tuple[str, ...], words: str) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert words in " ".join(result.output.replace("│", " ").split())


def test_it_needs_neither_mlx_nor_a_connection() -> None:
    code = "import sys, burstgate_bench.gate.__main__; sys.exit('mlx' in sys.modules or 'grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0

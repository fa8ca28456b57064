"""The commands before they load anything, in processes of their own."""

import os
import subprocess
import sys

import pytest


def run(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BURSTGATE_")}
    return subprocess.run(
        [sys.executable, *args], env={**inherited, **variables}, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_commands_leave_mlx_alone_until_the_blas_is_chosen() -> None:
    names = ("quick", "equality", "engine", "hindsight", "products", "stopping")
    modules = ", ".join(f"burstgate_bench.{name}" for name in names)
    code = f"import sys, {modules}; sys.exit('mlx.core' in sys.modules)"
    assert run("-c", code).returncode == 0


@pytest.mark.parametrize("command", ["quick", "equality", "engine", "hindsight", "products", "stopping"])
def test_a_bad_setting_ends_with_code_2_and_names_the_variable(command: str) -> None:
    done = run("-m", f"burstgate_bench.{command}", BURSTGATE_BLAS="fast")
    assert done.returncode == 2
    assert "BURSTGATE_BLAS=fast: must be one of auto, openblas, reference" in done.stderr
    assert done.stdout == ""


def test_answers_too_short_to_time_are_refused() -> None:
    assert run("-m", "burstgate_bench.quick", "--tokens", "4").returncode == 2


def test_a_group_of_prompts_that_there_is_not_is_refused_before_anything_is_loaded() -> None:
    done = run("-m", "burstgate_bench.equality", "--sample", "20", "--group", "4", COLUMNS="200")
    assert done.returncode == 2
    assert "20 prompts have no group 4" in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--texts", "verse", "verse is none of enumeration, code, prose, mix"),
        ("--streams", "0", "must be whole numbers from 1 on"),
        ("--widths", "2,x", "must be whole numbers from 2 on"),
    ],
)
def test_a_hindsight_option_that_cannot_be_is_refused_before_anything_is_loaded(
    option: str, value: str, says: str
) -> None:
    done = run("-m", "burstgate_bench.hindsight", option, value, COLUMNS="200")
    assert done.returncode == 2
    assert says in done.stderr


def test_a_part_of_the_engine_benchmark_that_there_is_not_is_refused_before_anything_is_loaded() -> None:
    done = run("-m", "burstgate_bench.engine", "--part", "warmth", COLUMNS="200")
    assert done.returncode == 2
    assert "'warmth' is not one of 'single', 'batch', 'auto', 'first-token', 'grpc', 'host'" in done.stderr

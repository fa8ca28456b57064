"""A hardware label names what changes the price of a step, and says it the same way every time."""

import platform
import re
import subprocess
import sys

import mlx.core as mx
import pytest

from burstgate_decode.models.hardware import apple_gpu_generation, apple_label, cpu_label, detect_hardware


@pytest.mark.parametrize(
    ("brand", "cores", "label"),
    [("Apple M5 Max", 16, "M5-16c"), ("Apple M1", 4, "M1-4c"), ("VirtualApple", 3, "apple-3c")],
)
def test_an_apple_label_is_the_generation_and_the_performance_cores(brand: str, cores: int, label: str) -> None:
    assert apple_label(brand, cores) == label


@pytest.mark.parametrize(
    ("architecture", "generation"), [("applegpu_g13g", 13), ("applegpu_g16s", 16), ("sm_90", 0), ("", 0)]
)
def test_the_gpu_generation_is_read_from_the_metal_architecture(architecture: str, generation: int) -> None:
    assert apple_gpu_generation(architecture) == generation


@pytest.mark.parametrize(
    ("model", "label"),
    [
        ("AMD EPYC", "x86_64-amd-epyc-2c"),
        ("Intel(R) Xeon(R) Platinum 8488C CPU @ 2.40GHz", "x86_64-intel-xeon-platinum-8488c-2c"),
        ("AMD EPYC 9B14 96-Core Processor", "x86_64-amd-epyc-9b14-2c"),
        ("", "x86_64-2c"),
    ],
)
def test_a_cpu_label_leaves_out_clock_rates_and_trade_marks(model: str, label: str) -> None:
    assert cpu_label("x86_64", model, 2) == label


def test_this_machine_is_described_by_the_device_mlx_computes_on() -> None:
    hardware = detect_hardware()
    if mx.default_device().type == mx.cpu:
        assert hardware.backend == "cpu"
        assert hardware.apple_gpu_generation == 0
        assert hardware.label.startswith(platform.machine().lower())
    elif sys.platform == "darwin":
        assert hardware.backend == "metal"
        assert hardware.apple_gpu_generation >= 13
    else:
        assert hardware.backend == "cuda"
    assert hardware == detect_hardware()


def test_only_the_cores_this_process_may_use_count() -> None:
    can_narrow = sys.platform == "linux"
    narrow = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" if can_narrow else ""
    script = (
        "import mlx.core as mx; mx.set_default_device(mx.cpu)\n"
        "from burstgate_decode.models.hardware import detect_hardware; print(detect_hardware().label)"
    )
    done = subprocess.run([sys.executable, "-c", narrow + script], capture_output=True, text=True, check=True)
    assert re.search(r"-1c$" if can_narrow else r"-\d+c$", done.stdout.strip())

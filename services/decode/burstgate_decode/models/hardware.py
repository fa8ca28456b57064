"""Says what the models run on, in the words a policy key uses.

A label names what changes the price of a step (chip, cores), never a host. It must not decide anything.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import mlx.core as mx

Backend = Literal["metal", "cuda", "cpu"]

_SYSCTL_TIMEOUT_S: Final = 5
_CPUINFO: Final = Path("/proc/cpuinfo")
# The names that Linux kernels have for a processor's model, across architectures.
_CPU_MODEL_KEYS: Final = ("model name", "Model", "uarch", "cpu model", "cpu")


@dataclass(frozen=True)
class Hardware:
    """What the models run on."""

    label: str
    """Such as `M5-16c`, `x86_64-amd-epyc-2c` or `nvidia-h200`."""
    backend: Backend
    apple_gpu_generation: int
    """The generation of Apple's GPU architecture, 0 elsewhere."""


def detect_hardware() -> Hardware:
    """Look at the device MLX computes on."""
    if mx.default_device().type == mx.cpu:
        return Hardware(label=_cpu_label(), backend="cpu", apple_gpu_generation=0)
    info = mx.device_info()
    if mx.metal.is_available():
        architecture = str(info.get("architecture", ""))
        return Hardware(_apple_label(), "metal", apple_gpu_generation(architecture))
    return Hardware(_slug(str(info.get("device_name") or "nvidia-gpu")), "cuda", 0)


def apple_gpu_generation(architecture: str) -> int:
    """The generation in a Metal architecture name: 16 for `applegpu_g16s`, 0 if there is none."""
    found = re.match(r"applegpu_g(\d+)", architecture)
    return int(found.group(1)) if found else 0


def apple_label(brand: str, performance_cores: int) -> str:
    """`M3-12c` from the brand `Apple M3 Max` and its 12 performance cores, which tell its sizes apart."""
    chip = re.search(r"\b[AM]\d+", brand)
    return f"{chip.group() if chip else 'apple'}-{performance_cores}c"


def cpu_label(machine: str, model: str, cores: int) -> str:
    """`x86_64-amd-epyc-2c` from an architecture, a processor's name and the cores this process may use."""
    return "-".join(part for part in (machine.lower(), _slug(model), f"{cores}c") if part)


def _apple_label() -> str:
    cores = _sysctl("hw.perflevel0.logicalcpu")
    return apple_label(_sysctl("machdep.cpu.brand_string"), int(cores) if cores.isdecimal() else _usable_cores())


def _cpu_label() -> str:
    if sys.platform == "darwin":
        return _apple_label()
    return cpu_label(platform.machine(), _cpu_model(), _usable_cores())


def _cpu_model() -> str:
    try:
        lines = _CPUINFO.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return next((values[key] for key in _CPU_MODEL_KEYS if values.get(key)), "")


def _usable_cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _sysctl(name: str) -> str:
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name],
            capture_output=True,
            text=True,
            timeout=_SYSCTL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _slug(name: str) -> str:
    """A name in lower case without trade marks, clock rates and core counts."""
    plain = re.sub(r"\((r|tm)\)|@.*|\b\d+-core\b|\b(cpu|processor)\b", " ", name.lower())
    return "-".join(re.findall(r"[a-z0-9.]+", plain))

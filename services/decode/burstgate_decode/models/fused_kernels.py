"""Has MLX compile its fused element-wise operations for the processor at hand, on Linux and x86-64.

MLX builds them with the system's g++ for any processor of the architecture and without inlining, so that an activation
is a chain of calls for each single element. A `g++` of our own, found first, adds what lets the compiler use vectors.
Nothing it adds lets a result change, which is checked. Kernels are kept in our cache instead of a folder that all users
of the machine may write to, and where another process may have left MLX's own.
"""

import hashlib
import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

import mlx.core as mx

from burstgate_decode.models.blas import processor_name

_COMPILER: Final = "g++"
_FLAGS: Final = (
    "-march=native",
    # A fused multiply-add where the source has none rounds once instead of twice.
    "-ffp-contract=off",
    "-fno-trapping-math",
    "-fno-math-errno",
    "-finline-limit=10000",
)
_SCRIPT: Final = """#!/bin/sh
{compiler} "$@" {flags} 2>/dev/null || exec {compiler} "$@"
"""
# The name tells them in a PATH that was inherited from a process of ours.
_BIN: Final = "burstgate-bin"
_PROBES: Final = 4099  # odd, so that what vectors leave over is looked at too


def use_native_kernels(cache: Path, environ: MutableMapping[str, str] | None = None) -> str | None:
    """Set the process up so that MLX builds its kernels for this processor, in a folder of `cache`.

    Changes `PATH` and `TMPDIR` of the process, which is where MLX finds compiler and kernels. Returns why it was left
    or put back; None otherwise, also where there is nothing to gain. Kernels that MLX has loaded already stay.
    """
    environ = os.environ if environ is None else environ
    if sys.platform != "linux" or platform.machine() != "x86_64" or mx.default_device() != mx.Device(mx.cpu):
        return None
    search = [folder for folder in environ.get("PATH", os.defpath).split(os.pathsep) if not _is_ours(folder)]
    compiler = shutil.which(_COMPILER, path=os.pathsep.join(search))
    if compiler is None:
        return "there is no g++ to build them with; install it, such as with the package g++"
    identity = (compiler, _FLAGS, processor_name())
    folder = cache / hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
    try:
        # What lies here is run, so nobody else may write to it.
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write_compiler(folder / _BIN, compiler)
    except OSError as error:
        return f"the cache {cache} cannot be used ({error})"
    before = {name: environ.get(name) for name in ("PATH", "TMPDIR")}
    environ["PATH"] = os.pathsep.join([str(folder / _BIN), *search])
    environ["TMPDIR"] = str(folder)
    try:
        if _bits_are_kept():
            return None
        note = f"those that {compiler} builds for this processor round otherwise"
    except RuntimeError as error:
        note = f"those that {compiler} builds in {folder} cannot be used ({error})"
    for name, value in before.items():
        if value is None:
            del environ[name]
        else:
            environ[name] = value
    return note


def _is_ours(folder: str) -> bool:
    return Path(folder).name == _BIN


def _write_compiler(folder: Path, compiler: str) -> None:
    folder.mkdir(exist_ok=True)
    script = _SCRIPT.format(compiler=shlex.quote(compiler), flags=shlex.join(_FLAGS))
    target = folder / _COMPILER
    if target.is_file() and os.access(target, os.X_OK) and target.read_text() == script:
        return
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as new:
        written = Path(new) / _COMPILER
        written.write_text(script)
        written.chmod(0o700)
        written.replace(target)


def _bits_are_kept() -> bool:
    """Whether fused operations agree in every bit with MLX's own operations one by one."""
    # Both signs and every order of magnitude that an exponential tells apart.
    x = mx.linspace(-1, 1, _PROBES) * mx.exp(mx.linspace(-28, 6, _PROBES))
    fused, alone = mx.compile(_activations)(x), _activations(x)
    return all(bool(mx.array_equal(*pair, equal_nan=True)) for pair in zip(fused, alone, strict=True))


def _activations(x: mx.array) -> list[mx.array]:
    """What models fuse: each has products and sums that a compiler might contract."""
    return [
        x * mx.sigmoid(x) * (x + 1),
        x * (1 + mx.erf(x / 2)) / 2,
        x * (1 + mx.tanh(x + x * x * x)),
        x * mx.cos(x) + (1 - x) * mx.sin(x),
        mx.logaddexp(x, mx.array(0.0)) * mx.rsqrt(x * x + 1),
    ]

"""Puts OpenBLAS under MLX on Linux CPUs, and says in plain words what holds when it cannot.

MLX's Linux wheel computes float32 products with a reference BLAS that is several times slower, and on which a
verify of K rows costs K plain steps. A small library of ours (`blas_shim.c`) exports the one symbol MLX needs
and forwards it to the OpenBLAS of the `scipy-openblas32` package; loaded before MLX, it is found first.

This must run before anything imports mlx, so it never imports mlx itself. It must not know models.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from burstgate_decode.models.errors import BlasError

BlasChoice = Literal["auto", "openblas", "reference"]

_SOURCES: Final = tuple(
    Path(__file__).with_name(name)
    for name in (
        "blas_shim.c",
        "helpers.c",
        "helpers.h",
        "lanes.h",
        "product_by_columns.c",
        "product_by_rows.c",
        "products.h",
    )
)
_COMPILERS: Final = ("cc", "gcc", "clang")
# The sums of the shim's own products must not depend on where a compiler finds a fused multiply-add.
_FLAGS: Final = ("-O3", "-std=gnu11", "-ffp-contract=off", "-shared", "-fPIC", "-pthread")
_COMPILE_TIMEOUT_S: Final = 120
_PRICE: Final = (
    "MLX's reference BLAS stays in place: plain decoding is several times slower, "
    "and speculation cannot pay because K rows cost as much as K steps."
)


@dataclass(frozen=True)
class BlasReport:
    """Which BLAS float32 products run on."""

    name: str
    """`openblas-0.3.34`, `reference`, or empty where no choice exists (Metal, Accelerate)."""
    active: bool
    """Whether OpenBLAS is in place."""
    note: str | None = None
    """What it costs that OpenBLAS is not in place and what to do, or where a temporary build went."""
    library: ctypes.CDLL | None = field(default=None, repr=False, compare=False)

    def set_exact_rows(self, on: bool) -> None:
        """Make row i of a product independent of how many rows it has.

        Products of up to 256 rows are then computed by the shim, in an order that depends neither on the number of rows
        nor, in attention, on masked keys; larger ones are OpenBLAS's all the same. Nothing happens without OpenBLAS:
        the reference BLAS has this property by itself.
        """
        if self.library is None:
            return
        self.library.burstgate_set_exact_rows(on)
        global _exact_rows  # noqa: PLW0603  (of the process, as the library is)
        _exact_rows = on

    @property
    def exact_rows(self) -> bool:
        """What was set last."""
        return _exact_rows

    def calls(self) -> int:
        """How many products have gone through OpenBLAS so far; 0 without it."""
        return int(self.library.burstgate_calls()) if self.library is not None else 0

    def threads(self) -> int:
        """How many threads OpenBLAS multiplies with; 0 without it."""
        return int(self.library.scipy_openblas_get_num_threads()) if self.library is not None else 0


def install_blas(
    choice: BlasChoice = "auto", cache: Path | None = None, environ: Mapping[str, str] | None = None
) -> BlasReport:
    """Put OpenBLAS under MLX for the life of this process; must run before mlx is imported.

    `auto` falls back to the reference BLAS with a note, `openblas` raises `BlasError` instead, `reference`
    does nothing. A second call returns what the first one did. The build is kept in `cache`, else in
    ~/.cache/burstgate/blas (XDG_CACHE_HOME is honoured).
    """
    global _installed  # noqa: PLW0603  a process has one BLAS, whoever asks
    with _lock:
        if _installed is None:
            _installed = _install(choice, cache, os.environ if environ is None else environ)
        report = _installed
    if choice == "openblas" and not report.active:
        raise BlasError("BLAS_UNAVAILABLE", report.note or "OpenBLAS is only used on Linux CPUs.")
    if choice == "reference" and report.active:
        raise BlasError("BLAS_ALREADY_ACTIVE", "OpenBLAS is already in place and stays until the process ends.")
    return report


_lock = threading.Lock()  # guards _installed: two threads must not load two builds
_installed: BlasReport | None = None
_exact_rows = False


class _UnavailableError(Exception):
    """Why OpenBLAS cannot be put in place, with what to install."""


def _install(choice: BlasChoice, cache: Path | None, environ: Mapping[str, str]) -> BlasReport:
    if sys.platform != "linux":
        return BlasReport(name="", active=False)
    if choice == "reference":
        return BlasReport(name="reference", active=False, note=_PRICE + " It was chosen.")
    if "mlx.core" in sys.modules:
        raise BlasError(
            "BLAS_TOO_LATE",
            "mlx was imported before the BLAS was chosen; call install_blas() first in the process.",
        )
    try:
        openblas = _find_openblas()
        library, note = _load_shim(openblas, cache or _default_cache(environ), environ)
    except _UnavailableError as error:
        return BlasReport(name="reference", active=False, note=f"{error} {_PRICE}")
    return BlasReport(name=f"openblas-{openblas.version}", active=True, note=note, library=library)


@dataclass(frozen=True)
class _OpenBlas:
    library: Path
    include: Path
    version: str


def _find_openblas() -> _OpenBlas:
    try:
        package = importlib.import_module("scipy_openblas32")
        folder = Path(package.get_lib_dir())
        library = folder / package.get_library(fullname=True)
        config = ctypes.CDLL(str(library)).scipy_openblas_get_config
        config.restype = ctypes.c_char_p
        version = ".".join(config().decode().split()[1].split(".")[:3])
        return _OpenBlas(library.resolve(), Path(package.get_include_dir()).resolve(), version)
    except ImportError as error:
        raise _UnavailableError(
            "The package scipy-openblas32 is missing; install it with `pip install scipy-openblas32`."
        ) from error
    except (OSError, AttributeError, IndexError) as error:
        raise _UnavailableError(
            f"The package scipy-openblas32 cannot be used ({error}); "
            "reinstall it with `pip install --force-reinstall scipy-openblas32`."
        ) from error


def _load_shim(openblas: _OpenBlas, cache: Path, environ: Mapping[str, str]) -> tuple[ctypes.CDLL, str | None]:
    source = b"".join(path.read_bytes() for path in _SOURCES)
    identity = (source, openblas.version, openblas.library, _FLAGS, processor_name())
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
    target = cache / f"libburstgate_blas-{digest}.so"
    if target.is_file():
        try:
            return _load(target), None
        except OSError:
            pass  # damaged: built anew below
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=cache) as build:
            _compile(openblas, Path(build) / target.name, environ).replace(target)
            return _load(target), None
    except OSError as error:
        note = f"The BLAS cache {cache} cannot be used ({error}), so the shim was built in a temporary folder."
    # Unlinking a loaded library is harmless on Linux, so that nothing is left behind.
    with tempfile.TemporaryDirectory(prefix="burstgate-blas-") as build:
        try:
            return _load(_compile(openblas, Path(build) / target.name, environ)), note
        except OSError as error:
            raise _UnavailableError(f"The BLAS shim was built but cannot be loaded ({error}).") from error


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    library.burstgate_set_exact_rows.argtypes = [ctypes.c_int]
    library.burstgate_calls.restype = ctypes.c_ulong
    return library


def _compile(openblas: _OpenBlas, target: Path, environ: Mapping[str, str]) -> Path:
    compiler = _compiler(environ)
    inputs = [
        f"-I{openblas.include}",
        *(str(path) for path in _SOURCES if path.suffix == ".c"),
        str(openblas.library),
        f"-Wl,-rpath,{openblas.library.parent}",
    ]
    stderr = ""
    # Not every compiler knows this processor by name; the shim is correct without, only slower.
    for extra in (["-march=native"], []):
        command = [*compiler, *_FLAGS, *extra, *inputs, "-o", str(target)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_COMPILE_TIMEOUT_S,
                check=False,
                env=dict(environ),
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _UnavailableError(f"The C compiler {shlex.join(compiler)} cannot be run ({error}).") from error
        if done.returncode == 0 and target.is_file():
            return target
        stderr = done.stderr
    last = (stderr.strip().splitlines() or ["no message"])[-1]
    raise _UnavailableError(
        f"The C compiler {shlex.join(compiler)} could not build the BLAS shim ({last}); "
        "install a working gcc or clang with the C library's headers."
    )


def _compiler(environ: Mapping[str, str]) -> list[str]:
    chosen = shlex.split(environ.get("CC", ""))
    if chosen:
        return chosen
    for name in _COMPILERS:
        if found := shutil.which(name, path=environ.get("PATH")):
            return [found]
    raise _UnavailableError(
        "There is no C compiler (cc, gcc or clang; or set CC); install one, such as the gcc package."
    )


def processor_name() -> str:
    """What a compiler may build for here: a home folder can be shared by unlike machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    kinds = ("model name", "flags", "Features", "CPU part")
    return platform.machine() + "".join(sorted({line for line in lines if line.startswith(kinds)}))


def _default_cache(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME") or ""
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "burstgate" / "blas"

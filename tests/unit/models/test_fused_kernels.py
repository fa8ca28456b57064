"""MLX's fused kernels are built for this processor, give the same bits, and fall back to MLX's own."""

from collections.abc import Callable
from pathlib import Path

import pytest

RunScript = Callable[..., str]

START = """
import os
from pathlib import Path
from burstgate_decode.models.fused_kernels import use_native_kernels
import mlx.core as mx, numpy as np
from mlx_lm.models.activations import swiglu
before = dict(os.environ)

def digest():
    import hashlib
    # One in a thousand of all floats there are, whatever their size and sign.
    every = np.arange(0, 1 << 32, 1009, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = mx.array(every[~np.isnan(every)])
    return hashlib.sha256(np.array(swiglu(x, mx.ones_like(x))).tobytes()).hexdigest()
"""


def kernels(cache: Path) -> list[Path]:
    return list(cache.glob("*/mlx/*/cpu/*.so"))


def compiler(folder: Path, body: str) -> str:
    """A PATH on which `g++` is a script."""
    folder.mkdir()
    script = folder / "g++"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_kernels_for_this_processor_have_the_bits_of_mlx_own(run_script: RunScript, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    own = run_script(START + "print(digest())", {"TMPDIR": str(tmp_path / "own")})
    native = f"print(use_native_kernels(Path({str(tmp_path / 'cache')!r})), digest())"
    assert run_script(START + native) == f"None {own}"
    assert kernels(tmp_path / "cache")
    (folder,) = (tmp_path / "cache").iterdir()
    assert folder.stat().st_mode & 0o077 == 0


def test_they_are_built_with_vectors(run_script: RunScript, tmp_path: Path) -> None:
    log = tmp_path / "log"
    path = compiler(tmp_path / "bin", f'echo "$@" >> {log}; exec /usr/bin/g++ "$@"')
    script = START + f"print(use_native_kernels(Path({str(tmp_path)!r})))\nmx.eval(swiglu(mx.ones(9), mx.ones(9)))"
    assert run_script(script, {"PATH": path}) == "None"
    commands = [line for line in log.read_text().splitlines() if line.endswith("-finline-limit=10000")]
    assert len([line for line in commands if "-shared" in line]) == len(kernels(tmp_path)) > 1


def test_a_process_that_inherits_the_path_finds_the_real_compiler(run_script: RunScript, tmp_path: Path) -> None:
    printed = run_script(
        START
        + f"""
import subprocess, sys
cache = Path({str(tmp_path)!r})
assert use_native_kernels(cache) is None
inner = f"from pathlib import Path; from burstgate_decode.models.fused_kernels import use_native_kernels as use; "
inner += f"print(use(Path({{str(cache)!r}})))"
print(subprocess.run([sys.executable, "-c", inner], capture_output=True, text=True, timeout=60).stdout.strip())
"""
    )
    assert printed == "None"
    (folder,) = tmp_path.iterdir()
    assert "burstgate-bin" not in (folder / "burstgate-bin" / "g++").read_text()


def test_a_compiler_without_these_flags_builds_what_mlx_asks_for(run_script: RunScript, tmp_path: Path) -> None:
    path = compiler(tmp_path / "bin", 'case "$*" in *inline-limit*) exit 1;; esac; exec /usr/bin/g++ "$@"')
    script = (
        START + f"print(use_native_kernels(Path({str(tmp_path / 'cache')!r})), swiglu(mx.ones(3), mx.ones(3)).size)"
    )
    assert run_script(script, {"PATH": path}) == "None 3"
    assert kernels(tmp_path / "cache")


@pytest.mark.parametrize(
    ("body", "because"),
    [
        ('case "$*" in *inline-limit*) exec /usr/bin/g++ "$@" -ffast-math;; esac; exec /usr/bin/g++ "$@"', "otherwise"),
        ('while [ $# -gt 1 ]; do [ "$1" = -o ] && echo damaged > "$2"; shift; done', "cannot be used"),
        (None, "no g++"),
    ],
)
def test_what_cannot_be_had_changes_nothing(
    run_script: RunScript, tmp_path: Path, body: str | None, because: str
) -> None:
    path = compiler(tmp_path / "bin", body) if body is not None else str(tmp_path)
    script = START + f"print(use_native_kernels(Path({str(tmp_path / 'cache')!r})), dict(os.environ) == before)"
    printed = run_script(script, {"PATH": path})
    assert because in printed
    assert printed.endswith("True")


def test_a_cache_that_cannot_be_written_is_named(run_script: RunScript, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = tmp_path / "file" / "kernels"
    script = START + f"print(use_native_kernels(Path({str(cache)!r})), dict(os.environ) == before)"
    printed = run_script(script)
    assert printed.startswith(f"the cache {cache} cannot be used")
    assert printed.endswith("True")


def test_nothing_is_done_where_mlx_builds_no_such_kernels(run_script: RunScript, tmp_path: Path) -> None:
    script = (
        START
        + f"import platform; platform.machine = lambda: 'aarch64'\nprint(use_native_kernels(Path({str(tmp_path)!r})))"
    )
    assert run_script(script) == "None"
    assert not list(tmp_path.iterdir())

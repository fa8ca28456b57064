"""Runs a script in a Python of its own: the BLAS under MLX is chosen once a process, before MLX is imported."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

# Their products run on the BLAS that is chosen on Linux only.
collect_ignore = [] if sys.platform == "linux" else ["test_blas.py", "test_exact_rows.py", "test_fused_kernels.py"]

RunScript = Callable[..., str]


@pytest.fixture
def run_script() -> RunScript:
    """Returns what the script printed; a script that fails fails the test with its traceback."""

    def run(script: str, environ: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            env={**os.environ, **(environ or {})},
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run

"""Runs a script in a Python of its own: the BLAS under MLX is chosen once a process, before MLX is imported."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest
from mlx_lm.models import llama
from mlx_lm.models.base import scaled_dot_product_attention

from burstgate_decode.models.blas import install_blas

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


@pytest.fixture
def exact_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products in this process as a service has them, and afterwards as before, with Llama's attention."""
    monkeypatch.setattr(llama, "scaled_dot_product_attention", scaled_dot_product_attention)
    blas = install_blas()
    before = blas.exact_rows
    blas.set_exact_rows(True)
    yield
    blas.set_exact_rows(before)

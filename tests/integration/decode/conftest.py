"""The decode services of this folder: one default pair with its policy, one small one without a drafter.

Loading a model takes seconds, so both serve the whole session. A test that ends, breaks or configures a
process starts its own with `start_decode`.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Processes, RunningProcess, StartProcess
from tests.integration.decode.asking import Decode
from tokenizers import Tokenizer

from burstgate_decode.models.default_pair import default_models_cache, prepare_default_pair

START_S = 240.0
SMALL_CONTEXT_TOKENS = 512


@pytest.fixture(scope="session")
def default_folder() -> Path:
    """The default target's folder, prepared once a machine."""
    return prepare_default_pair(default_models_cache(os.environ), report=lambda *_: None).target


@pytest.fixture(scope="session")
def tokenizer(default_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(default_folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def _session_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    processes = Processes(tmp_path_factory.mktemp("processes"))
    yield processes
    processes.close()


@pytest.fixture(scope="session")
def decode(
    _session_processes: Processes, default_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Decode]:
    """The default pair, with a policy service of its own."""
    policy = _session_processes.start(
        ["-m", "burstgate_policy"],
        {"BURSTGATE_POLICY_LISTEN": "127.0.0.1:0", "BURSTGATE_HINT_DIR": str(tmp_path_factory.mktemp("hints"))},
    )
    service = _session_processes.start(
        ["-m", "burstgate_decode"],
        {"BURSTGATE_DECODE_LISTEN": "127.0.0.1:0", "BURSTGATE_POLICY_ADDRESS": policy.address},
        timeout_s=START_S,
    )
    connected = Decode(service.address, service.pid)
    yield connected
    connected.close()


@pytest.fixture(scope="session")
def small_target(default_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default target with a short context."""
    folder: Path = tmp_path_factory.mktemp("models") / "small"
    folder.mkdir()
    for file in default_folder.iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": SMALL_CONTEXT_TOKENS}))
    return folder


@pytest.fixture(scope="session")
def small(_session_processes: Processes, small_target: Path) -> Iterator[Decode]:
    """No drafter, no policy, a short context, two places and a queue of one; loads in a few seconds."""
    service = _session_processes.start(
        ["-m", "burstgate_decode"],
        {
            "BURSTGATE_DECODE_LISTEN": "127.0.0.1:0",
            "BURSTGATE_POLICY_ADDRESS": "none",
            "BURSTGATE_TARGET": str(small_target),
            "BURSTGATE_MAX_ACTIVE_ROWS": "2",
            "BURSTGATE_MAX_QUEUED_ROWS": "1",
            "BURSTGATE_DEFAULT_MAX_TOKENS": "3",
            "BURSTGATE_STALLED_CLIENT_S": "0.5",
            "BURSTGATE_MAX_MESSAGE_BYTES": "65536",
        },
        timeout_s=START_S,
    )
    connected = Decode(service.address, service.pid)
    yield connected
    connected.close()


@pytest.fixture
def start_decode(start_process: StartProcess) -> Callable[..., RunningProcess]:
    """Starts a decode service of the default target; keyword arguments are settings, such as draft_width=4.

    Without a drafter and a policy unless told otherwise, which loads fastest.
    """

    def start(*, serving: bool = True, **settings: object) -> RunningProcess:
        given = {"decode_listen": "127.0.0.1:0", "policy_address": "none", "drafter": "none", **settings}
        env = {f"BURSTGATE_{name.upper()}": str(value) for name, value in given.items()}
        return start_process(["-m", "burstgate_decode"], env, serving=serving, timeout_s=START_S)

    return start


@pytest.fixture(scope="session")
def grpcurl() -> Callable[..., Any]:
    """Runs grpcurl against a plaintext address and returns what it wrote."""
    binary = shutil.which("grpcurl")
    assert binary is not None, "grpcurl is in the dev extra on Linux x86-64; elsewhere install it by hand"

    def run(address: str, *words: str, data: object = None) -> str:
        given = [] if data is None else ["-d", json.dumps(data)]
        done = subprocess.run(
            [binary, "-plaintext", "-max-time", "120", *given, address, *words],
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run

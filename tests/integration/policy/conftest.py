"""A policy service of its own for each test, and the ways to talk to it."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status


@pytest.fixture
def hint_dir(tmp_path: Path) -> Path:
    return tmp_path / "hints"


@pytest.fixture
def start_policy(start_process: Callable[..., Any], hint_dir: Path) -> Callable[..., Any]:
    """Starts a policy service on a free port; keyword arguments are settings, such as max_lanes=1."""

    def start(listen: str = "127.0.0.1:0", *, serving: bool = True, **settings: object) -> Any:
        env = {f"BURSTGATE_{name.upper()}": str(value) for name, value in settings.items()}
        env = {"BURSTGATE_POLICY_LISTEN": listen, "BURSTGATE_HINT_DIR": str(hint_dir), **env}
        return start_process(["-m", "burstgate_policy"], env, serving=serving)

    return start


@pytest.fixture
def connect() -> Iterator[Callable[[str], grpc.Channel]]:
    """Channels that are closed with the test."""
    channels: list[grpc.Channel] = []

    def one(address: str) -> grpc.Channel:
        channels.append(grpc.insecure_channel(address))
        return channels[-1]

    yield one
    for channel in channels:
        channel.close()


@pytest.fixture
def details_of() -> Callable[[grpc.RpcError], dict[str, Any]]:
    """The details of a failed call by the names of their types."""

    def details(error: grpc.RpcError) -> dict[str, Any]:
        status = rpc_status.from_call(error)
        assert status is not None, error
        found: dict[str, Any] = {}
        for packed in status.details:
            kind = getattr(error_details_pb2, packed.type_url.rpartition(".")[2])
            detail = kind()
            assert packed.Unpack(detail)
            found[kind.__name__] = detail
        return found

    return details


@pytest.fixture(scope="session")
def grpcurl() -> Callable[..., Any]:
    """Runs grpcurl against a plaintext address and returns its answer, parsed if it is JSON."""
    binary = shutil.which("grpcurl")
    assert binary is not None, "grpcurl is in the dev extra on Linux x86-64; elsewhere install it by hand"

    def run(address: str, *words: str, data: object = None) -> Any:
        place = ["-unix", address.removeprefix("unix:")] if address.startswith("unix:") else [address]
        given = [] if data is None else ["-d", json.dumps(data)]
        done = subprocess.run(
            [binary, "-plaintext", "-max-time", "10", *given, *place, *words],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return _snake(json.loads(done.stdout)) if done.stdout.lstrip().startswith("{") else done.stdout

    return run


def _snake(answer: Any) -> Any:
    """Field names as in the contract; newer versions of grpcurl write lowerCamelCase."""
    if isinstance(answer, dict):
        return {
            re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", name): _snake(value)
            for name, value in answer.items()
        }
    return [_snake(one) for one in answer] if isinstance(answer, list) else answer

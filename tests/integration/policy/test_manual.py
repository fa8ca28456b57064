"""The operators' page, command by command: what it tells a person to type works as it stands."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from burstgate.policy.v1 import policy_pb2

MANUAL = Path(__file__).parents[3] / "docs" / "operators" / "policy.md"
DEFAULT_ADDRESS = "127.0.0.1:50052"


def commands() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", MANUAL.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line for line in lines if not re.match(r"[A-Z]+=", line)]


def test_every_command_of_the_page_works_as_it_stands(
    start_policy: Callable[..., Any],
    connect: Callable[[str], grpc.Channel],
    policy_lane: Any,
    tmp_path: Path,
) -> None:
    policy = start_policy()
    lane = policy_lane(connect(policy.address), target="SmolLM2-135M-Instruct", round_ms=60.0, accepted=1)
    lane.settle()
    tools = {"grpcurl": shutil.which("grpcurl"), "burstgate": f"{Path(sys.executable).parent}/burstgate"}
    assert tools["grpcurl"], "grpcurl is in the dev extra on Linux x86-64; elsewhere install it by hand"
    listed = commands()
    assert len(listed) >= 18
    environment = {**os.environ, "KEY": lane.snapshot.key_hash, "LANE": lane.lane_id, "COLUMNS": "80"}
    for command in listed:
        tool, _, rest = command.partition(" ")
        line = f"{tools[tool]} {rest}".replace(DEFAULT_ADDRESS, policy.address)
        if tool == "burstgate":
            line += f" --address {policy.address}"
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        # A watch is ended by its time.
        ended = "-max-time" in command and "DeadlineExceeded" in done.stderr
        assert done.returncode == 0 or ended, (command, done.stdout, done.stderr)
        assert done.stdout.strip(), command


@pytest.mark.parametrize("field", ["speculation_enabled", "explanation", "evidence", "expires_at", "pin", "from_hint"])
def test_every_field_the_page_sends_a_person_to_is_in_the_contract(field: str) -> None:
    assert f"`{field}" in MANUAL.read_text()
    assert field in policy_pb2.PolicySnapshot.DESCRIPTOR.fields_by_name

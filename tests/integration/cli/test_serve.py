"""The command line against the real services, from the ready message to Ctrl-C. The last test stops them."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import burstgate

# Several starts of the services' models may share the machine.
pytestmark = pytest.mark.timeout(600)

PROMPT = "Count from one to ten in words."


def test_the_text_is_the_same_in_every_speculation_mode(served: Any) -> None:
    answers = {}
    for mode in ("on", "off", "auto"):
        done = served.run(
            "generate", PROMPT, "--speculation", mode, "--max-tokens", "24", "--json", "--address", served.decode
        )
        assert done.returncode == 0, done.stderr
        answers[mode] = json.loads(done.stdout)
    assert answers["on"]["token_ids"] == answers["off"]["token_ids"] == answers["auto"]["token_ids"]
    assert answers["on"]["text"] == answers["off"]["text"] == answers["auto"]["text"] != ""
    assert answers["on"]["speculation"]["rounds"] > 0
    assert answers["off"]["speculation"]["rounds"] == 0


def test_a_prompt_on_standard_input_is_answered_live_with_statistics(served: Any) -> None:
    done = served.run("generate", "--max-tokens", "12", "--address", served.decode, stdin=PROMPT)
    assert done.returncode == 0
    assert done.stdout.strip()
    assert done.stderr.startswith("12 tokens, ")


def test_the_grpcurl_command_of_the_ready_message_works(served: Any) -> None:
    command = next(line for line in served.ready if "grpcurl" in line)
    program, *arguments = shlex.split(command)
    beside = Path(sys.executable).with_name("grpcurl")
    found = str(beside) if beside.exists() else shutil.which(program)
    assert found is not None, "grpcurl belongs to the development environment"
    done = subprocess.run([found, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert '"completion"' in done.stdout


def test_a_field_out_of_its_range_exits_2_and_names_the_field(served: Any) -> None:
    done = served.run("generate", "hi", "--top-p", "1.5", "--address", served.decode)
    assert done.returncode == 2
    assert "sampling.top_p" in done.stderr
    assert done.stderr.count("\n") == 1


def test_ctrl_c_of_a_generation_frees_its_row(served: Any, until: Any) -> None:
    command = [sys.executable, "-c", "from burstgate.cli.main import run; run()"]
    command += ["generate", PROMPT, "--max-tokens", "500", "--address", served.decode]
    with (
        burstgate.Client(served.decode) as client,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
    ):
        until(lambda: client.server_info().active_rows == 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        until(lambda: client.server_info().active_rows == 0)


def test_models_show_and_policy_show_tell_of_the_served_pairing(served: Any) -> None:
    served.run("generate", PROMPT, "--max-tokens", "4", "--address", served.decode)
    shown = served.run("models", "show", "--address", served.decode)
    assert "K up to" in shown.stdout
    verdicts = served.run("policy", "show", "--json", "--address", served.policy)
    (verdict,) = json.loads(verdicts.stdout)["verdicts"]
    assert verdict["lanes"][0]["grants"] > 0
    table = served.run("policy", "show", verdict["key_hash"], "--address", served.policy)
    assert verdict["key_hash"] in table.stdout
    assert max(map(len, table.stdout.splitlines())) <= 80


def test_a_chat_answers_and_remembers(served: Any) -> None:
    done = served.run(
        "chat", "--max-tokens", "8", "--address", served.decode, stdin="My name is Ada.\nWho am I?\n/quit\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(" tok/s") == 2


def test_a_second_serve_on_the_same_addresses_is_refused_at_once(served: Any) -> None:
    begun = time.monotonic()
    done = served.run("serve", "--decode-listen", served.decode, "--policy-listen", served.policy)
    assert done.returncode == 1
    assert f"{served.decode}: Address already in use" in done.stderr
    assert time.monotonic() - begun < 30


def test_decoding_goes_on_while_a_killed_policy_service_is_started_again(served: Any, until: Any) -> None:
    killed = served.service("burstgate_policy")
    killed.kill()
    done = served.run("generate", PROMPT, "--max-tokens", "8", "--address", served.decode)
    assert done.returncode == 0, done.stderr

    def serves_again() -> bool:
        with burstgate.PolicyClient(served.policy) as client:
            try:
                return client.health() is burstgate.Health.SERVING
            except burstgate.Unavailable:
                return False

    until(serves_again)
    assert served.service("burstgate_policy").pid != killed.pid
    assert any("starting it again" in line for line in served.errors)


def test_ctrl_c_lets_the_running_answer_finish_and_leaves_no_process(served: Any, until: Any) -> None:
    services = [served.service(f"burstgate_{name}") for name in ("decode", "policy")]
    with burstgate.Client(served.decode) as client:
        stream = client.generate(PROMPT, max_tokens=12)
        next(stream)
        code = served.interrupt()
        assert stream.result().usage.completion_tokens > 0
    assert code == 0
    assert [service for service in services if service.is_running() and service.status() != psutil.STATUS_ZOMBIE] == []
    until(lambda: served.errors[-1] == "Stopped.\n")

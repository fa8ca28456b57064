"""The client commands of `burstgate` as a person and a script see them, against a scripted server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from burstgate.cli.main import app

WAIT_S = 30


def run(*arguments: str, stdin: str | bytes | None = None, columns: int = 80) -> Any:
    environment = {"COLUMNS": str(columns), "BURSTGATE_ADDRESS": None}
    return CliRunner(env=environment).invoke(app, list(arguments), input=stdin)


@pytest.fixture
def interleaved(server: Any, messages: Any) -> Any:
    """Two answers that arrive mixed, the second ending first."""

    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        yield messages.delta(1, "B1 ", (1,))
        yield messages.delta(0, "A1 ", (1,))
        yield messages.delta(1, "B2", (2,))
        yield messages.completion(1)
        yield messages.delta(0, "A2", (2,))
        yield messages.completion(0)

    server.generate = script
    return server


@pytest.fixture
def endless_process(server: Any, messages: Any) -> Any:
    """Starts the command as a process of its own, against an answer that never ends."""

    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        while True:
            yield messages.delta(0, "word ", (1,))
            await asyncio.sleep(0.01)

    server.generate = script
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        code = "from burstgate.cli.main import run; run()"
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "BURSTGATE_ADDRESS": server.address},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_answer_goes_to_standard_output_and_the_statistics_to_standard_error(server: Any) -> None:
    done = run("generate", "hi", "--address", server.address)
    assert done.exit_code == 0
    assert done.stdout == "Hello world\n"
    assert done.stderr.startswith("3 tokens, ")
    assert ", 2 of 5 prompt tokens cached, " in done.stderr
    assert done.stderr.count("\n") == 1


def test_every_flag_reaches_its_field(server: Any) -> None:
    flags = "--speculation on --draft-width 6 --max-tokens 5 --temperature 0.5 --top-p 0.9 --top-k 40 --min-p 0.1"
    flags += " --priority low --tenant team-7"
    flags += f" --seed 7 --system brief --stop END --stop . --logprobs 2 --n 2 --timeout 30 --address {server.address}"
    assert run("generate", "hi", *flags.split()).exit_code == 0
    (asked,) = server.asked
    request = asked.request
    assert (request.speculation.mode, request.speculation.max_draft_width) == (2, 6)
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.1)
    assert (sampling.seed, request.max_tokens, request.logprobs, request.n) == (7, 5, 2, 2)
    assert (request.chat.system, list(request.stop.strings)) == ("brief", ["END", "."])
    assert (request.priority, asked.metadata["x-burstgate-tenant"]) == (1, "team-7")
    assert asked.time_remaining_s < 32


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_without_a_prompt_standard_input_is_read_less_one_newline(server: Any, arguments: list[str]) -> None:
    run("generate", *arguments, "--raw", "--address", server.address, stdin="two\nlines\n\n")
    assert server.asked[0].request.text == "two\nlines\n"


def test_a_prompt_on_standard_input_that_is_not_utf8_is_a_usage_error() -> None:
    done = run("generate", stdin=b"abc\xff")
    assert (done.exit_code, done.stderr) == (2, "burstgate: the prompt is not valid UTF-8 at byte 3\n")


def test_json_is_one_object_with_the_whole_answer(server: Any) -> None:
    done = run("generate", "hi", "--json", "--address", server.address)
    answer = json.loads(done.stdout)
    assert (answer["text"], answer["token_ids"], answer["finish_reason"]) == ("Hello world", [11, 12, 13], "EOS")
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "cached_prompt_tokens": 2}
    assert {"timings", "speculation", "drafted", "seed", "request_id"} <= answer.keys()
    assert "answers" not in answer
    assert done.stderr == ""


def test_json_of_several_answers_lists_them(server: Any) -> None:
    answer = json.loads(run("generate", "hi", "--json", "--n", "3", "--address", server.address).stdout)
    assert [(item["index"], item["text"]) for item in answer["answers"]] == [(n, "Hello world") for n in range(3)]
    assert answer["text"] == "Hello world"


def test_answers_that_arrive_mixed_are_printed_one_after_another(interleaved: Any) -> None:
    done = run("generate", "hi", "--n", "2", "--address", interleaved.address)
    assert done.stdout == "--- answer 0\nA1 A2\n--- answer 1\nB1 B2\n"


def test_a_refused_request_is_one_line_with_its_field_and_exits_2(server: Any, abort_with: Any, details: Any) -> None:
    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        violation = details.BadRequest.FieldViolation(field="sampling.top_p", description="above 0, at most 1")
        bad = details.BadRequest(field_violations=[violation])
        info = details.ErrorInfo(reason="INVALID_FIELD", domain="burstgate.dev")
        await abort_with(context, 3, "One field cannot be honoured.", info, bad)
        yield

    server.generate = script
    done = run("generate", "hi", "--address", server.address)
    assert done.exit_code == 2
    expected = "One field cannot be honoured.; sampling.top_p: above 0, at most 1 (INVALID_FIELD)"
    assert done.stderr == f"burstgate: {expected}\n"


def test_a_full_server_says_when_to_try_again_and_exits_1(server: Any, abort_with: Any, details: Any) -> None:
    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        retry = details.RetryInfo()
        retry.retry_delay.FromMilliseconds(1500)
        await abort_with(context, 8, "Full", details.ErrorInfo(reason="QUEUE_FULL"), retry)
        yield

    server.generate = script
    done = run("generate", "hi", "--address", server.address)
    assert (done.exit_code, done.stderr) == (1, "burstgate: Full; try again in 1.5 s (QUEUE_FULL)\n")


@pytest.mark.parametrize(
    "arguments", [["generate", "hi"], ["models", "show"], ["policy", "show"], ["chat"]], ids=" ".join
)
def test_nobody_at_the_address_exits_69_with_one_line(arguments: list[str]) -> None:
    done = run(*arguments, "--address", f"127.0.0.1:{_free_port()}")
    assert done.exit_code == 69
    assert "`burstgate serve` starts a server" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_bad_address_is_a_usage_error() -> None:
    assert run("generate", "hi", "--address", "nowhere").exit_code == 2


def test_an_answer_cut_off_by_an_error_keeps_its_text_on_a_line_of_its_own(server: Any, messages: Any) -> None:
    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        yield messages.delta(0, "half", (1,))
        await asyncio.sleep(30)

    server.generate = script
    done = run("generate", "hi", "--timeout", "0.5", "--address", server.address)
    assert (done.exit_code, done.stdout) == (1, "half\n")
    assert done.stderr.endswith("did not finish within the timeout (DEADLINE_EXCEEDED)\n")


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_ctrl_c_cancels_the_request_and_exits_130(server: Any, endless_process: Any, flags: list[str]) -> None:
    process = endless_process("generate", "hi", *flags)
    _until_asked(server)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=WAIT_S)
    assert (process.returncode, stderr) == (130, "")
    assert server.left.wait(WAIT_S)


def test_a_reader_that_goes_away_ends_the_command_and_the_request(server: Any, endless_process: Any) -> None:
    process = endless_process("generate", "hi")
    assert process.stdout.read(4) == "word"
    process.stdout.close()
    assert process.wait(WAIT_S) != 0
    assert process.stderr.read() == ""
    assert server.left.wait(WAIT_S)


def test_chat_sends_the_whole_conversation_until_it_is_reset(server: Any) -> None:
    done = run("chat", "--address", server.address, stdin="one\n\n/what\ntwo\n/reset\nthree\n/quit\nnever\n")
    assert done.exit_code == 0
    conversations = [
        [(message.role, message.content) for message in asked.request.chat.messages]
        for asked in server.asked
        if asked.method == "Generate"
    ]
    assert conversations == [
        [("user", "one")],
        [("user", "one"), ("assistant", "Hello world"), ("user", "two")],
        [("user", "three")],
    ]
    assert "/what: no such command" in done.stderr


def test_chat_goes_on_after_a_failed_question_and_forgets_it(server: Any, abort_with: Any) -> None:
    working = server.generate

    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        if request.chat.messages[-1].content == "bad":
            await abort_with(context, 13, "boom")
        async for message in working(request, context):
            yield message

    server.generate = script
    done = run("chat", "--address", server.address, stdin="bad\ngood\n")
    assert done.exit_code == 0
    assert "boom (INTERNAL)" in done.stderr
    assert [message.content for message in server.asked[-1].request.chat.messages] == ["good"]


def test_ctrl_c_in_chat_cuts_the_answer_short_and_keeps_the_conversation(server: Any, endless_process: Any) -> None:
    process = endless_process("chat", "--max-tokens", "9")
    process.stdin.write("count\n")
    process.stdin.flush()
    _until_asked(server)
    process.send_signal(signal.SIGINT)
    assert server.left.wait(WAIT_S)
    stdout, stderr = process.communicate("/quit\n", timeout=WAIT_S)
    assert process.returncode == 0
    assert "word word" in stdout
    assert "Cut short." in stderr


def test_models_show_lists_the_pairing_and_its_costs(server: Any) -> None:
    done = run("models", "show", "--address", server.address)
    assert "small" in done.stdout
    assert "K=4" in done.stdout
    assert re.search(r"^ +1 +64 +81$", done.stdout, flags=re.MULTILINE)
    assert json.loads(run("models", "show", "--json", "--address", server.address).stdout)["hardware"] == "cpu-2c"


def test_models_prepare_with_an_unusable_source_is_one_line(tmp_path: Path) -> None:
    done = run("models", "prepare", "--cache", str(tmp_path), "--source", str(tmp_path / "missing.whl"))
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].startswith("burstgate: ")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("costs.txt", "must end in one of"),
        ("costs", "must end in one of"),
        ("missing/costs.png", "does not exist"),
        ("folder.svg", "is a folder"),
    ],
)
def test_models_calibrate_refuses_a_picture_it_cannot_write_before_it_loads_anything(
    tmp_path: Path, name: str, complaint: str
) -> None:
    (tmp_path / "folder.svg").mkdir()
    done = run("models", "calibrate", "--plot", str(tmp_path / name), "--target", str(tmp_path / "nowhere"))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("burstgate: --plot: ")
    assert str((tmp_path / name).parent) in done.stderr
    assert complaint in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [("--draft-width", "1", "from 2 to 64"), ("--max-active-rows", "257", "from 1 to 256")],
)
def test_models_calibrate_refuses_a_setting_the_service_would_refuse(option: str, value: str, allowed: str) -> None:
    done = run("models", "calibrate", option, value)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"burstgate: {option}={value}: must be a whole number {allowed}\n"


def test_serve_refuses_an_address_that_is_taken_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("serve", "--decode-listen", address)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"burstgate: {address}: Address already in use")


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:99999", "no.such.host.invalid:50051"])
def test_serve_refuses_an_address_it_cannot_listen_on(address: str) -> None:
    done = run("serve", "--policy-listen", address)
    assert done.exit_code == 1
    assert address in done.stderr


def test_serve_refuses_one_address_for_both_services() -> None:
    address = f"127.0.0.1:{_free_port()}"
    assert "must differ" in run("serve", "--decode-listen", address, "--policy-listen", address).stderr


def test_version_is_one_line() -> None:
    done = run("version")
    assert done.stdout.startswith("burstgate ")
    assert done.stdout.count("\n") == 1


def _until_asked(server: Any) -> None:
    """Waits until the generation has begun, and long enough for the command to read from it."""
    deadline = WAIT_S * 20
    while not any(asked.method == "Generate" for asked in server.asked) and deadline:
        deadline -= 1
        time.sleep(0.05)
    time.sleep(0.5)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])

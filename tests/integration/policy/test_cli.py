"""`burstgate policy` against the real service, as a person at a terminal uses it."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from typer.testing import CliRunner

from burstgate.cli.main import app
from burstgate.policy.v1 import admin_pb2, policy_pb2

Connect = Callable[[str], grpc.Channel]


@pytest.fixture
def policy(start_policy: Callable[..., Any]) -> Any:
    return start_policy()


@pytest.fixture
def lane(policy: Any, connect: Connect, policy_lane: Any) -> Any:
    """A lane of a pairing that speculation does not pay for."""
    lane = policy_lane(connect(policy.address), round_ms=60.0, accepted=1)
    lane.settle()
    return lane


@pytest.fixture
def run(policy: Any) -> Callable[..., Any]:
    def run(*arguments: str, stdin: str | None = None) -> Any:
        words = ["policy", *arguments, "--address", policy.address]
        return CliRunner(env={"COLUMNS": "80"}).invoke(app, words, input=stdin)

    return run


Run = Callable[..., Any]


def words(done: Any) -> str:
    assert done.exit_code == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    return " ".join(done.stdout.split())


def test_show_says_since_when_and_on_what_evidence(run: Run, lane: Any) -> None:
    shown = words(run("show", lane.snapshot.key_hash))
    for part in ("decline", "0.67x", "rounds of 60.0 ms", "plain steps of 20.0 ms", "at 90%", "holds until", "seen 20"):
        assert part in shown


def test_show_says_what_deciding_has_cost(run: Run, lane: Any) -> None:
    run("pin", lane.snapshot.key_hash, "on", "--reason", "a test", "--author", "ada")
    while lane.burst().mode != policy_pb2.BURST_MODE_SPECULATIVE:
        pass
    for _ in range(100):
        lane.burst()
    shown = words(run("show", lane.snapshot.key_hash))
    for part in ("time ran lost share best alone", "the pairing", " plain ", f"{lane.lane_id[:12]} explores nothing"):
        assert part in shown
    (listed,) = json.loads(run("show", "--json").stdout)["verdicts"]
    assert listed["regret"] == listed["lanes"][0]["regret"]
    assert listed["regret"]["lost_ms"] == pytest.approx(listed["regret"]["actual_ms"] / 3, rel=0.1)
    assert listed["regret"]["holding"] is True


def test_list_filters_and_json_holds_the_same(run: Run, lane: Any) -> None:
    assert lane.snapshot.key_hash in words(run("list", "--verdict", "decline", "--target", "TARGET"))
    assert run("list", "--state", "profiling").stdout == "No pairing matches.\n"
    (listed,) = json.loads(run("list", "--json").stdout)["verdicts"]
    assert (listed["verdict"], listed["pin"]) == ("DECLINE", None)
    assert listed["evidence"]["last_seen_at"].endswith("+00:00")
    bad = run("list", "--state", "confused")
    assert (bad.exit_code, bad.stderr) == (
        2,
        "burstgate: --state confused: must be one of forced, profiling, settled, static\n",
    )


def test_pin_for_an_hour_shows_until_when_and_unpin_takes_it_back(run: Run, lane: Any) -> None:
    key_hash = lane.snapshot.key_hash
    pinned = words(run("pin", key_hash, "on", "--reason", "a demo", "--author", "ada", "--for", "1h"))
    assert "pinned on by ada since" in pinned
    assert "a demo" in pinned
    (listed,) = json.loads(run("list", "--pinned", "--json").stdout)["verdicts"]
    assert listed["pin"]["speculate"] is True
    assert "pinned on by" not in words(run("unpin", key_hash))


@pytest.mark.parametrize("duration", ["1", "h", "1h30", "-1h", "soon"])
def test_a_duration_that_is_none_is_refused_with_examples(run: Run, lane: Any, duration: str) -> None:
    done = run("pin", lane.snapshot.key_hash, "on", "--reason", "r", f"--for={duration}")
    assert done.exit_code == 2
    assert "must be a duration such as 90s, 30m, 1h or 2d12h" in done.stderr


def test_mistakes_are_one_readable_line(run: Run, lane: Any) -> None:
    for arguments, code, part in (
        (("pin", "0" * 16, "on", "--reason", "r"), 1, "no pairing with this key hash"),
        (("pin", lane.snapshot.key_hash, "maybe", "--reason", "r"), 2, "must be on or off"),
        (("pin", lane.snapshot.key_hash, "on", "--reason", " "), 2, "reason must not be empty"),
        (("reset", "0" * 16), 1, "no pairing with this key hash"),
        (("explain", "nowhere"), 1, "the lane is not open"),
        (("import", "/nowhere.json"), 1, "cannot be read: No such file"),
        (("export", "/nowhere/there.json"), 1, "cannot be written: No such file"),
        (("watch", "--resume", "x"), 2, "resume_token"),
    ):
        done = run(*arguments)
        assert (done.exit_code, len(done.stderr.splitlines())) == (code, 1), (arguments, done.stderr)
        assert part in done.stderr


def test_reset_profiles_again(run: Run, lane: Any) -> None:
    assert "profiling" in words(run("reset", lane.snapshot.key_hash))


def test_what_export_writes_import_takes(run: Run, lane: Any, tmp_path: Path) -> None:
    file = tmp_path / "hints.json"
    assert "1 hints written" in words(run("export", str(file)))
    (hint,) = json.loads(file.read_text())["hints"]
    assert hint["settled"]["verdict"] == "decline"
    assert json.loads(run("export").stdout) == json.loads(file.read_text())
    run("reset", lane.snapshot.key_hash)
    refused = run("import", str(file))
    assert refused.exit_code == 1
    assert "as new or newer" in " ".join(refused.stdout.split())
    assert "yes" in words(run("import", str(file), "--overwrite"))
    assert "decline" in words(run("list"))
    assert run("import", "-", stdin="{}").exit_code == 1


def test_explain_takes_the_beginning_of_a_lane(run: Run, lane: Any) -> None:
    lane.burst()
    explained = words(run("explain", lane.lane_id[:12]))
    assert "> verdict" in explained
    assert "plain, K=1" in explained
    preview = words(run("explain", lane.lane_id[:12], "--width", "2", "--depth", "128", "--ineligible"))
    assert "K=1" in preview
    assert json.loads(run("explain", lane.lane_id, "--json").stdout)["rules"]


def test_replay_tells_what_other_settings_would_have_cost(
    run: Run, policy: Any, connect: Connect, policy_lane: Any, tmp_path: Path
) -> None:
    recorder = policy_lane(connect(policy.address), target="recorded", round_ms=60.0, accepted=1)
    request = admin_pb2.ReplayTraceRequest(lane=recorder.open_request)
    for _ in range(20):
        recorder.burst()
        request.outcomes.extend(recorder.request().outcomes)
    file = tmp_path / "trace.json"
    file.write_text(json_format.MessageToJson(request))
    told = words(run("replay", str(file), "--set", "MTP_FORCE=on"))
    assert "tokens: recorded" in told
    assert "forced on" in told
    assert "recorded" in words(run("replay", str(file), "--steps"))
    assert json.loads(run("replay", str(file), "--json").stdout)["tokens"] > 0
    bad = run("replay", str(file), "--set", "GATE_REFRESH_STEPS=0")
    assert bad.exit_code == 2
    assert "must be a whole number from 1 to" in bad.stderr


def test_watch_prints_changes_until_interrupted(policy: Any, lane: Any, run: Run) -> None:
    code = "from burstgate.cli.main import run; run()"
    command = [sys.executable, "-c", code, "policy", "watch", "--json", "--address", policy.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert (first["key_hash"], first["verdict"]["verdict"]) == (lane.snapshot.key_hash, "DECLINE")
        run("pin", lane.snapshot.key_hash, "off", "--reason", "r", "--author", "a")
        assert json.loads(process.stdout.readline())["verdict"]["pin"]["speculate"] is False
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (0, "")

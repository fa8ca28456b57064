"""What `burstgate policy show` prints of answers that a test scripts."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from burstgate.cli.main import app
from burstgate.policy.v1 import admin_pb2, policy_pb2


def run(*arguments: str, columns: int = 80) -> Any:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(app, list(arguments))


def test_policy_show_fits_eighty_columns_and_explains_each_verdict(server: Any) -> None:
    server.verdicts.append(_verdict())
    done = run("policy", "show", "--address", server.address)
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "…" not in done.stdout
    for word in ("0123456789abcdef", "SmolLM2-135M-Instruct", "enable", "2.31x", "71%", "4/4", "16.2", "38.1"):
        assert word in done.stdout
    words = " ".join(done.stdout.split())
    assert "speculation pays: 2.31x at K=4" in words
    assert "a3f9c2d17be0 of decode-1: probing plain decoding" in words


def test_policy_show_says_what_deciding_has_cost(server: Any) -> None:
    view = _verdict()
    view.lanes[0].regret.CopyFrom(
        admin_pb2.Regret(
            actual_ms=754_300_000.0,
            best_ms=752_800_000.0,
            best_draft_width=4,
            lost_ms=1_500_000.0,
            share=0.002,
            recent_share=0.041,
            recent_best_draft_width=1,
            holding=True,
        )
    )
    whole = {"actual_ms": 9.9e9, "best_ms": 9.92e9, "best_draft_width": 16, "lost_ms": -2e7, "share": -0.0020202}
    view.regret.CopyFrom(admin_pb2.Regret(**whole))
    server.verdicts.append(view)
    for columns in (80, 120):
        done = run("policy", "show", "--address", server.address, columns=columns)
        assert max(map(len, done.stdout.splitlines())) <= columns
        assert "…" not in done.stdout
        rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
        assert "time ran lost share best alone recently best alone" in rows
        assert "a3f9c2d17be0 209.5 h 25.0 min 0.2% K=4 4.1% plain" in rows
        assert "the pairing 2750.0 h -5.6 h -0.2% K=16 - -" in rows
        words = " ".join(done.stdout.split())
        held = "a3f9c2d17be0 explores nothing for now: 4.1% of the recent time was lost against plain alone"
        assert held in words
    del view.lanes[:]
    told = run("policy", "show", "--address", server.address).stdout
    assert "the pairing" in told
    assert "explores nothing" not in told
    view.ClearField("regret")
    assert "the pairing" not in run("policy", "show", "--address", server.address).stdout
    (listed,) = json.loads(run("policy", "show", "--json", "--address", server.address).stdout)["verdicts"]
    assert listed["regret"] is None


def test_policy_show_tells_of_steps_that_were_dropped(server: Any) -> None:
    view = _verdict()
    server.verdicts.append(view)
    assert "dropped" not in run("policy", "show", "--address", server.address).stdout
    view.lanes[0].dropped_steps = 12
    words = " ".join(run("policy", "show", "--address", server.address).stdout.split())
    assert "a3f9c2d17be0 was not told of 12 steps: its instance dropped them" in words


def test_policy_show_of_one_key_shows_that_one_or_fails_readably(server: Any) -> None:
    server.verdicts.append(_verdict())
    one = run("policy", "show", "0123456789abcdef", "--json", "--address", server.address)
    assert [verdict["key_hash"] for verdict in json.loads(one.stdout)["verdicts"]] == ["0123456789abcdef"]
    none = run("policy", "show", "ff", "--address", server.address)
    assert (none.exit_code, none.stderr) == (1, "burstgate: no such verdict (NOT_FOUND)\n")


def test_policy_show_without_verdicts_says_so(server: Any) -> None:
    assert "No pairing has been seen yet" in run("policy", "show", "--address", server.address).stdout


def _verdict() -> Any:
    key = policy_pb2.PolicyKey(
        target="SmolLM2-135M-Instruct",
        drafter="smollm2-135m-mtp",
        hardware="x86_64-epyc-2c",
        draft_width=8,
        dtype="float32",
        backend="cpu",
        blas="openblas-0.3.34",
        mlx_version="0.32.4",
    )
    snapshot = policy_pb2.PolicySnapshot(
        key=key,
        state=policy_pb2.POLICY_STATE_SETTLED,
        verdict=policy_pb2.VERDICT_ENABLE,
        samples=4,
        samples_required=4,
        speedup=2.31,
        acceptance_rate=0.71,
        key_hash="0123456789abcdef",
        explanation="speculation pays: 2.31x at K=4 over 212 rounds",
    )
    grant = policy_pb2.BurstGrant(
        mode=policy_pb2.BURST_MODE_PROBE_SPECULATIVE, draft_width=4, explanation="probing plain decoding"
    )
    lane = admin_pb2.LaneView(
        lane_id="a3f9c2d17be04f0e",
        instance_id="decode-1",
        last_grant=grant,
        plain_tokens_per_second=16.2,
        speculative_tokens_per_second=38.1,
        steps=1_530_000,
    )
    return admin_pb2.VerdictView(snapshot=snapshot, lanes=[lane])

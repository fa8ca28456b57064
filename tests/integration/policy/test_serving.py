"""The running policy service from outside: health, reflection, settings, stopping."""

import os
import signal
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from burstgate.policy.v1 import policy_pb2

Start = Callable[..., Any]
Connect = Callable[[str], grpc.Channel]


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_health_and_reflection_answer_a_stranger_with_grpcurl(
    start_policy: Start, grpcurl: Callable[..., Any], tmp_path: Path, kind: str
) -> None:
    policy = start_policy("127.0.0.1:0" if kind == "tcp" else f"unix:{tmp_path}/p.sock")
    listed = grpcurl(policy.address, "list").split()
    assert listed == [
        "burstgate.policy.v1.PolicyAdminService",
        "burstgate.policy.v1.PolicyService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    ]
    for service in ("", *listed[:2]):
        answer = grpcurl(policy.address, "grpc.health.v1.Health/Check", data={"service": service})
        assert answer == {"status": "SERVING"}
    assert "rpc DecideBurst" in grpcurl(policy.address, "describe", "burstgate.policy.v1.PolicyService")


def test_a_person_can_open_a_lane_and_read_its_verdict_with_grpcurl(
    start_policy: Start, grpcurl: Callable[..., Any]
) -> None:
    policy = start_policy()
    key = {"target": "t", "drafter": "d", "draftWidth": 4}
    capabilities = {"batchable": True, "maxWidth": 1, "drafterKind": "mtp_head"}
    opened = grpcurl(
        policy.address,
        "burstgate.policy.v1.PolicyService/OpenLane",
        data={"key": key, "capabilities": capabilities},
    )
    listed = grpcurl(policy.address, "burstgate.policy.v1.PolicyAdminService/ListVerdicts", data={})
    (verdict,) = listed["verdicts"]
    assert verdict["snapshot"]["key_hash"] == opened["snapshot"]["key_hash"]
    assert verdict["snapshot"]["state"] == "POLICY_STATE_PROFILING"
    assert verdict["lanes"][0]["lane_id"] == opened["lane_id"]


def test_it_says_nothing_but_log_lines_and_its_address(start_policy: Start) -> None:
    policy = start_policy()
    assert policy.stop() == 0
    assert policy.stdout == ""
    events = [line["event"] for line in policy.lines]
    assert events == ["serving", "draining", "stopped"]
    assert policy.lines[0]["address"] == policy.address


@pytest.mark.parametrize(
    ("setting", "value", "complaint"),
    [
        ("mtp_force", "perhaps", "BURSTGATE_MTP_FORCE=perhaps: must be on or off"),
        ("mtp_adaptive", "", "BURSTGATE_MTP_ADAPTIVE=: is set but empty"),
        ("gate_reprobe_steps", "0", "BURSTGATE_GATE_REPROBE_STEPS=0: must be a whole number from 1 to"),
        ("gate_refresh_steps", "1k", "BURSTGATE_GATE_REFRESH_STEPS=1k: must be a whole number from 1 to"),
        ("entry_pin_tokens", "-1", "BURSTGATE_ENTRY_PIN_TOKENS=-1: must be a whole number from 0 to"),
        ("lane_ttl_s", "inf", "BURSTGATE_LANE_TTL_S=inf: must be a number above 0 to"),
        ("max_lanes", "many", "BURSTGATE_MAX_LANES=many: must be a whole number from 1 to 65536"),
        ("grant_fresh_ms", "1.5", "BURSTGATE_GRANT_FRESH_MS=1.5: must be a whole number from 0 to"),
        ("policy_listen", "here", "BURSTGATE_POLICY_LISTEN=here: must be host:port"),
        ("hint_dir", "", "BURSTGATE_HINT_DIR=: is set but empty"),
        ("hint_store", "memcached://x", "BURSTGATE_HINT_STORE=memcached://x: must be files, or a URL"),
        ("hint_store", "redis://h:port", "BURSTGATE_HINT_STORE=redis://h:port: must be files, or a URL"),
        ("hint_refresh_s", "0", "BURSTGATE_HINT_REFRESH_S=0: must be a number from 0.05 to"),
    ],
)
def test_a_bad_setting_ends_the_start_with_code_2_and_one_line(
    start_policy: Start, setting: str, value: str, complaint: str
) -> None:
    policy = start_policy(serving=False, **{setting: value})
    assert policy.wait() == 2
    (line,) = policy.stderr.splitlines()
    assert line.startswith(f"burstgate-policy: {complaint}")


def test_a_bad_flag_is_named_as_a_flag_and_wins_over_the_environment(start_process: Start) -> None:
    args = ["-m", "burstgate_policy", "--listen", "nowhere"]
    policy = start_process(args, {"BURSTGATE_POLICY_LISTEN": "127.0.0.1:0"}, serving=False)
    assert policy.wait() == 2
    assert policy.stderr.startswith("burstgate-policy: --listen=nowhere: must be host:port")


def test_flags_win_over_the_environment(start_process: Start, tmp_path: Path) -> None:
    args = ["-m", "burstgate_policy", "--listen", f"unix:{tmp_path}/p.sock", "--log-level", "error"]
    policy = start_process(args, {"BURSTGATE_LOG_LEVEL": "debug"}, serving=False)
    with grpc.insecure_channel(f"unix:{tmp_path}/p.sock") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=20)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert policy.stop() == 0
    assert policy.stderr == ""


def test_a_misspelt_variable_is_pointed_out_and_another_services_is_not(start_policy: Start) -> None:
    policy = start_policy(max_lane=3, decode_listen="127.0.0.1:1")
    (warning,) = policy.events("unknown variable")
    assert (warning["variable"], warning["did_you_mean"]) == ("BURSTGATE_MAX_LANE", "BURSTGATE_MAX_LANES")


def test_a_port_in_use_ends_the_start_with_a_line_that_names_it(start_policy: Start) -> None:
    first = start_policy()
    second = start_policy(first.address, serving=False)
    assert second.wait() == 1
    (line,) = second.lines
    assert (line["event"], line["level"]) == ("cannot start", "error")
    assert line["why"] == f"cannot listen on {first.address}: Address already in use"


def test_a_second_service_does_not_steal_a_living_ones_socket(start_policy: Start, tmp_path: Path) -> None:
    first = start_policy(f"unix:{tmp_path}/p.sock")
    second = start_policy(f"unix:{tmp_path}/p.sock", serving=False)
    assert second.wait() == 1
    assert "another process answers there" in second.lines[0]["why"]
    first.wait_serving()


def test_the_socket_of_a_killed_service_is_taken_over(start_policy: Start, tmp_path: Path) -> None:
    start_policy(f"unix:{tmp_path}/p.sock").kill()
    assert (tmp_path / "p.sock").is_socket()
    again = start_policy(f"unix:{tmp_path}/p.sock")
    assert again.stop() == 0
    assert not (tmp_path / "p.sock").exists()


def test_metrics_tell_grants_apart_by_mode_and_reason(
    start_policy: Start, connect: Connect, policy_lane: Any, free_port: int
) -> None:
    policy = start_policy(metrics_listen=f"127.0.0.1:{free_port}", mtp_force="off")
    policy_lane(connect(policy.address)).burst()
    body = urllib.request.urlopen(f"http://127.0.0.1:{free_port}/metrics", timeout=5).read().decode()
    assert 'burstgate_policy_grants_total{mode="plain",reason="forced_off"} 1.0' in body
    assert "burstgate_policy_lanes 1.0" in body
    assert "burstgate_policy_decide_seconds_count 1.0" in body


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_an_open_stream_at_once_and_exits_with_0(
    start_policy: Start, connect: Connect, policy_lane: Any, details_of: Any, number: int
) -> None:
    policy = start_policy(drain_timeout_s=30)
    lane = policy_lane(connect(policy.address))
    questions: Any = iter([policy_pb2.StreamBurstsRequest(lane_id=lane.lane_id, situation=lane.request().situation)])

    def ask_then_wait() -> Any:
        yield from questions
        while policy.running:
            time.sleep(0.05)

    stream = lane.stub.StreamBursts(ask_then_wait())
    assert next(stream).grant.max_steps > 0
    started = time.monotonic()
    policy.signal(number)
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert details_of(caught.value)["ErrorInfo"].reason == "DRAINING"
    assert policy.wait() == 0
    assert time.monotonic() - started < 5
    assert policy.events("stopped")[0]["drained"] is True


def test_random_bytes_on_the_port_disturb_nobody(start_policy: Start, connect: Connect, policy_lane: Any) -> None:
    policy = start_policy()
    lane = policy_lane(connect(policy.address))
    host, port = policy.address.split(":")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for noise in (os.urandom(4096), preface + os.urandom(4096), b"GET / HTTP/1.1\r\n\r\n", b""):
        with socket.create_connection((host, int(port)), timeout=5) as wire:
            wire.sendall(noise)
        assert lane.burst().max_steps > 0
    assert policy.running


@pytest.mark.parametrize("method", ["OpenLane", "DecideBurst", "ReportBurst"])
def test_text_that_is_not_utf8_is_an_invalid_argument(
    start_policy: Start, connect: Connect, details_of: Any, method: str
) -> None:
    channel = connect(start_policy().address)
    call: Any = channel.unary_unary(f"/burstgate.policy.v1.PolicyService/{method}")
    bad = {
        "OpenLane": b"\x22\x02\xc3\x28",
        "DecideBurst": b"\x0a\x02\xc3\x28",
        "ReportBurst": b"\x0a\x01\xff",
    }
    with pytest.raises(grpc.RpcError) as caught:
        call(bad[method], timeout=5)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details_of(caught.value)["ErrorInfo"].reason == "UNDECODABLE_REQUEST"

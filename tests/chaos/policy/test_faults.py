"""The policy service killed, frozen and leaned on: nothing half-written, nothing leaked, nothing hung."""

import concurrent.futures
import contextlib
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from burstgate.policy.v1 import policy_pb2
from burstgate_policy import convert
from burstgate_policy.hints.files import FileHintStore

Start = Callable[..., Any]


def start_policy(start_process: Start, folder: Path) -> Any:
    listen = f"unix:{folder}/p.sock"
    env = {"BURSTGATE_POLICY_LISTEN": listen, "BURSTGATE_HINT_DIR": str(folder / "hints")}
    return start_process(["-m", "burstgate_policy"], env)


@pytest.mark.parametrize("seed", range(6))
def test_a_kill_in_the_middle_of_saving_leaves_no_half_written_hint(
    start_process: Start, policy_lane: Any, tmp_path: Path, seed: int
) -> None:
    policy = start_policy(start_process, tmp_path)
    hints = tmp_path / "hints"
    keys: list[policy_pb2.PolicyKey] = []

    def settle(n: int) -> None:
        lane = policy_lane(channel, target=f"target-{n}")
        keys.append(lane.open_request.key)
        lane.settle()

    with grpc.insecure_channel(policy.address) as channel, concurrent.futures.ThreadPoolExecutor(8) as pool:
        settling = [pool.submit(settle, n) for n in range(200)]
        while not list(hints.glob("*.json")):
            time.sleep(0.001)
        time.sleep(random.Random(seed).uniform(0.0, 0.2))
        assert policy.kill() == -signal.SIGKILL
        for one in settling:
            with contextlib.suppress(grpc.RpcError):
                one.result()
    store = FileHintStore(hints)
    loads = {key.target: store.load(convert.key_from_proto(key).hash) for key in keys}
    stored = [load for load in loads.values() if load.document is not None]
    assert 0 < len(stored) < 200, "the kill came before the first hint or after the last"
    assert all("missing" in str(load.reason) for load in loads.values() if load.document is None)
    assert len(list(hints.glob("*.json"))) == len(stored)

    again = start_policy(start_process, tmp_path)
    remembered = next(name for name, load in loads.items() if load.document is not None)
    with grpc.insecure_channel(again.address) as channel:
        assert policy_lane(channel, target=remembered).snapshot.from_hint


def test_a_client_finds_the_restarted_service_on_its_old_channel_and_opens_its_lane_again(
    start_process: Start, policy_lane: Any, tmp_path: Path
) -> None:
    policy = start_policy(start_process, tmp_path)
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200)]
    with grpc.insecure_channel(policy.address, options) as channel:
        lane = policy_lane(channel)
        lane.settle()
        policy.wait_event("hint stored")
        policy.kill()
        with pytest.raises(grpc.RpcError) as caught:
            lane.burst()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        start_policy(start_process, tmp_path)
        with pytest.raises(grpc.RpcError) as caught:
            lane.stub.DecideBurst(lane.request(), timeout=5, wait_for_ready=True)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert policy_lane(channel).snapshot.from_hint


def test_a_frozen_service_costs_a_deadline_and_goes_on_where_it_was(
    start_process: Start, policy_lane: Any, tmp_path: Path
) -> None:
    policy = start_policy(start_process, tmp_path)
    with grpc.insecure_channel(policy.address) as channel:
        lane = policy_lane(channel)
        for _ in range(3):
            lane.burst()
        policy.signal(signal.SIGSTOP)
        question = lane.request()
        started = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            lane.stub.DecideBurst(question, timeout=0.05)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert time.monotonic() - started < 1
        policy.signal(signal.SIGCONT)
        assert lane.settle().max_steps > 0


def test_streams_that_clients_abandon_leave_nothing_behind(
    start_process: Start, policy_lane: Any, tmp_path: Path
) -> None:
    policy = start_policy(start_process, tmp_path)
    process = psutil.Process(policy.pid)

    def abandon(times: int) -> None:
        for _ in range(times):
            with grpc.insecure_channel(policy.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
                lane.stub = type(lane.stub)(channel)
                question = policy_pb2.StreamBurstsRequest(lane_id=lane.lane_id, situation=lane.request().situation)
                answers = lane.stub.StreamBursts(iter([question] * 50), timeout=10)
                assert next(answers).grant.max_steps > 0

    with grpc.insecure_channel(policy.address) as first:
        lane = policy_lane(first)
        abandon(20)
        threads, files, rss = process.num_threads(), process.num_fds(), process.memory_info().rss
        abandon(200)
        deadline = time.monotonic() + 5
        while process.num_fds() > files and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.num_fds() <= files
        assert process.num_threads() <= threads + 1
        assert process.memory_info().rss < rss + 8 * 1024 * 1024
    assert policy.stop() == 0
    assert not [line for line in policy.lines if line["level"] == "error"]


def test_many_callers_at_once_all_get_their_grants(start_process: Start, policy_lane: Any, tmp_path: Path) -> None:
    policy = start_policy(start_process, tmp_path)
    with grpc.insecure_channel(policy.address) as channel, concurrent.futures.ThreadPoolExecutor(16) as pool:
        lanes = list(pool.map(lambda n: policy_lane(channel, target=f"t{n % 4}"), range(16)))
        grants = list(pool.map(lambda lane: [lane.burst() for _ in range(50)], lanes))
    ids = [grant.grant_id for given in grants for grant in given]
    assert len(set(ids)) == len(ids) == 16 * 50

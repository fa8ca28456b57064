"""The policy service killed again and again under load: no hint that was reported stored is lost or broken.

`BURSTGATE_TEST_KILLS` says how often; `make chaos-policy` asks for a hundred.
"""

import concurrent.futures
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from burstgate_policy import convert
from burstgate_policy.hints.files import FileHintStore
from burstgate_policy.hints.redis import RedisHintStore
from burstgate_policy.hints.store import HintStore

KILLS = int(os.environ.get("BURSTGATE_TEST_KILLS", "10"))

# What a killed and restarted service may answer; anything else is a defect.
EXPECTED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.CANCELLED}


class Load:
    """Decode instances that settle pairing after pairing, whatever becomes of the service."""

    def __init__(self, channel: grpc.Channel, policy_lane: Any) -> None:
        self._channel = channel
        self._policy_lane = policy_lane
        self._stop = threading.Event()
        self._names = iter(range(1_000_000))
        self._lock = threading.Lock()  # guards the names
        self.keys: dict[str, Any] = {}

    def run(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                target = f"t{next(self._names)}"
            try:
                lane = self._policy_lane(self._channel, target=target)
                self.keys[lane.snapshot.key_hash] = lane.open_request.key
                lane.settle()
            except grpc.RpcError as error:
                if error.code() not in EXPECTED:
                    raise
                time.sleep(0.02)

    def stop(self) -> None:
        self._stop.set()


@pytest.mark.timeout(60 + 6 * KILLS)
@pytest.mark.parametrize("kind", ["files", "redis"])
def test_no_kill_loses_or_breaks_a_hint_that_was_stored(
    start_process: Callable[..., Any],
    start_redis: Callable[[], Any],
    policy_lane: Any,
    tmp_path: Path,
    kind: str,
) -> None:
    url = start_redis().url if kind == "redis" else "files"
    store: HintStore = RedisHintStore(url) if kind == "redis" else FileHintStore(tmp_path / "hints")
    env = {
        "BURSTGATE_POLICY_LISTEN": f"unix:{tmp_path}/p.sock",
        "BURSTGATE_HINT_DIR": str(tmp_path / "hints"),
        "BURSTGATE_HINT_STORE": url,
        "BURSTGATE_MAX_LANES": "65536",
    }
    options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 100)]
    moments = random.Random(7)
    reported: set[str] = set()
    with (
        grpc.insecure_channel(f"unix:{tmp_path}/p.sock", options) as channel,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        load = Load(channel, policy_lane)
        running = [pool.submit(load.run) for _ in range(8)]
        try:
            for _ in range(KILLS):
                policy = start_process(["-m", "burstgate_policy"], env)
                policy.wait_event("hint stored")
                time.sleep(moments.uniform(0.0, 0.3))
                assert policy.kill() == -signal.SIGKILL
                reported |= {line["key_hash"] for line in policy._json_lines() if line["event"] == "hint stored"}
        finally:
            load.stop()
        for one in running:
            one.result(60)
    assert len(reported) >= KILLS
    loads = {load.key_hash: load for load in store.changes().loads}
    broken = {key_hash: one.reason for key_hash, one in loads.items() if one.document is None}
    assert broken == {}
    assert reported <= set(loads), "a hint that was reported stored is gone"
    for key_hash, one in loads.items():
        assert one.document is not None
        assert one.document.key == convert.key_from_proto(load.keys[key_hash])
        assert one.document.settled is not None
    if kind == "files":
        names = {path.name for path in (tmp_path / "hints").iterdir() if not path.name.startswith(".hint-")}
        assert names == {f"{key_hash}.json" for key_hash in loads} | {".lock"}
    with contextlib.closing(store):
        again = start_process(["-m", "burstgate_policy"], env)
        with grpc.insecure_channel(again.address) as channel:
            remembered = load.keys[next(iter(reported))]
            assert policy_lane(channel, target=remembered.target).snapshot.from_hint

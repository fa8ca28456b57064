"""Real processes for tests.

A test that needs a service starts it with `start_process` (ended with the test) or
`start_module_process` (ended with the module, for services that are slow to start):

    service = start_process(["-m", "burstgate_policy"], {"BURSTGATE_POLICY_LISTEN": "127.0.0.1:0"})
    channel = grpc.insecure_channel(service.address)

* `args` follow the test run's own Python. `env` is added to this environment without its BURSTGATE_*
  variables, so that a developer's settings change no test.
* The call returns when the service has logged "serving" and health answers SERVING at the address of that
  line; ask for port 0 and take `service.address`. It fails at once, with the log, when the process ends
  first. `serving=False` returns immediately, for processes that are meant to fail: `service.wait()`.
* The service's log must be JSON lines on stderr, which is the default of every service.

Only processes started here are ever ended, by their own ids; whatever still runs at the end is killed,
frozen ones too, and the end of its log is printed, which pytest shows for a failed test.

`start_redis()` starts a real Redis server of the test's own and returns it: `redis.url`, and `kill`, `start`
(again, with what it stored), `signal` and `wipe` for what can happen to one.

`policy_lane(channel, ...)` plays a decode instance against a policy service: it opens a lane and runs
bursts whose steps take made-up times, so that a test decides whether speculation pays.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
import redis
from grpc_health.v1 import health_pb2, health_pb2_grpc

from burstgate.policy.v1 import admin_pb2, admin_pb2_grpc, policy_pb2, policy_pb2_grpc
from burstgate_decode.models.blas import install_blas

# The tools that came with this environment are found whether or not it was activated.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
# Before any test module imports mlx, or its products run on the reference BLAS for the whole test run.
install_blas()
# A shell starts what it puts in the background with Ctrl-C ignored, and every process started here would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_T = TypeVar("_T")


class RunningProcess:
    """One process: its address, its log, its end."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process = process
        self._folder = folder
        self.address = ""
        """Where it serves, in gRPC's form; empty if it was started with serving=False."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stdout(self) -> str:
        return (self._folder / "stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return (self._folder / "stderr").read_text(errors="replace")

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The log so far; a line that is no JSON object is an error."""
        whole = self.stderr.rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def events(self, event: str) -> list[dict[str, Any]]:
        """The log lines with this event."""
        return [line for line in self.lines if line["event"] == event]

    def wait_event(self, event: str, timeout_s: float = 10.0) -> dict[str, Any]:
        """Waits for a log line with this event and returns the last one."""

        def newest() -> dict[str, Any] | None:
            found = [line for line in self._json_lines() if line.get("event") == event]
            return found[-1] if found else None

        return self._until(newest, f"a log line {event!r}", timeout_s)

    def wait_serving(self, timeout_s: float = 60.0) -> None:
        """Waits for the "serving" line and for health SERVING at its address."""
        deadline = time.monotonic() + timeout_s
        self.address = str(self.wait_event("serving", timeout_s)["address"])
        with grpc.insecure_channel(self.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)

            def healthy() -> bool | None:
                with contextlib.suppress(grpc.RpcError):
                    answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=1)
                    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING) or None
                return None

            self._until(healthy, "health SERVING", deadline - time.monotonic())

    def signal(self, number: int) -> None:
        """Sends a signal, such as signal.SIGSTOP."""
        self._process.send_signal(number)

    def stop(self, timeout_s: float = 20.0) -> int:
        """Sends SIGTERM and returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> int:
        """Sends SIGKILL and returns the exit code."""
        self._process.kill()
        return self.wait()

    def wait(self, timeout_s: float = 20.0) -> int:
        """Waits for the end and returns the exit code."""
        return self._process.wait(timeout_s)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def _json_lines(self) -> Iterator[dict[str, Any]]:
        for line in self.stderr.rpartition("\n")[0].splitlines():
            with contextlib.suppress(ValueError):
                yield json.loads(line)

    def _until(self, found: Callable[[], _T | None], what: str, timeout_s: float) -> _T:
        deadline = time.monotonic() + timeout_s
        while True:
            ended = not self.running
            value = found()
            if value is not None:
                return value
            if ended or time.monotonic() > deadline:
                why = f"exit code {self._process.returncode}" if ended else f"{timeout_s:.0f} s passed"
                pytest.fail(f"{what} was awaited but {why}; its log:\n{self.stderr[-4000:]}", pytrace=False)
            time.sleep(0.02)


class Processes:
    """Starts processes and ends what it started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[RunningProcess] = []

    def start(
        self,
        args: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        serving: bool = True,
        timeout_s: float = 60.0,
    ) -> RunningProcess:
        folder = self._folder / str(len(self._started))
        folder.mkdir()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("BURSTGATE_")}
        with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, *args],
                env={**inherited, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                # Ctrl-C in the terminal is for the test run, which then ends what it started.
                start_new_session=True,
            )
        running = RunningProcess(process, folder)
        self._started.append(running)
        if serving:
            running.wait_serving(timeout_s)
        return running

    def close(self) -> None:
        for process in self._started:
            if process.running:
                process.kill()
            print(f"--- log of process {process.pid}\n{process.stderr[-4000:]}")


StartProcess = Callable[..., RunningProcess]


@pytest.fixture
def start_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartProcess]:
    """Starts processes that end with the test; see the top of this file."""
    processes = Processes(tmp_path_factory.mktemp("processes"))
    yield processes.start
    processes.close()


@pytest.fixture(scope="module")
def start_module_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartProcess]:
    """Starts processes that end with the module; see the top of this file."""
    processes = Processes(tmp_path_factory.mktemp("processes"))
    yield processes.start
    processes.close()


class RedisServer:
    """A Redis server on a Unix socket, so that it keeps its address over restarts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{folder}/redis.sock?db=0"

    def start(self) -> None:
        """Starts it, with what an earlier run stored, and waits until it answers."""
        command = [_redis_binary(), "--port", "0", "--unixsocket", f"{self._folder}/redis.sock"]
        command += ["--dir", str(self._folder), "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(redis.RedisError):
                if self.client().ping():
                    return
            assert self._process.poll() is None, (self._folder / "redis.log").read_text()
            assert time.monotonic() < deadline, "Redis does not answer"
            time.sleep(0.02)

    def client(self) -> Any:
        return redis.Redis.from_url(self.url, socket_timeout=2)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Ends it at once; what it stored stays."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(20)

    def wipe(self) -> None:
        """Ends it and everything it stored."""
        self.kill()
        for path in self._folder.rglob("*"):
            if path.is_file() and path.name != "redis.log":
                path.unlink()


def _redis_binary() -> str:
    # The environment's own, from the dev extra, may not be on PATH.
    for place in (None, str(Path(sys.executable).parent)):
        found = shutil.which("redis-server", path=place)
        if found is not None:
            return found
    raise AssertionError(
        "the tests run a real Redis and find no redis-server on PATH; "
        "on Debian and Ubuntu: apt-get install redis-server"
    )


StartRedis = Callable[[], RedisServer]


@pytest.fixture
def start_redis() -> Iterator[StartRedis]:
    """Starts Redis servers that end with the test; see the top of this file."""
    servers: list[RedisServer] = []
    with contextlib.ExitStack() as folders:

        def start() -> RedisServer:
            # Not under pytest's folder: the path of a Unix socket has at most 107 bytes.
            folder = folders.enter_context(tempfile.TemporaryDirectory(prefix="redis-"))
            servers.append(RedisServer(Path(folder)))
            servers[-1].start()
            return servers[-1]

        yield start
        for server in servers:
            server.kill()


class PolicyLane:
    """A decode instance with one lane: a plain step takes 20 ms a row, a round `round_ms`."""

    def __init__(
        self,
        channel: grpc.Channel,
        *,
        target: str = "target",
        draft_width: int = 4,
        round_ms: float = 24.0,
        accepted: int = 3,
    ) -> None:
        self.stub: Any = policy_pb2_grpc.PolicyServiceStub(channel)  # type: ignore[no-untyped-call]
        self._admin: Any = admin_pb2_grpc.PolicyAdminServiceStub(channel)  # type: ignore[no-untyped-call]
        self._round_ms = round_ms
        self._accepted = accepted
        self._sequence = 0
        self._next_outcomes: list[policy_pb2.BurstOutcome] = []
        self.open_request = policy_pb2.OpenLaneRequest(
            key=policy_pb2.PolicyKey(
                target=target,
                drafter="drafter",
                hardware="test",
                draft_width=draft_width,
                target_fingerprint="t1",
                drafter_fingerprint="d1",
                dtype="float32",
                backend="cpu",
                blas="reference",
                mlx_version="1",
            ),
            capabilities=policy_pb2.LaneCapabilities(batchable=True, max_width=8, drafter_kind="mtp_head"),
            instance_id="test",
        )
        opened = self.stub.OpenLane(self.open_request, timeout=10)
        self.lane_id: str = opened.lane_id
        self.snapshot: policy_pb2.PolicySnapshot = opened.snapshot

    def request(self) -> policy_pb2.DecideBurstRequest:
        """The question that `burst` would ask."""
        situation = policy_pb2.Situation(width=1, depth_tokens=64, min_emitted_tokens=100, eligible=True)
        return policy_pb2.DecideBurstRequest(lane_id=self.lane_id, situation=situation, outcomes=self._next_outcomes)

    def burst(self) -> policy_pb2.BurstGrant:
        """Asks for a grant, with the outcome of the last one, and runs it."""
        grant: policy_pb2.BurstGrant = self.stub.DecideBurst(self.request(), timeout=10).grant
        self.run(grant)
        return grant

    def run(self, grant: policy_pb2.BurstGrant) -> None:
        """Measures the steps of a grant; the next `burst` or `report` delivers them."""
        self._sequence += 1
        steps = [self._step(grant) for _ in range(grant.max_steps)]
        self._next_outcomes = [policy_pb2.BurstOutcome(grant_id=grant.grant_id, sequence=self._sequence, steps=steps)]

    def report(self) -> None:
        """Delivers the last outcome without asking for a grant."""
        request = policy_pb2.ReportBurstRequest(lane_id=self.lane_id, outcomes=self._next_outcomes)
        self.stub.ReportBurst(request, timeout=10)
        self._next_outcomes = []

    def settle(self) -> policy_pb2.BurstGrant:
        """Runs bursts until the pairing is no longer profiled."""
        which = admin_pb2.GetVerdictRequest(key_hash=self.snapshot.key_hash)
        for _ in range(200):
            grant = self.burst()
            state = self._admin.GetVerdict(which, timeout=10).verdict.snapshot.state
            if state != policy_pb2.POLICY_STATE_PROFILING:
                return grant
        raise AssertionError("two hundred bursts settled nothing")

    def _step(self, grant: policy_pb2.BurstGrant) -> policy_pb2.StepRecord:
        step = policy_pb2.StepRecord(mode=grant.mode, draft_width=grant.draft_width, width=1, depth_tokens=64)
        if grant.draft_width == 1:
            step.emitted, step.verify_ms, step.wall_ms = 1, 20.0, 20.0
            return step
        accepted = min(self._accepted, grant.draft_width - 1)
        step.emitted, step.proposed = accepted + 1, grant.draft_width - 1
        step.accepted_by_position.extend([1] * accepted)
        step.draft_ms, step.verify_ms, step.wall_ms = 2.0, self._round_ms - 2.0, self._round_ms
        return step


@pytest.fixture
def policy_lane() -> type[PolicyLane]:
    """Plays a decode instance; see the top of this file."""
    return PolicyLane


@pytest.fixture
def free_port() -> int:
    """A TCP port that was free a moment ago; prefer port 0 where the process says what it got."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""One decode service for the folder, and a policy port that is served by whatever a test puts there."""

import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from tests.conftest import Processes, RunningProcess
from tests.integration.decode.asking import Decode

from burstgate.policy.v1 import policy_pb2_grpc

START_S = 240.0


class PolicyPort:
    """The address that the decode service asks: a real policy service, another server, or nobody."""

    def __init__(self, processes: Processes, hints: Path) -> None:
        self._processes = processes
        self._hints = hints
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.process: RunningProcess | None = None

    def start(self) -> RunningProcess:
        """The real service, unless it runs already."""
        if self.process is None or not self.process.running:
            self.process = self._start(self.address)
        return self.process

    def elsewhere(self) -> RunningProcess:
        """A real service at another address."""
        return self._start("127.0.0.1:0")

    def kill(self) -> None:
        if self.process is not None and self.process.running:
            self.process.kill()

    def freeze(self) -> None:
        assert self.process is not None
        self.process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.signal(signal.SIGCONT)

    @contextmanager
    def served_by(self, servicer: policy_pb2_grpc.PolicyServiceServicer) -> Iterator[None]:
        """Another server in place of the real one."""
        self.kill()
        server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        policy_pb2_grpc.add_PolicyServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(self.address)
        server.start()
        try:
            yield
        finally:
            server.stop(None).wait()

    def _start(self, listen: str) -> RunningProcess:
        env = {"BURSTGATE_POLICY_LISTEN": listen, "BURSTGATE_HINT_DIR": str(self._hints)}
        return self._processes.start(["-m", "burstgate_policy"], env)


@pytest.fixture(scope="session")
def _processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    processes = Processes(tmp_path_factory.mktemp("processes"))
    yield processes
    processes.close()


@pytest.fixture(scope="session")
def _port(_processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> PolicyPort:
    return PolicyPort(_processes, tmp_path_factory.mktemp("hints"))


@pytest.fixture
def policy(_port: PolicyPort) -> Iterator[PolicyPort]:
    """The port, with the real service behind it when a test begins."""
    _port.start()
    yield _port
    if _port.process is not None and _port.process.running:
        _port.thaw()


@pytest.fixture(scope="session")
def decode(_processes: Processes, _port: PolicyPort) -> Iterator[Decode]:
    """The default pair, asking at the port."""
    _port.start()
    env = {"BURSTGATE_DECODE_LISTEN": "127.0.0.1:0", "BURSTGATE_POLICY_ADDRESS": _port.address}
    service = _processes.start(["-m", "burstgate_decode"], env, timeout_s=START_S)
    connected = Decode(service.address, service.pid)
    yield connected
    connected.close()

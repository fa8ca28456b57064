"""One `burstgate serve` for the folder's tests: the real command, its two real services, the default pair."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

# Loading, the exactness probe and the cost table, on a machine that is busy with other tests.
START_S = 280
DRAIN_S = 90
STOP_S = 2 * DRAIN_S
COMMAND_S = 120

BURSTGATE = Path(sys.executable).with_name("burstgate")


class Served:
    """A running `burstgate serve`."""

    def __init__(self, folder: Path) -> None:
        self._environment = {
            **os.environ,
            "BURSTGATE_HINT_DIR": str(folder / "hints"),
            # That a running answer may finish is under test, not how fast a busy machine finishes it.
            "BURSTGATE_DRAIN_TIMEOUT_S": str(DRAIN_S),
            "COLUMNS": "80",
        }
        self._environment.pop("BURSTGATE_ADDRESS", None)
        self.process = subprocess.Popen(
            [BURSTGATE, "serve", "--decode-listen", "127.0.0.1:0", "--policy-listen", "127.0.0.1:0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self.ready: list[str] = []
        self.errors: list[str] = []
        for stream, take in ((self.process.stdout, self._lines.put), (self.process.stderr, self.errors.append)):
            threading.Thread(target=_read, args=(stream, take), daemon=True).start()
        self._read_until_ready()

    @property
    def decode(self) -> str:
        """Address of the decode service."""
        return self._named("decode")

    @property
    def policy(self) -> str:
        """Address of the policy service."""
        return self._named("policy")

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Runs another `burstgate` command to its end."""
        return subprocess.run(
            [BURSTGATE, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            env=self._environment,
            check=False,
        )

    def service(self, module: str) -> psutil.Process:
        """The process of one of the services."""
        for child in psutil.Process(self.process.pid).children():
            if module in child.cmdline():
                return child
        raise AssertionError(f"no {module} among the children; stderr so far: {self.errors}")

    def interrupt(self) -> int:
        """Ctrl-C, and the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(STOP_S)

    def _read_until_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while not self.ready or "Ctrl-C" not in self.ready[-1]:
            try:
                self.ready.append(self._lines.get(timeout=1).rstrip("\n"))
            except queue.Empty:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.process.kill()
                    raise AssertionError(f"serve did not start: {''.join(self.errors)}") from None

    def _named(self, name: str) -> str:
        return next(line.split()[1] for line in self.ready if line.startswith(f"  {name} "))


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    running = Served(tmp_path_factory.mktemp("serve"))
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.interrupt()


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], None]:
    """Waits for a condition."""

    def wait(condition: Callable[[], Any], limit_s: float = 60) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.1)

    return wait


def _read(stream: Any, take: Callable[[str], None]) -> None:
    for line in stream:
        take(line)

"""A service of this project as a child process at an address of its own: started, killed, started again."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from burstgate import BurstgateError, Client, Health, PolicyClient

_STOP_TIMEOUT_S = 15.0
_POLL_S = 0.05
_LOG_TAIL_CHARS = 4000


class ServiceStartError(Exception):
    """A service did not start; the text ends with its log."""


class ServiceProcess:
    """One of the two services. Only what was started here is ever ended."""

    def __init__(
        self,
        module: str,
        address: str,
        arguments: Sequence[str],
        log: Path,
        *,
        settings: Mapping[str, str] | None = None,
        start_timeout_s: float = 60.0,
    ) -> None:
        """`settings` are BURSTGATE_ variables; those of the shell, such as a forced verdict, are not passed on."""
        self.address = address
        self._module = module
        self._command = [sys.executable, "-m", module, "--listen", address, *arguments]
        self._log = log
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("BURSTGATE_")}
        self._environment = {**inherited, **(settings or {})}
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running process."""
        if self._process is None:
            raise RuntimeError(f"{self._module} was not started")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How the process ended; None while it runs."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Starts it and waits until it serves. Raises `ServiceStartError`."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_serving(self._process)

    def kill(self) -> None:
        """Ends it without a chance to clean up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Asks it to end, and ends it if it does not."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def _wait_serving(self, process: subprocess.Popen[bytes]) -> None:
        deadline_s = time.monotonic() + self._start_timeout_s
        client = PolicyClient if self._module == "burstgate_policy" else Client
        with client(self.address) as asked:
            while True:
                with contextlib.suppress(BurstgateError):
                    if asked.health(timeout_s=1.0) is Health.SERVING:
                        return
                ended = process.poll()
                if ended is not None or time.monotonic() > deadline_s:
                    late = f"did not serve in {self._start_timeout_s:.0f} s"
                    why = f"ended with {ended}" if ended is not None else late
                    tail = self._log.read_text(errors="replace")[-_LOG_TAIL_CHARS:]
                    raise ServiceStartError(f"{self._module} {why}; its log:\n{tail}")
                time.sleep(_POLL_S)

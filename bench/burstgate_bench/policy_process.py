"""A real policy service for one measurement: a child process on a Unix socket, with no verdict remembered.

Nothing of it outlives the `with` block: neither the process nor its folder.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from burstgate import BurstgateError, Health, PolicyClient

# Importing gRPC takes seconds on a busy machine.
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 15.0
_POLL_S = 0.05
_LOG_TAIL_CHARS = 4000


class PolicyStartError(Exception):
    """The policy service did not start; the text ends with its log."""


@contextlib.contextmanager
def policy_process() -> Iterator[str]:
    """Runs the service and yields its address. Raises `PolicyStartError`."""
    with tempfile.TemporaryDirectory(prefix="burstgate-bench-") as name:
        folder = Path(name)
        address = f"unix:{folder}/policy.sock"
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "burstgate_policy", "--listen", address, "--hint-dir", str(folder / "hints")],
                # Settings of the shell, such as a forced verdict, would measure something else.
                env={key: value for key, value in os.environ.items() if not key.startswith("BURSTGATE_")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            _wait_serving(address, process, folder / "log")
            yield address
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_serving(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    with PolicyClient(address) as client:
        while True:
            with contextlib.suppress(BurstgateError):
                if client.health(timeout_s=1.0) is Health.SERVING:
                    return
            ended = process.poll()
            if ended is not None or time.monotonic() > deadline_s:
                why = f"ended with {ended}" if ended is not None else f"did not serve in {_START_TIMEOUT_S:.0f} s"
                tail = log.read_text(errors="replace")[-_LOG_TAIL_CHARS:]
                raise PolicyStartError(f"the policy service {why}; its log:\n{tail}")
            time.sleep(_POLL_S)

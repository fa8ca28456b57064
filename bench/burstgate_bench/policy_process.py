"""A real policy service for one measurement: a child process on a Unix socket, with no verdict remembered.

Nothing of it outlives the `with` block: neither the process nor its folder.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from burstgate_bench.service_process import ServiceProcess


@contextlib.contextmanager
def policy_process() -> Iterator[str]:
    """Runs the service and yields its address. Raises `ServiceStartError`."""
    with tempfile.TemporaryDirectory(prefix="burstgate-bench-") as name:
        service = policy_in(Path(name))
        try:
            service.start()
            yield service.address
        finally:
            service.stop()


def policy_in(folder: Path) -> ServiceProcess:
    """The service with all its files in a folder, not started."""
    hints = ["--hint-dir", str(folder / "hints")]
    return ServiceProcess("burstgate_policy", f"unix:{folder}/policy.sock", hints, folder / "policy.log")

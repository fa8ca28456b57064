"""What the commands share before and after they run: logs, the BLAS, and errors as one line.

Never imports mlx: the BLAS must be chosen first.
"""

import contextlib
import signal
import sys
from collections.abc import Iterator

import typer

from burstgate_bench.answers import TooShortError
from burstgate_bench.service_process import ServiceStartError
from burstgate_decode.config import DecodeSettings
from burstgate_decode.models.blas import BlasReport, install_blas
from burstgate_decode.models.errors import ModelError
from burstgate_runtime.logs import configure_logs
from burstgate_runtime.settings import SettingsError, load_settings


class NothingToMeasureError(Exception):
    """The pairing does not speculate. The text says why."""


@contextlib.contextmanager
def prepared(command: str) -> Iterator[BlasReport]:
    """Puts the BLAS in place; an expected error inside the block ends the command with exit code 2."""
    # By default it would end the process at once and leave the policy service running.
    signal.signal(signal.SIGTERM, _stop)
    try:
        settings = load_settings(DecodeSettings, log_level="warning", log_format="console")
        configure_logs(settings.log_level, settings.log_format)
        report = install_blas(settings.blas, settings.cache_dir / "blas" if settings.cache_dir else None)
        if report.note:
            print(f"{command}: {report.note}", file=sys.stderr)
        yield report
    except (SettingsError, ModelError, ServiceStartError, NothingToMeasureError, TooShortError) as error:
        print(f"{command}: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


def _stop(number: int, _frame: object) -> None:
    # Once is enough: a second exit in the middle of cleaning up would leave threads that nobody ends.
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)

"""The command that runs the decode service: `burstgate-decode`, or `python -m burstgate_decode`.

The BLAS is put in place before anything imports mlx, so this module imports the server late. Exit codes: 0
after a completed drain, 1 if it could not start or was stopped without draining, 2 for a setting that
cannot be used.
"""

import asyncio
import difflib
import os
import sys
from typing import Annotated

import structlog
import typer

from burstgate_decode.config import DecodeSettings
from burstgate_decode.models.blas import BlasReport, install_blas
from burstgate_decode.models.errors import ModelError
from burstgate_runtime.logs import configure_logs
from burstgate_runtime.settings import SettingsError, load_settings, unknown_variables, variable_names


def main() -> None:
    """Runs the command line."""
    typer.run(_serve)


def _serve(
    listen: Annotated[str | None, typer.Option(help="host:port or unix:/path. [BURSTGATE_DECODE_LISTEN]")] = None,
    policy_address: Annotated[
        str | None, typer.Option(help="The policy service's address, or none. [BURSTGATE_POLICY_ADDRESS]")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Folder or hub repository, or default. [BURSTGATE_TARGET]")] = None,
    drafter: Annotated[str | None, typer.Option(help="Folder or hub repository, or none. [BURSTGATE_DRAFTER]")] = None,
    blas: Annotated[
        str | None, typer.Option(help="auto, openblas or reference; Linux CPUs only. [BURSTGATE_BLAS]")
    ] = None,
    exactness: Annotated[str | None, typer.Option(help="guarded, fast or strict. [BURSTGATE_EXACTNESS]")] = None,
    log_format: Annotated[str | None, typer.Option(help="json or console. [BURSTGATE_LOG_FORMAT]")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. [BURSTGATE_LOG_LEVEL]")] = None,
) -> None:
    """Streams tokens of one model over gRPC, decoded speculatively where that pays.

    Settings come from BURSTGATE_ variables; a flag wins over its variable.
    """
    try:
        settings = load_settings(
            DecodeSettings,
            listen=listen,
            policy_address=policy_address,
            target=target,
            drafter=drafter,
            blas=blas,
            exactness=exactness,
            log_format=log_format,
            log_level=log_level,
        )
    except SettingsError as error:
        print(f"burstgate-decode: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    configure_logs(settings.log_level, settings.log_format)
    log = structlog.get_logger()
    _warn_of_misspellings()
    try:
        report = install_blas(settings.blas, settings.cache_dir / "blas" if settings.cache_dir else None)
    except ModelError as error:
        log.error("cannot start", reason=error.reason, why=str(error))
        raise typer.Exit(1) from None
    if report.note:
        log.warning("blas", name=report.name, note=report.note)
    raise typer.Exit(_run(settings, report))


def _run(settings: DecodeSettings, blas: BlasReport) -> int:
    # The gRPC core reads this when it is first imported, and writes lines in a format of its own.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from burstgate_decode.engine.engine import EngineDiedError
    from burstgate_decode.server import serve
    from burstgate_runtime.serving import ServeError

    try:
        return 0 if asyncio.run(serve(settings, blas)) else 1
    except ServeError as error:
        structlog.get_logger().error("cannot start", why=str(error))
    except EngineDiedError as error:
        structlog.get_logger().error("cannot go on", why=str(error))
    except ModelError as error:
        structlog.get_logger().error("cannot start", reason=error.reason, why=str(error))
    except Exception:  # noqa: BLE001  (the last boundary: whatever it was is a line of the log)
        structlog.get_logger().exception("failed")
    return 1


def _warn_of_misspellings() -> None:
    """Warns of variables that differ from one of ours by a letter or two; others may be another service's."""
    known = variable_names(DecodeSettings)
    for name in unknown_variables(known, os.environ):
        meant = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
        if meant:
            structlog.get_logger().warning("unknown variable", variable=name, did_you_mean=meant[0])


if __name__ == "__main__":
    main()

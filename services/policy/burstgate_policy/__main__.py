"""The command that runs the policy service: `burstgate-policy`, or `python -m burstgate_policy`.

Exit codes: 0 after a completed drain, 1 if it could not start or was stopped without draining, 2 for
a setting that cannot be used.
"""

import asyncio
import difflib
import os
import sys
from typing import Annotated

import structlog
import typer

from burstgate_policy.config import PolicySettings
from burstgate_runtime.logs import configure_logs
from burstgate_runtime.settings import SettingsError, load_settings, unknown_variables, variable_names


def main() -> None:
    """Runs the command line."""
    typer.run(_serve)


def _serve(
    listen: Annotated[str | None, typer.Option(help="host:port or unix:/path. [BURSTGATE_POLICY_LISTEN]")] = None,
    hint_dir: Annotated[str | None, typer.Option(help="Folder of the stored verdicts. [BURSTGATE_HINT_DIR]")] = None,
    log_format: Annotated[str | None, typer.Option(help="json or console. [BURSTGATE_LOG_FORMAT]")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. [BURSTGATE_LOG_LEVEL]")] = None,
) -> None:
    """Decides when a decode service speculates.

    Settings come from BURSTGATE_ variables; a flag wins over its variable.
    """
    try:
        settings = load_settings(
            PolicySettings, listen=listen, hint_dir=hint_dir, log_format=log_format, log_level=log_level
        )
    except SettingsError as error:
        print(f"burstgate-policy: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    configure_logs(settings.log_level, settings.log_format)
    _warn_of_misspellings()
    raise typer.Exit(_run(settings))


def _run(settings: PolicySettings) -> int:
    # The gRPC core reads this when it is first imported, and writes lines in a format of its own.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from burstgate_policy.server import serve
    from burstgate_runtime.serving import ServeError

    try:
        return 0 if asyncio.run(serve(settings)) else 1
    except ServeError as error:
        structlog.get_logger().error("cannot start", why=str(error))
        return 1


def _warn_of_misspellings() -> None:
    """Warns of variables that differ from one of ours by a letter or two; others may be another service's."""
    known = variable_names(PolicySettings)
    for name in unknown_variables(known, os.environ):
        meant = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
        if meant:
            structlog.get_logger().warning("unknown variable", variable=name, did_you_mean=meant[0])


if __name__ == "__main__":
    main()

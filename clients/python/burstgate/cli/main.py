"""The `burstgate` command: one program, one module a command group.

Owns the list of commands and the process-wide set-up. A command imports what only it needs, so that the
client commands work where the services are not installed.
"""

from __future__ import annotations

import io
import os
import sys
from importlib.metadata import version as installed_version

import typer

from burstgate.cli import calibrate, chat, generate, models, policy, serve

app = typer.Typer(
    name="burstgate",
    help="Serves language models with speculative decoding, and talks to such a server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
models.app.command("calibrate")(calibrate.calibrate)
app.add_typer(models.app, name="models")
app.add_typer(policy.app, name="policy")


@app.command("version")
def version() -> None:
    """Print the version."""
    typer.echo(f"burstgate {installed_version('burstgate')}")


def run() -> None:
    """Entry point of the `burstgate` script."""
    # gRPC's core would write connection notices of its own between the answer's lines.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A model may write a character that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="replace")
    app(prog_name="burstgate")

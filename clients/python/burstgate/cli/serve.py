"""`burstgate serve`: both services on this machine, with one command and one Ctrl-C.

Owns the services' command lines and what the person at the terminal sees. The services themselves are
processes of their own; nothing of them is imported here.
"""

from __future__ import annotations

import asyncio
import enum
import importlib.util
import logging
import logging.handlers
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.status import Status

from burstgate.cli import models
from burstgate.cli._child import ChildSpec, LogLine
from burstgate.cli._listen import ListenError, claim, dial
from burstgate.cli._supervisor import Supervisor
from burstgate.cli._terminal import DECODE_ADDRESS, EXIT_INTERRUPTED, POLICY_ADDRESS, errors, fail

DEFAULT_TARGET = "default"

# What a service may take to stop after its drain limit: closing caches, flushing logs, leaving MLX.
_STOP_MARGIN_S = 10.0
# The services' own default of BURSTGATE_DRAIN_TIMEOUT_S.
_DRAIN_S = 10.0
_LOG_BYTES = 10 * 1024 * 1024
_LOG_FILES = 3


class LogFormat(enum.StrEnum):
    """Values of --log-format."""

    console = "console"
    json = "json"


def serve(
    decode_listen: Annotated[
        str,
        typer.Option(envvar="BURSTGATE_DECODE_LISTEN", help="Where requests are taken: host:port or unix:/path."),
    ] = DECODE_ADDRESS,
    policy_listen: Annotated[
        str, typer.Option(envvar="BURSTGATE_POLICY_LISTEN", help="Where the policy service listens.")
    ] = POLICY_ADDRESS,
    target: Annotated[
        str, typer.Option(envvar="BURSTGATE_TARGET", help="Folder or hub repository of the target.")
    ] = DEFAULT_TARGET,
    drafter: Annotated[
        str | None,
        typer.Option(
            envvar="BURSTGATE_DRAFTER",
            help='Folder or hub repository of the drafter, or "none"; the default target brings its own.',
        ),
    ] = None,
    no_policy: Annotated[
        bool, typer.Option("--no-policy", help="Start no policy service; measured costs alone decide.")
    ] = False,
    log_format: Annotated[LogFormat, typer.Option(help="How the services' warnings look here.")] = LogFormat.console,
) -> None:
    """Serve a model: starts the policy and the decode service and stops both on Ctrl-C."""
    missing = [name for name in ("mlx", "structlog") if importlib.util.find_spec(name) is None]
    if missing:
        fail(models.NEEDS_DECODE)
    try:
        decode_at = claim(decode_listen)
        policy_at = None if no_policy else claim(policy_listen)
        if decode_at == policy_at:
            raise ListenError(f"{decode_at}: --decode-listen and --policy-listen must differ")
    except ListenError as error:
        fail(f"{error}; choose others with --decode-listen and --policy-listen")
    try:
        if target == DEFAULT_TARGET:
            models.prepare_default_pair(models.named_cache())
        log_file = _log_file(decode_at)
        screen = TerminalScreen(decode_at, policy_at, log_file, log_format)
        supervisor = Supervisor(
            decode_spec(decode_at, policy_at, target, drafter),
            policy_spec(policy_at) if policy_at else None,
            screen,
            _file_log(log_file),
        )
        code = asyncio.run(supervisor.run())
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    raise typer.Exit(code)


def decode_spec(listen: str, policy: str | None, target: str, drafter: str | None) -> ChildSpec:
    """The decode service's process."""
    command = [sys.executable, "-m", "burstgate_decode", "--listen", listen, "--target", target]
    command += ["--policy-address", dial(policy) if policy else "none"]
    command += ["--drafter", drafter] if drafter else []
    return ChildSpec("decode", tuple(command), _environment(), dial(listen), _drain_limit_s())


def policy_spec(listen: str) -> ChildSpec:
    """The policy service's process."""
    command = (sys.executable, "-m", "burstgate_policy", "--listen", listen)
    return ChildSpec("policy", command, _environment(), dial(listen), _drain_limit_s())


class TerminalScreen:
    """Tells a run's story: a spinner until both services are healthy, then where they are and what to try."""

    def __init__(self, decode: str, policy: str | None, log_file: Path, log_format: LogFormat) -> None:
        self._decode = decode
        self._policy = policy
        self._log_file = log_file
        self._log_format = log_format
        self._status: Status | None = None

    def starting(self) -> None:
        """Shows the spinner."""
        names = "decode service" if self._policy is None else "policy and decode services"
        if errors.is_terminal:
            self._status = errors.status(f"Starting the {names}")
            self._status.start()
        else:
            errors.print(f"Starting the {names}")

    def line(self, line: LogLine) -> None:
        """Shows a warning; before serving, shows what a service is busy with."""
        if line.is_warning:
            self._show(line)
        elif self._status is not None and line.event:
            news = f"{line.service}: {line.event.replace('_', ' ')}"
            self._status.update(f"Starting; last news from {escape(news)}")

    def serving(self) -> None:
        """Says where the services listen and what to try."""
        self._end_status()
        typer.echo(ready_text(self._decode, self._policy, self._log_file))

    def died(self, name: str, code: int, tail: Sequence[LogLine]) -> None:
        """Shows why: what it wrote last, less the warnings that are on the screen already."""
        self._end_status()
        for line in tail:
            if not line.is_warning:
                self._show(line)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        errors.print("[bold red]burstgate:[/] ", end="")
        text = f"the {name} service ended ({how}); its log is {self._log_file}"
        errors.print(text, markup=False, soft_wrap=True)

    def restarting(self, name: str, code: int, wait_s: float) -> None:
        """Says so; decoding goes on."""
        errors.print(
            f"[yellow]The {name} service ended ({code}); starting it again in {wait_s:g} s. "
            "Decoding goes on without it.[/]"
        )

    def draining(self) -> None:
        """Says what is waited for."""
        self._end_status()
        errors.print("Stopping: running answers may finish; Ctrl-C again ends them now.", style="dim")

    def stopped(self) -> None:
        """Says that the terminal is free again."""
        errors.print("Stopped.", style="dim")

    def _show(self, line: LogLine) -> None:
        if self._log_format is LogFormat.json or not line.level:
            errors.print(line.text, markup=False, soft_wrap=True)
            return
        hidden = {"timestamp", "exception"}
        fields = " ".join(f"{key}={value}" for key, value in line.fields.items() if key not in hidden)
        style = {"info": "dim", "debug": "dim", "warning": "yellow"}.get(line.level, "red")
        errors.print(
            f"[{style}]{line.level}[/] [bold]{line.service}[/] {escape(line.event)} [dim]{escape(fields)}[/]",
            soft_wrap=True,
        )

    def _end_status(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def ready_text(decode: str, policy: str | None, log_file: Path) -> str:
    """Where the services are, and three things to do next."""
    address = dial(decode)
    at = "" if address == DECODE_ADDRESS else f" --address {shlex.quote(address)}"
    where = f"-unix {shlex.quote(address.removeprefix('unix:'))}" if address.startswith("unix:") else address
    rpc = "burstgate.decode.v1.DecodeService/Generate"
    body = shlex.quote('{"text": "One, two, three,", "max_tokens": 16}')
    return "\n".join(
        [
            "Burstgate is serving.",
            f"  decode  {decode}",
            f"  policy  {policy or 'none'}",
            f"  log     {log_file}",
            "Try",
            f'  {_program("burstgate")} generate{at} "Count from one to twenty."',
            f"  {_program('grpcurl')} -plaintext -d {body} {where} {rpc}",
            "  Ctrl-C here stops both services.",
        ]
    )


def _program(name: str) -> str:
    """How to call a program from this shell: by name, or by path when only this environment has it."""
    beside = Path(sys.argv[0]).with_name(name)
    return name if shutil.which(name) or not beside.exists() else shlex.quote(str(beside))


def _environment() -> dict[str, str]:
    # JSON, because the supervisor reads the lines; --log-format is about how they are shown.
    environment = {**os.environ, "BURSTGATE_LOG_FORMAT": "json"}
    environment.pop("BURSTGATE_ADDRESS", None)  # the client commands' own, unknown to a service
    return environment


def _drain_limit_s() -> float:
    try:
        drain_s = float(os.environ.get("BURSTGATE_DRAIN_TIMEOUT_S", _DRAIN_S))
    except ValueError:
        drain_s = _DRAIN_S  # the service refuses the value at start and says so
    return drain_s + _STOP_MARGIN_S


def _log_file(decode: str) -> Path:
    name = "".join(character if character.isalnum() or character in ".-" else "-" for character in decode)
    return models.cache_folder() / "logs" / f"serve-{name}.log"


def _file_log(path: Path) -> logging.Logger:
    """A logger that writes lines as they are to one rotating file, and nowhere else."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(
            path, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES, encoding="utf-8", errors="replace"
        )
    except OSError as error:
        fail(f"the log file {path} cannot be written: {error.strerror or error}")
    log = logging.Logger("burstgate.serve")  # noqa: LOG001 - outside the tree: no handler of the root sees it
    log.addHandler(handler)
    return log

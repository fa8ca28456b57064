"""What every command shares at the edge: the error console, exit codes, and the address option.

Owns the one place where an error of the library becomes a line for a person and an exit code for a script.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from burstgate.errors import BurstgateError, DeadlineExceeded, InvalidRequest, Unavailable

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it

errors = Console(stderr=True, highlight=False)

DecodeAddress = Annotated[
    str,
    typer.Option("--address", envvar="BURSTGATE_ADDRESS", help="Decode service: host:port or unix:/path."),
]
DECODE_ADDRESS = "127.0.0.1:50051"
PolicyAddress = Annotated[str, typer.Option("--address", help="Policy service: host:port or unix:/path.")]
POLICY_ADDRESS = "127.0.0.1:50052"
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


def fail(text: str, code: int = EXIT_FAILURE) -> NoReturn:
    """Prints one line and ends the command."""
    errors.print("[bold red]burstgate:[/] ", end="")
    errors.print(text, markup=False, soft_wrap=True)
    raise typer.Exit(code)


@contextmanager
def reported(address: str) -> Iterator[None]:
    """Turns an error of a call to `address` into its line and its exit code."""
    try:
        yield
    except BurstgateError as error:
        fail(describe(error, address), exit_code(error))


def exit_code(error: BurstgateError) -> int:
    """What a script sees."""
    match error:
        case InvalidRequest():
            return EXIT_USAGE
        case Unavailable():
            return EXIT_UNAVAILABLE
        case _:
            return EXIT_FAILURE


def describe(error: BurstgateError, address: str) -> str:
    """One line: what is wrong, each field with its limit, and how to go on."""
    if isinstance(error, Unavailable) and not error.reason:
        if "connect" not in error.message.lower():
            return f"{address} went away before the call was finished: {error.message} (UNAVAILABLE)"
        return f"nobody answers at {address}; `burstgate serve` starts a server (UNAVAILABLE)"
    if isinstance(error, DeadlineExceeded) and not error.reason:
        return f"{address} did not finish within the timeout (DEADLINE_EXCEEDED)"
    parts = [error.message]
    parts += [f"{v.field}: {v.description}" for v in error.violations if v.field not in error.message]
    if error.retry_after_s is not None:
        parts.append(f"try again in {error.retry_after_s:g} s")
    line = "; ".join(" ".join(part.split()) for part in parts)
    return f"{line} ({error.reason or error.code})"

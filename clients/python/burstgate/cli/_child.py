"""One service process that `burstgate serve` started.

Owns the process, its log lines and its end. It runs in a session of its own, so that Ctrl-C in the terminal
reaches the supervisor alone, which then stops the services in order. Every line goes to the log file; only
warnings and worse go to the terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from burstgate.aio import AsyncClient
from burstgate.errors import BurstgateError
from burstgate.serving import Health

_POLL_S = 0.1
_POLL_TIMEOUT_S = 2.0
_READ_BYTES = 1 << 16
# Enough for a traceback with the lines that led to it.
_TAIL_LINES = 40


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line a service wrote, taken apart where it is one of its own."""

    service: str
    text: str
    """As written."""
    level: str = ""
    """Lower-case level; empty for a line that is no log record, such as a library's print."""
    event: str = ""
    fields: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_warning(self) -> bool:
        """Whether somebody at the terminal should see it."""
        return self.level in ("warning", "error", "critical", "exception")


def parse_log_line(service: str, text: str) -> LogLine:
    """Reads a JSON record; anything else is a line without a level."""
    try:
        record = json.loads(text)
    except ValueError:
        record = None
    if not isinstance(record, dict) or "event" not in record:
        return LogLine(service, text)
    level = str(record.pop("level", "")).lower()
    event = str(record.pop("event"))
    return LogLine(service, text, level, event, record)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run and where it will answer."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    address: str
    """What a client on this machine calls."""
    drain_limit_s: float
    """How long it may take to stop once asked to."""


class Child:
    """One run of a service; made anew for a restart."""

    def __init__(self, spec: ChildSpec, log: logging.Logger, on_line: Callable[[LogLine], None]) -> None:
        self.spec = spec
        self._log = log
        self._on_line = on_line
        self._tail: deque[LogLine] = deque(maxlen=_TAIL_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._pump: asyncio.Task[None] | None = None

    @property
    def tail(self) -> list[LogLine]:
        """The last lines it wrote."""
        return list(self._tail)

    @property
    def returncode(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.returncode if self._process else None

    async def start(self) -> None:
        """Starts the process."""
        self._process = await asyncio.create_subprocess_exec(
            *self.spec.command,
            env=dict(self.spec.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        if self._process.stdout is not None:
            self._pump = asyncio.create_task(self._read_lines(self._process.stdout))

    async def healthy(self) -> None:
        """Returns once the service reports that it serves."""
        async with AsyncClient(self.spec.address) as client:
            while True:
                with contextlib.suppress(BurstgateError):
                    if await client.health(timeout_s=_POLL_TIMEOUT_S) is Health.SERVING:
                        return
                await asyncio.sleep(_POLL_S)

    async def exited(self) -> int:
        """Returns the exit code once it has ended and its last line is read."""
        if self._process is None:
            return 0
        code = await self._process.wait()
        if self._pump is not None:
            # A process of its own that outlives it would hold the pipe open.
            await asyncio.wait([self._pump], timeout=1.0)
        return code

    async def stop(self, limit_s: float) -> int:
        """Asks it to drain, waits as long as it may take, and ends it then."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(limit_s):
                return await self.exited()
        except TimeoutError:
            self.kill()
            return await self.exited()

    def kill(self) -> None:
        """Ends it at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _read_lines(self, stream: asyncio.StreamReader) -> None:
        # Not readline: it fails on a line longer than its buffer, and a log line may hold a traceback.
        rest = b""
        while chunk := await stream.read(_READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._take(line)
        if rest:
            self._take(rest)

    def _take(self, written: bytes) -> None:
        text = written.decode(errors="replace").rstrip("\r")
        line = parse_log_line(self.spec.name, text)
        self._tail.append(line)
        self._log.info("%s", text)
        self._on_line(line)

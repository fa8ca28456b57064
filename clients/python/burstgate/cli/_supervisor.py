"""Runs the policy and the decode service side by side until one signal asks both to stop.

Owns the order of things: both start together; serving begins once both are healthy; a policy service that
dies is started again, since decoding goes on without it; a decode service that dies ends everything;
stopping drains decode first, so that its last outcomes still find the policy service. Must not print: a
Screen does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from burstgate.cli._child import Child, ChildSpec, LogLine

EXIT_STOPPED = 0
EXIT_CHILD_DIED = 1

# A service that is still loading has nothing to drain, and may be too deep in a load to hear the signal.
_START_STOP_S = 2.0

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class BackOff:
    """How long to wait before starting the policy service again."""

    first_s: float = 0.5
    """A crash is usually a single one: come back before anybody notices."""
    most_s: float = 30.0
    """One that cannot start must not fill the log."""
    settled_s: float = 60.0
    """A run this long was a good one; the next wait is the first again."""


class Screen(Protocol):
    """What the person at the terminal is told."""

    def starting(self) -> None:
        """Both services are being started."""

    def line(self, line: LogLine) -> None:
        """A service wrote a line."""

    def serving(self) -> None:
        """Both services are healthy."""

    def died(self, name: str, code: int, tail: Sequence[LogLine]) -> None:
        """A service ended by itself, and everything ends with it."""

    def restarting(self, name: str, code: int, wait_s: float) -> None:
        """The policy service ended by itself and will be started again."""

    def draining(self) -> None:
        """The services are asked to stop."""

    def stopped(self) -> None:
        """Every service has ended."""


class Supervisor:
    """One run of `burstgate serve`."""

    def __init__(
        self,
        decode: ChildSpec,
        policy: ChildSpec | None,
        screen: Screen,
        log: logging.Logger,
        back_off: BackOff = BackOff(),
    ) -> None:
        self._screen = screen
        self._log = log
        self._back_off = back_off
        self._decode = Child(decode, log, screen.line)
        self._policy = Child(policy, log, screen.line) if policy else None
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Runs until a signal comes or decode dies; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        keeper: asyncio.Task[None] | None = None
        served = False
        try:
            self._screen.starting()
            for child in self._children():
                await child.start()
            if not await self._all_healthy():
                return EXIT_STOPPED if self._stop.is_set() else EXIT_CHILD_DIED
            served = True
            self._screen.serving()
            if self._policy is not None:
                keeper = asyncio.create_task(self._keep_policy(self._policy))
            await _first(self._stop.wait(), self._decode.exited())
            if self._stop.is_set():
                return EXIT_STOPPED
            self._screen.died(self._decode.spec.name, self._decode.returncode or 0, self._decode.tail)
            return EXIT_CHILD_DIED
        finally:
            if keeper is not None:
                keeper.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await keeper
            if served:
                self._screen.draining()
            for child in reversed(self._children()):
                await child.stop(child.spec.drain_limit_s if served else _START_STOP_S)
            self._screen.stopped()

    def _children(self) -> list[Child]:
        return [child for child in (self._policy, self._decode) if child is not None]

    def _on_signal(self) -> None:
        if self._stop.is_set():
            for child in self._children():
                child.kill()
        self._stop.set()

    async def _all_healthy(self) -> bool:
        """Waits for every child; false, and said on the screen, once one has died or a signal has come."""
        children = self._children()
        healthy = asyncio.gather(*(child.healthy() for child in children))
        await _first(healthy, self._stop.wait(), *(child.exited() for child in children))
        if self._stop.is_set():
            return False
        for child in children:
            code = child.returncode
            if code is not None:
                self._screen.died(child.spec.name, code, child.tail)
                return False
        return True

    async def _keep_policy(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        wait_s = self._back_off.first_s
        while True:
            begun = loop.time()
            code = await child.exited()
            if loop.time() - begun >= self._back_off.settled_s:
                wait_s = self._back_off.first_s
            self._screen.restarting(child.spec.name, code, wait_s)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, self._back_off.most_s)
            child = self._policy = Child(child.spec, self._log, self._screen.line)
            await child.start()


async def _first(*waits: Awaitable[object]) -> None:
    """Returns when one of them has ended, raises if it failed, and cancels the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

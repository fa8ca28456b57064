"""The supervisor of `burstgate serve`, over real processes whose start and end a test shapes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from burstgate.cli._child import ChildSpec, LogLine, parse_log_line
from burstgate.cli._listen import claim
from burstgate.cli._supervisor import BackOff, Supervisor

TINY_SERVICE = Path(__file__).with_name("tiny_service.py")
WAIT_S = 30


class Told:
    """A screen that remembers, and lets a test wait for what it was told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.lines: list[LogLine] = []
        self.tail: list[LogLine] = []

    def starting(self) -> None:
        self._tell("starting")

    def line(self, line: LogLine) -> None:
        self.lines.append(line)

    def serving(self) -> None:
        self._tell("serving")

    def died(self, name: str, code: int, tail: Sequence[LogLine]) -> None:
        self.tail = list(tail)
        self._tell(f"{name} died {code}")

    def restarting(self, name: str, code: int, wait_s: float) -> None:
        self._tell(f"{name} restarting after {wait_s:g} s")

    def draining(self) -> None:
        self._tell("draining")

    def stopped(self) -> None:
        self._tell("stopped")

    def _tell(self, event: str) -> None:
        self.events.append(event)


class Run:
    """One supervised run."""

    def __init__(self, folder: Path, decode: str, policy: str | None, drain_limit_s: float) -> None:
        self.journal = folder / "journal"
        self.journal.touch()
        self.told = Told()
        log = logging.Logger("test")  # noqa: LOG001 - outside the tree, as serve makes it
        self.log_file = folder / "log"
        log.addHandler(logging.FileHandler(self.log_file))
        self.decode_at, self.policy_at = claim("127.0.0.1:0"), claim("127.0.0.1:0")
        self._supervisor = Supervisor(
            self._spec("decode", decode, self.decode_at, drain_limit_s),
            self._spec("policy", policy, self.policy_at, drain_limit_s) if policy else None,
            self.told,
            log,
            BackOff(first_s=0.05, most_s=0.1, settled_s=60),
        )
        self.task = asyncio.create_task(self._supervisor.run())

    def notes(self) -> list[list[str]]:
        return [line.split() for line in self.journal.read_text().splitlines()]

    def starts(self, address: str) -> list[int]:
        return [int(note[2]) for note in self.notes() if note[:2] == ["started", address]]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110 - what is waited for happens in other processes
                await asyncio.sleep(0.02)

    async def serving(self) -> None:
        await self.until(lambda: "serving" in self.told.events or self.task.done())

    def _spec(self, name: str, behaviour: str, address: str, drain_limit_s: float) -> ChildSpec:
        command = (sys.executable, str(TINY_SERVICE), behaviour, address, str(self.journal))
        return ChildSpec(name, command, dict(os.environ), address, drain_limit_s)


@pytest.fixture
async def start(tmp_path: Path) -> Any:
    runs: list[Run] = []

    def begin(decode: str = "good", policy: str | None = "good", drain_limit_s: float = 20.0) -> Run:
        runs.append(Run(tmp_path, decode, policy, drain_limit_s))
        return runs[-1]

    yield begin
    for run in runs:
        run.task.cancel()
        await asyncio.gather(run.task, return_exceptions=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_drains_decode_before_policy_and_ends_with_success(start: Any, number: signal.Signals) -> None:
    run = start()
    await run.serving()
    os.kill(os.getpid(), number)
    assert await run.task == 0
    assert run.told.events == ["starting", "serving", "draining", "stopped"]
    stops = [note[1] for note in run.notes() if note[0] == "stopped"]
    assert stops == [run.decode_at, run.policy_at]


async def test_children_have_sessions_of_their_own_so_that_ctrl_c_passes_them_by(start: Any) -> None:
    run = start()
    await run.serving()
    sessions = {int(note[3]) for note in run.notes()}
    assert len(sessions) == 2
    assert os.getsid(0) not in sessions


async def test_a_child_that_dies_at_start_ends_the_run_with_its_last_lines(start: Any) -> None:
    run = start(decode="broken")
    assert await run.task == 1
    assert "decode died 3" in run.told.events
    assert [line.text for line in run.told.tail] == ["Traceback: no such model"]
    assert "serving" not in run.told.events
    assert run.told.events[-1] == "stopped"


async def test_policy_dying_at_start_ends_the_run_too(start: Any) -> None:
    run = start(policy="broken")
    assert await run.task == 1
    assert "policy died 3" in run.told.events


async def test_a_policy_that_dies_later_is_started_again_with_growing_waits(start: Any) -> None:
    run = start()
    await run.serving()
    for restarts in (1, 2):
        os.kill(run.starts(run.policy_at)[-1], signal.SIGKILL)
        await run.until(lambda count=restarts: len(run.starts(run.policy_at)) == count + 1)
    assert [event for event in run.told.events if "restarting" in event] == [
        "policy restarting after 0.05 s",
        "policy restarting after 0.1 s",
    ]
    assert len(run.starts(run.decode_at)) == 1
    os.kill(os.getpid(), signal.SIGTERM)
    assert await run.task == 0


async def test_decode_dying_later_ends_the_run_and_stops_policy(start: Any) -> None:
    run = start()
    await run.serving()
    os.kill(run.starts(run.decode_at)[0], signal.SIGKILL)
    assert await run.task == 1
    assert "decode died -9" in run.told.events
    assert ["stopped", run.policy_at] in run.notes()


async def test_a_child_that_ignores_the_request_to_stop_is_ended_at_its_limit(start: Any) -> None:
    run = start(decode="stubborn", drain_limit_s=0.3)
    await run.serving()
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(WAIT_S):
        assert await run.task == 0
    _gone(run.starts(run.decode_at)[0])


async def test_a_second_signal_ends_a_stubborn_child_at_once(start: Any) -> None:
    run = start(decode="stubborn", drain_limit_s=600.0)
    await run.serving()
    os.kill(os.getpid(), signal.SIGINT)
    await run.until(lambda: "draining" in run.told.events)
    os.kill(os.getpid(), signal.SIGINT)
    async with asyncio.timeout(WAIT_S):
        assert await run.task == 0
    _gone(run.starts(run.decode_at)[0])


async def test_a_signal_during_the_start_stops_without_serving(start: Any) -> None:
    run = start()
    await run.until(lambda: "starting" in run.told.events)
    os.kill(os.getpid(), signal.SIGINT)
    assert await run.task == 0
    assert "serving" not in run.told.events


async def test_a_service_that_is_deaf_while_it_loads_does_not_hold_up_a_signal(start: Any) -> None:
    run = start(decode="deaf", drain_limit_s=600.0)
    await run.until(lambda: bool(run.starts(run.decode_at)))
    os.kill(os.getpid(), signal.SIGINT)
    async with asyncio.timeout(WAIT_S):
        assert await run.task == 0
    _gone(run.starts(run.decode_at)[0])


async def test_without_a_policy_only_decode_runs(start: Any) -> None:
    run = start(policy=None)
    await run.serving()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await run.task == 0
    assert {note[1] for note in run.notes()} == {run.decode_at}


async def test_every_line_reaches_the_log_file_as_it_was_written(start: Any) -> None:
    run = start(policy=None)
    await run.serving()
    os.kill(os.getpid(), signal.SIGTERM)
    await run.task
    assert '{"level": "warning", "event": "no hints", "folder": "/nowhere"}\n' in run.log_file.read_text()
    warnings = [line for line in run.told.lines if line.is_warning]
    assert [(line.service, line.event, dict(line.fields)) for line in warnings] == [
        ("decode", "no hints", {"folder": "/nowhere"})
    ]


@pytest.mark.parametrize("text", ["", "plain", "[1]", '{"level": "error"}', '{"event": '])
def test_a_line_that_is_no_record_has_no_level(text: str) -> None:
    line = parse_log_line("decode", text)
    assert (line.text, line.level, line.is_warning) == (text, "", False)


def _gone(pid: int) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

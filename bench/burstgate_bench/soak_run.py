"""Runs a soak and judges it: which ends of a call are documented, what must be flat, what must be back at zero."""

import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psutil

from burstgate import AsyncClient
from burstgate_bench.service_process import ServiceProcess
from burstgate_bench.soak_traffic import Tally, call_for_ever

_SAMPLE_EVERY_S = 2.0
_SAMPLES_A_SENTENCE = 30
_LONGEST_OUTAGE_S = 10.0
_DRAIN_S = 60.0
_FLAT_MIB = 64.0
"""Growth of the median resident size from the second quarter of the time to the last that is still flat: buffers
of all sizes come and go, and an allocator keeps some."""
_SETTLED_AFTER_S = 600.0
"""A shorter soak is all warm-up, and its memory is only reported."""
_MIB = 1 << 20

DOCUMENTED = frozenset(
    {"finished", "cancelled", "DEADLINE_EXCEEDED", "DEADLINE_UNREACHABLE", "QUEUE_FULL", "TENANT_QUEUE_FULL"}
)
"""Ends of a call that such traffic may meet; see docs/operators/errors.md."""


@dataclass(frozen=True)
class Sample:
    """The decode service at a moment."""

    at_s: float
    resident_mib: float
    threads: int
    files: int
    active: int
    queued: int


@dataclass
class Soaked:
    """What a soak found."""

    seconds: float
    tally: Tally
    outages: int = 0
    samples: list[Sample] = field(default_factory=list)
    left: tuple[int, int] = (0, 0)
    """Rows and queued answers after the last caller had gone."""
    exit_code: int | None = None
    """How the decode service ended, if it did."""

    @property
    def growth_mib(self) -> float:
        """Growth of resident memory after the warm-up, which is the first quarter."""
        quarter = len(self.samples) // 4
        if quarter == 0:
            return 0.0
        early, late = self.samples[quarter : 2 * quarter], self.samples[-quarter:]
        return statistics.median(one.resident_mib for one in late) - statistics.median(
            one.resident_mib for one in early
        )

    @property
    def broken(self) -> list[str]:
        """A sentence for everything that must not be."""
        sentences = [
            f"{count} calls ended with {end}, which is not documented for such traffic"
            for end, count in self.tally.ended.items()
            if end not in DOCUMENTED
        ]
        if self.exit_code is not None:
            sentences.append(f"the decode service ended with {self.exit_code}")
        if self.left != (0, 0):
            sentences.append(f"{self.left[0]} rows and {self.left[1]} queued answers were left")
        if self.seconds >= _SETTLED_AFTER_S and self.growth_mib > _FLAT_MIB:
            sentences.append(f"memory grew by {self.growth_mib:.0f} MiB after the warm-up")
        if self.tally.differing:
            sentences.append(f"{self.tally.differing} greedy answers differ from others to the same prompt")
        if not self.tally.ended["finished"]:
            sentences.append("no answer was finished")
        return sentences

    @property
    def line(self) -> dict[str, Any]:
        """The result as one JSON object."""
        busy = [one for one in self.samples if one.active]
        return {
            "seconds": round(self.seconds),
            "calls": sum(self.tally.ended.values()),
            "ended": dict(self.tally.ended),
            "tokens": self.tally.tokens,
            "policy_outages": self.outages,
            "token_gap_ms": _percentiles(self.tally.gaps_ms),
            "first_token_ms": _percentiles(self.tally.first_ms),
            "active_mean": round(statistics.fmean(one.active for one in busy), 1) if busy else 0.0,
            "resident_mib": [round(one.resident_mib) for one in self.samples[:: max(1, len(self.samples) // 12)]],
            "growth_mib": round(self.growth_mib, 1),
            "threads": [self.samples[0].threads, self.samples[-1].threads] if self.samples else [],
            "files": [self.samples[0].files, self.samples[-1].files] if self.samples else [],
            "rows_left": self.left[0],
            "queued_left": self.left[1],
            "differing_answers": self.tally.differing,
            "broken": len(self.broken),
        }


async def soak(
    decode: ServiceProcess,
    policy: ServiceProcess,
    seconds: float,
    callers: int,
    outages_per_s: float,
    seed: int,
    say: Callable[[str], None],
) -> Soaked:
    """Lets callers come for a time; both services run. The policy service may be down for moments in between."""
    soaked = Soaked(seconds, Tally())
    async with AsyncClient(decode.address) as client, asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(call_for_ever(client, Random(f"{seed} {caller}"), soaked.tally))
            for caller in range(callers)
        ]
        running.append(tasks.create_task(_watch(client, decode, soaked, say)))
        running.append(tasks.create_task(_break(policy, Random(seed), outages_per_s, soaked)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _ended(decode)
        # Whoever still reads leaves in the middle of an answer.
        for task in running:
            task.cancel()
    async with AsyncClient(decode.address) as client:
        soaked.exit_code = decode.exit_code
        if soaked.exit_code is None:
            soaked.left = await _drained(client)
    return soaked


async def _ended(process: ServiceProcess) -> None:
    while process.exit_code is None:  # noqa: ASYNC110  (a child process sets no event)
        await asyncio.sleep(_SAMPLE_EVERY_S)


async def _watch(client: AsyncClient, decode: ServiceProcess, soaked: Soaked, say: Callable[[str], None]) -> None:
    process, start_s = psutil.Process(decode.pid), time.monotonic()
    while True:
        await asyncio.sleep(_SAMPLE_EVERY_S)
        info = await client.server_info(timeout_s=_DRAIN_S)
        soaked.samples.append(
            Sample(
                at_s=time.monotonic() - start_s,
                resident_mib=process.memory_info().rss / _MIB,
                threads=process.num_threads(),
                files=process.num_fds(),
                active=info.active_rows,
                queued=info.queued_rows,
            )
        )
        if len(soaked.samples) % _SAMPLES_A_SENTENCE == 1:
            say(f"{soaked.samples[-1]}, {soaked.tally.tokens} tokens, {dict(soaked.tally.ended)}")


async def _break(policy: ServiceProcess, random: Random, outages_per_s: float, soaked: Soaked) -> None:
    while outages_per_s:
        await asyncio.sleep(random.expovariate(outages_per_s))
        await asyncio.to_thread(policy.kill)
        soaked.outages += 1
        await asyncio.sleep(random.uniform(0.0, _LONGEST_OUTAGE_S))
        await asyncio.to_thread(policy.start)


async def _drained(client: AsyncClient) -> tuple[int, int]:
    """Rows and queued answers once both are zero, or after a time."""
    deadline_s = time.monotonic() + _DRAIN_S
    while True:
        info = await client.server_info()
        if (info.active_rows, info.queued_rows) == (0, 0) or time.monotonic() > deadline_s:
            return info.active_rows, info.queued_rows
        await asyncio.sleep(0.1)


def _percentiles(values: list[float]) -> dict[str, float]:
    if len(values) < 2:
        return {}
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": round(cuts[49], 1), "p99": round(cuts[98], 1)}

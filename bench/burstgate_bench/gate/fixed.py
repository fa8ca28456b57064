"""Plain and every K, held through a whole world: what hindsight compares with.

Computed row by row in arrays: a row's path through its text does not depend on its neighbours. A test holds
it equal to the same modes driven burst by burst.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burstgate_bench.gate.machine import Floats
from burstgate_bench.gate.world import Text, World

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FixedRun:
    """A mode held to the end; arrays have one element a step."""

    draft_width: int
    """1 is plain."""
    tokens: Ints
    busy_ms: Floats

    @property
    def steps(self) -> int:
        """Steps to the end."""
        return len(self.tokens)

    @property
    def total_ms(self) -> float:
        """Time to the end."""
        return float(self.busy_ms[-1])

    def ms_until(self, tokens: int) -> float:
        """Time until so many tokens were emitted; inside a step, the share of it."""
        return float(np.interp(tokens, np.append(0, self.tokens), np.append(0.0, self.busy_ms)))


def fixed_runs(world: World) -> dict[int, FixedRun]:
    """Every fixed mode of a world by K."""
    return {k: fixed_run(world, k) for k in range(1, world.cap + 1)}


def fixed_run(world: World, draft_width: int) -> FixedRun:
    """One mode; where a row may not speculate it runs plain like every other. One stream then."""
    steps = _Walk(world, draft_width).run()
    base_ms, plain_ms = np.empty(len(steps.widths)), np.empty(len(steps.widths))
    for width in np.unique(steps.widths):
        costs, at = world.machine.costs.at(int(width)), steps.widths == width
        ks, depths = np.minimum(steps.rooms[at], draft_width), steps.depths[at]
        base_ms[at] = costs.fixed_ms[ks] + costs.slope_ms[ks] * depths
        plain_ms[at] = costs.fixed_ms[1] + costs.slope_ms[1] * depths
    busy_ms = world.machine.fresh().run(steps.widths, np.minimum(steps.rooms, draft_width), base_ms, plain_ms)
    return FixedRun(draft_width, np.cumsum(steps.emitted), busy_ms)


@dataclass(slots=True)
class _Steps:
    """What each step runs on: one element a step, summed or maximised over its rows."""

    widths: Ints
    emitted: Ints
    depths: Ints
    rooms: Ints
    """Most rows of a verify that some row of the batch still has room for."""

    @classmethod
    def none(cls, count: int) -> "_Steps":
        return cls(*(np.zeros(count, np.int64) for _ in range(4)))

    def first(self, count: int) -> "_Steps":
        return _Steps(self.widths[:count], self.emitted[:count], self.depths[:count], self.rooms[:count])

    def add(self, text: Text, draft_width: int, at: int) -> int:
        """Adds all steps of a text that joins at a step; the step before which it leaves."""
        length = len(text)
        starts = np.arange(length) if draft_width == 1 else _starts(text, draft_width)
        span = slice(at, at + len(starts))
        self.widths[span] += 1
        self.emitted[span] += np.append(starts[1:], length) - starts
        self.depths[span] = np.maximum(self.depths[span], starts + text.context_tokens)
        self.rooms[span] = np.maximum(self.rooms[span], np.where(starts < text.thinking_tokens, 1, length - starts))
        return span.stop


def _starts(text: Text, draft_width: int) -> Ints:
    """The positions at which a text's steps begin."""
    jumps = (np.minimum(np.frombuffer(text.accepted, np.uint8), draft_width - 1) + 1).astype(np.uint8)
    jumps[: text.thinking_tokens] = 1
    advance, places, place, length = jumps.tobytes(), [], 0, len(text)
    while place < length:
        places.append(place)
        place += advance[place]
    return np.array(places)


class _Walk:
    """The batch of a fixed mode, from one join or leave to the next."""

    def __init__(self, world: World, draft_width: int) -> None:
        if world.slots > 1 and any(text.thinking_tokens for text in (*world.texts, *world.visitors)):
            raise ValueError(
                f"{world.name}: a thinking row holds up its batch, which rows taken one by one cannot tell"
            )
        self._draft_width = draft_width
        self._slots = world.slots
        self._queue = deque(world.texts)
        self._visitors = deque(world.visitors)
        self._steps = _Steps.none(world.tokens)
        self._resident: list[int] = []
        """The step before which each row leaves."""
        self._visiting: list[int] = []
        self._emitted = 0

    def run(self) -> _Steps:
        now = 0
        self._admit(now)
        while self._resident or self._visiting:
            end = min(self._resident + self._visiting)
            emitted = np.cumsum(self._steps.emitted[now:end])
            if self._visitors:
                missing = self._visitors[0].after_tokens - self._emitted
                end = min(end, now + int(np.searchsorted(emitted, missing)) + 1)
            self._emitted += int(emitted[end - now - 1])
            now = end
            self._resident = [leaves for leaves in self._resident if leaves > now]
            self._visiting = [leaves for leaves in self._visiting if leaves > now]
            self._admit(now)
        return self._steps.first(now)

    def _admit(self, now: int) -> None:
        while self._queue and len(self._resident) < self._slots:
            self._resident.append(self._steps.add(self._queue.popleft(), self._draft_width, now))
        while self._visitors and self._visitors[0].after_tokens <= self._emitted:
            self._visiting.append(self._steps.add(self._visitors.popleft(), self._draft_width, now))
        if self._visitors and not self._resident and not self._visiting:
            self._visiting.append(self._steps.add(self._visitors.popleft(), self._draft_width, now))

"""Plain and every K, held through a whole world: what hindsight compares with.

Computed segment by segment between joins and leaves, in arrays; a test holds it equal to the same modes
driven burst by burst.
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
    walk = _Walk(world, draft_width)
    while walk.rows:
        walk.segment()
    widths, ks, depths = np.concatenate(walk.widths), np.concatenate(walk.ks), np.concatenate(walk.depths)
    base_ms, plain_ms = np.empty(len(widths)), np.empty(len(widths))
    for width in np.unique(widths):
        costs, at = world.machine.costs.at(int(width)), widths == width
        base_ms[at] = costs.fixed_ms[ks[at]] + costs.slope_ms[ks[at]] * depths[at]
        plain_ms[at] = costs.fixed_ms[1] + costs.slope_ms[1] * depths[at]
    busy_ms = world.machine.fresh().run(widths, ks, base_ms, plain_ms)
    return FixedRun(draft_width, np.cumsum(np.concatenate(walk.emitted)), busy_ms)


class _Path:
    """Where the steps of one text begin."""

    __slots__ = ("ends", "next", "room", "starts", "text")

    def __init__(self, text: Text, draft_width: int) -> None:
        length = len(text)
        jumps = (np.minimum(np.frombuffer(text.accepted, np.uint8), draft_width - 1) + 1).astype(np.uint8)
        jumps[: text.thinking_tokens] = 1
        advance = jumps.tobytes()
        starts, at = [], 0
        while at < length:
            starts.append(at)
            at += advance[at]
        self.text = text
        self.starts = np.array(starts)
        self.ends = np.append(self.starts[1:], length)
        self.room = np.where(self.starts < text.thinking_tokens, 1, length - self.starts)
        self.next = 0


class _Walk:
    """The batch of a fixed mode, many steps at a time."""

    def __init__(self, world: World, draft_width: int) -> None:
        if world.slots > 1 and any(text.thinking_tokens for text in (*world.texts, *world.visitors)):
            raise ValueError(f"{world.name}: a thinking row holds up its batch, which arrays of rows cannot tell")
        self._draft_width = draft_width
        self._slots = world.slots
        self._queue = deque(world.texts)
        self._visitors = deque(world.visitors)
        self._resident: list[_Path] = []
        self._visiting: list[_Path] = []
        self._total = 0
        self.rows: list[_Path] = []
        self.widths: list[Ints] = []
        self.ks: list[Ints] = []
        self.depths: list[Ints] = []
        self.emitted: list[Ints] = []
        self._admit()

    def segment(self) -> None:
        """Runs to the next join or leave."""
        rows = self.rows
        steps = min(len(row.starts) - row.next for row in rows)
        spans = [slice(row.next, row.next + steps) for row in rows]
        emitted = np.sum([row.ends[at] - row.starts[at] for row, at in zip(rows, spans, strict=True)], axis=0)
        if self._visitors:
            joins = int(np.searchsorted(np.cumsum(emitted), self._visitors[0].after_tokens - self._total)) + 1
            if joins < steps:
                steps, emitted = joins, emitted[:joins]
                spans = [slice(row.next, row.next + steps) for row in rows]
        room = np.max([row.room[at] for row, at in zip(rows, spans, strict=True)], axis=0)
        depth = np.max([row.starts[at] + row.text.context_tokens for row, at in zip(rows, spans, strict=True)], axis=0)
        self.widths.append(np.full(steps, len(rows)))
        self.ks.append(np.minimum(room, self._draft_width))
        self.depths.append(depth)
        self.emitted.append(emitted)
        self._total += int(emitted.sum())
        for row in rows:
            row.next += steps
        self._resident = [row for row in self._resident if row.next < len(row.starts)]
        self._visiting = [row for row in self._visiting if row.next < len(row.starts)]
        self._admit()

    def _admit(self) -> None:
        while self._queue and len(self._resident) < self._slots:
            self._resident.append(_Path(self._queue.popleft(), self._draft_width))
        while self._visitors and self._visitors[0].after_tokens <= self._total:
            self._visiting.append(_Path(self._visitors.popleft(), self._draft_width))
        if self._visitors and not self._resident and not self._visiting:
            self._visiting.append(_Path(self._visitors.popleft(), self._draft_width))
        self.rows = self._resident + self._visiting

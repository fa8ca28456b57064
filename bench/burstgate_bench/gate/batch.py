"""The rows that are decoding: who joins, who leaves, and what a step emits. Knows nothing of time or policies."""

from collections import deque
from itertools import accumulate

from burstgate_bench.gate.world import Text, World
from burstgate_policy.core.types import Situation


class Row:
    """One text that is being decoded."""

    __slots__ = ("accepted", "emitted", "length", "text")

    def __init__(self, text: Text) -> None:
        self.text = text
        self.accepted = text.accepted
        self.length = len(text)
        self.emitted = 0


class Batch:
    """A world in the course of being decoded."""

    def __init__(self, world: World) -> None:
        self._cap = world.cap
        self._slots = world.slots
        self._queue = deque(world.texts)
        self._visitors = deque(world.visitors)
        self._resident: list[Row] = []
        self._visiting: list[Row] = []
        self.rows: list[Row] = []
        self.emitted = 0
        self._admit()

    def situation(self) -> Situation:
        """What the next burst would run on."""
        rows = self.rows
        row = rows[0]
        if len(rows) == 1:
            emitted, room, depth = row.emitted, row.length - row.emitted, row.text.context_tokens + row.emitted
        else:
            emitted = min(row.emitted for row in rows)
            room = max(row.length - row.emitted for row in rows)
            depth = max(row.text.context_tokens + row.emitted for row in rows)
        return Situation(
            width=len(rows),
            depth_tokens=depth,
            min_emitted_tokens=emitted,
            eligible=self.eligible,
            max_draft_width=min(self._cap, room),
        )

    @property
    def eligible(self) -> bool:
        """Whether every row may speculate."""
        return all(row.emitted >= row.text.thinking_tokens for row in self.rows)

    @property
    def kinds(self) -> tuple[int, ...]:
        """The kind of each row's next token, in order of size."""
        return tuple(sorted(row.text.kinds[row.emitted] for row in self.rows))

    @property
    def exact(self) -> bool:
        """Whether every row has room for a draft, so that none falls back to a plain step in a round."""
        return all(row.length - row.emitted > 1 for row in self.rows)

    def plain(self) -> int:
        """Runs a plain step; tokens emitted."""
        rows = self.rows
        ended = False
        for row in rows:
            row.emitted += 1
            ended = ended or row.emitted >= row.length
        self._after(len(rows), ended)
        return len(rows)

    def round(self, draft_width: int) -> tuple[int, int, tuple[int, ...]]:
        """Runs a round; tokens emitted, drafts proposed, and the rows that kept each draft.

        A row near its end drafts no more than it has room for.
        """
        kept = [0] * draft_width
        total = proposed = 0
        ended = False
        for row in self.rows:
            at = row.emitted
            room = row.length - at
            k = draft_width if draft_width <= room else room  # noqa: FURB136  (a call here is a third of the loop)
            accepted = row.accepted[at]
            if accepted >= k:
                accepted = k - 1
            kept[accepted] += 1
            total += accepted + 1
            proposed += k - 1
            row.emitted = at + accepted + 1
            if accepted + 1 == room:
                ended = True
        self._after(total, ended)
        # Whoever kept exactly n drafts kept each of the first n.
        by_position = tuple(accumulate(reversed(kept[1:])))[::-1]
        return total, proposed, by_position

    def _after(self, emitted: int, ended: bool) -> None:
        self.emitted += emitted
        if ended:
            self._resident = [row for row in self._resident if row.emitted < row.length]
            self._visiting = [row for row in self._visiting if row.emitted < row.length]
        if ended or (self._visitors and self._visitors[0].after_tokens <= self.emitted):
            self._admit()

    def _admit(self) -> None:
        while self._queue and len(self._resident) < self._slots:
            self._resident.append(Row(self._queue.popleft()))
        while self._visitors and self._visitors[0].after_tokens <= self.emitted:
            self._visiting.append(Row(self._visitors.popleft()))
        if self._visitors and not self._resident and not self._visiting:
            self._visiting.append(Row(self._visitors.popleft()))
        self.rows = self._resident + self._visiting

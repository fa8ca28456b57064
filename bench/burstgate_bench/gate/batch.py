"""The rows that are decoding: who joins, who leaves, and what a step emits. Knows nothing of time or policies."""

from collections import deque
from itertools import accumulate

from burstgate_bench.gate.world import Text, World
from burstgate_policy.core.types import Situation

_ENDLESS = 1 << 62


class Row:
    """One text that is being decoded."""

    __slots__ = ("accepted", "context", "emitted", "length", "text")

    def __init__(self, text: Text) -> None:
        self.text = text
        self.accepted = text.accepted
        self.context = text.context_tokens
        self.length = len(text)
        self.emitted = 0


class Batch:
    """A world in the course of being decoded."""

    __slots__ = (
        "_cap",
        "_deepest",
        "_least_room",
        "_most_room",
        "_queue",
        "_resident",
        "_slots",
        "_thinks",
        "_visiting",
        "_visitors",
        "eligible",
        "emitted",
        "rows",
    )

    def __init__(self, world: World) -> None:
        self._cap = world.cap
        self._slots = world.slots
        self._thinks = any(text.thinking_tokens for text in (*world.texts, *world.visitors))
        self._queue = deque(world.texts)
        self._visitors = deque(world.visitors)
        self._resident: list[Row] = []
        self._visiting: list[Row] = []
        self._deepest = self._least_room = self._most_room = 0
        self.rows: list[Row] = []
        self.emitted = 0
        self.eligible = True
        """Whether every row may speculate."""
        self._admit()
        self._look()

    @property
    def width(self) -> int:
        """Rows of the next step."""
        return len(self.rows)

    @property
    def depth_tokens(self) -> int:
        """Deepest context."""
        return self._deepest

    @property
    def max_draft_width(self) -> int:
        """Widest verify that some row has room for."""
        return min(self._cap, self._most_room)

    @property
    def exact(self) -> bool:
        """Whether every row has room for a draft, so that none falls back to a plain step in a round."""
        return self._least_room > 1

    @property
    def kinds(self) -> tuple[int, ...]:
        """The kind of each row's next token, in order of size."""
        return tuple(sorted(row.text.kinds[row.emitted] for row in self.rows))

    def situation(self) -> Situation:
        """What the next burst would run on."""
        return Situation(
            width=self.width,
            depth_tokens=self.depth_tokens,
            min_emitted_tokens=min(row.emitted for row in self.rows),
            eligible=self.eligible,
            max_draft_width=self.max_draft_width,
        )

    def plain(self) -> int:
        """Runs a plain step; tokens emitted."""
        rows = self.rows
        for row in rows:
            row.emitted += 1
        self._deepest += 1
        self._least_room -= 1
        self._most_room -= 1
        self._after(len(rows))
        return len(rows)

    def round(self, draft_width: int) -> tuple[int, int, tuple[int, ...]]:
        """Runs a round; tokens emitted, drafts proposed, and the rows that kept each draft.

        A row near its end drafts no more than it has room for.
        """
        kept = [0] * draft_width
        total = proposed = deepest = most_room = 0
        least_room = _ENDLESS
        for row in self.rows:
            at = row.emitted
            room = row.length - at
            k = draft_width if draft_width <= room else room  # noqa: FURB136  (a call here is a third of the loop)
            gained = row.accepted[at] + 1
            if gained > k:
                gained = k
            kept[gained - 1] += 1
            total += gained
            proposed += k - 1
            row.emitted = at = at + gained
            room -= gained
            at += row.context
            if at > deepest:
                deepest = at
            if room > most_room:
                most_room = room
            if room < least_room:
                least_room = room
        self._deepest, self._least_room, self._most_room = deepest, least_room, most_room
        self._after(total)
        # Whoever kept exactly n drafts kept each of the first n.
        by_position = tuple(accumulate(kept[:0:-1]))[::-1]
        return total, proposed, by_position

    def _after(self, emitted: int) -> None:
        self.emitted += emitted
        ended = self._least_room < 1
        if ended:
            self._resident = [row for row in self._resident if row.emitted < row.length]
            self._visiting = [row for row in self._visiting if row.emitted < row.length]
        if ended or (self._visitors and self._visitors[0].after_tokens <= self.emitted):
            self._admit()
            self._look()
        elif self._thinks:
            self._look()

    def _admit(self) -> None:
        while self._queue and len(self._resident) < self._slots:
            self._resident.append(Row(self._queue.popleft()))
        while self._visitors and self._visitors[0].after_tokens <= self.emitted:
            self._visiting.append(Row(self._visitors.popleft()))
        if self._visitors and not self._resident and not self._visiting:
            self._visiting.append(Row(self._visitors.popleft()))
        self.rows = self._resident + self._visiting

    def _look(self) -> None:
        """Takes from the rows what the next step needs to know of them."""
        rows = self.rows
        if rows:
            self._deepest = max(row.context + row.emitted for row in rows)
            self._least_room = min(row.length - row.emitted for row in rows)
            self._most_room = max(row.length - row.emitted for row in rows)
            self.eligible = all(row.emitted >= row.text.thinking_tokens for row in rows)

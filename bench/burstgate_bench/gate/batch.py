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
        "_queue",
        "_resident",
        "_slots",
        "_thinks",
        "_visiting",
        "_visitors",
        "depth_tokens",
        "eligible",
        "emitted",
        "idled",
        "least_room",
        "most_room",
        "rows",
        "width",
    )

    def __init__(self, world: World) -> None:
        self._cap = world.cap
        self._slots = world.slots
        self._thinks = any(text.thinking_tokens for text in (*world.texts, *world.visitors))
        self._queue = deque(world.texts)
        self._visitors = deque(world.visitors)
        self._resident: list[Row] = []
        self._visiting: list[Row] = []
        # Read at every step, so they are kept, not computed.
        self.rows: list[Row] = []
        self.width = 0
        """Rows of the next step."""
        self.depth_tokens = 0
        """Deepest context."""
        self.most_room = 0
        """Tokens that the longest rest of a text has."""
        self.least_room = 0
        self.emitted = 0
        self.eligible = True
        """Whether every row may speculate."""
        self.idled = False
        """Whether all rows ended with the last step, so that whoever is next finds nobody decoding."""
        self._admit()
        self._look()

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
            max_draft_width=min(self._cap, self.most_room),
        )

    def plain(self) -> int:
        """Runs a plain step; tokens emitted."""
        rows = self.rows
        width = self.width
        for row in rows:
            row.emitted += 1
        self.depth_tokens += 1
        self.least_room -= 1
        self.most_room -= 1
        self._after(width)
        return width

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
        self.depth_tokens, self.least_room, self.most_room = deepest, least_room, most_room
        self._after(total)
        # Whoever kept exactly n drafts kept each of the first n.
        by_position = tuple(accumulate(kept[:0:-1]))[::-1]
        return total, proposed, by_position

    def _after(self, emitted: int) -> None:
        self.emitted += emitted
        ended = self.least_room < 1
        self.idled = ended and self.most_room < 1
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
        self.width = len(self.rows)

    def _look(self) -> None:
        """Takes from the rows what the next step needs to know of them."""
        rows = self.rows
        if rows:
            self.depth_tokens = max(row.context + row.emitted for row in rows)
            self.least_room = min(row.length - row.emitted for row in rows)
            self.most_room = max(row.length - row.emitted for row in rows)
            self.eligible = all(row.emitted >= row.text.thinking_tokens for row in rows)

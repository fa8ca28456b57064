"""Who may wait, and who is given a place: limits, fairness, deadlines and memory in one.

Pure: no clock, no threads and no arrays. The engine holds its lock around every call and says what time it is.
Faults are raised or returned in the words that the caller reads.
"""

from collections.abc import Callable, Sequence
from typing import Generic

from burstgate_decode.engine.cache_room import CacheRoom
from burstgate_decode.engine.limits import EngineLimits
from burstgate_decode.engine.pace import Pace, Speed
from burstgate_decode.engine.turns import R, Turn, Turns, tokens_of
from burstgate_decode.models.cache_shape import NOTHING_HELD, CacheShape
from burstgate_runtime.faults import Fault, FaultKind

# Guess of how soon a place is free, sent to a caller that found none.
_RETRY_AFTER_MS = 1000


class Admission(Generic[R]):
    """The rows that wait and those that hold a place."""

    def __init__(self, limits: EngineLimits) -> None:
        """Nobody waits. Until `room` is set, no memory is reserved."""
        self.room: CacheRoom | None = None
        self.held: CacheShape = NOTHING_HELD
        """What the caches had memory for when the last row left."""
        self.pace = Pace(limits.prefill_chunk_tokens)
        self.reusable: Callable[[Sequence[int]], int] = lambda prompt: 0
        """How many of a prompt's first tokens need not be read, at best."""
        self._limits = limits
        self._turns: Turns[R] = Turns(limits.tenant_max_active_rows)
        self._active: list[R] = []

    @property
    def active(self) -> int:
        """Rows that hold a place."""
        return len(self._active)

    @property
    def waiting(self) -> int:
        """Rows that wait for one."""
        return self._turns.waiting

    @property
    def reserved_bytes(self) -> int:
        """Cache memory that the rows with a place may come to."""
        return self.room.reserved([tokens_of(row) for row in self._active], self.held) if self.room else 0

    def submit(self, rows: Sequence[R], now_ms: float) -> None:
        """Lets the rows of one request wait, all or none. Raises `Fault` when one of them may not."""
        for row in rows:
            self._check_memory(row)
        speed = self.pace.speed(now_ms)
        for row in rows:
            if (fault := self._unreachable(row, speed, now_ms)) is not None:
                raise fault
        self._check_queue(len(rows))
        self._check_tenant_queue(rows[0].claim.tenant, len(rows))
        for row in rows:
            self._turns.join(row)

    def expire(self, now_ms: float) -> list[tuple[R, Fault]]:
        """Drops who no longer waits, and takes out the rows whose first token can no longer come in time."""
        if not self._turns.waiting:
            return []
        speed, rows = self.pace.speed(now_ms), self._turns.rows()
        late = [
            (row, fault) for row in rows if row.alive and (fault := self._unreachable(row, speed, now_ms)) is not None
        ]
        if late or not all(row.alive for row in rows):
            taken_out = {id(row) for row, _ in late}
            self._turns.drop(lambda row: not row.alive or id(row) in taken_out)
        return late

    def admit(self) -> list[R]:
        """Gives free places to those whose turn it is."""
        admitted: list[R] = []
        while len(self._active) < self._limits.max_active_rows and (turn := self._next()) is not None:
            row = self._turns.take(turn)
            self._active.append(row)
            admitted.append(row)
        return admitted

    def release(self, row: R) -> None:
        """Takes a row's place back."""
        self._active.remove(row)
        self._turns.give_back(row.claim.tenant)

    def close(self) -> list[R]:
        """Empties everything and returns who waited."""
        waiting = self._turns.rows()
        self._turns = Turns(self._limits.tenant_max_active_rows)
        self._active.clear()
        return waiting

    def _next(self) -> Turn[R] | None:
        """The first in order whom the memory has room for; one who was passed long enough is waited for."""
        active = [tokens_of(row) for row in self._active]
        for turn in self._turns.order():
            if self.room is None or self.room.fits([*active, tokens_of(turn.row)], self.held):
                return turn
            if turn.has_waited_enough:
                return None
        return None

    def _check_memory(self, row: R) -> None:
        room, tokens = self.room, tokens_of(row)
        if room is None or room.fits([tokens], NOTHING_HELD):
            return
        needed = room.reserved([tokens], NOTHING_HELD)
        raise Fault(
            FaultKind.RESOURCE_EXHAUSTED,
            "CACHE_TOO_SMALL",
            f"prompt and max_tokens make {tokens} tokens, whose cache takes {needed} bytes;"
            f" all caches together may take {room.limit_bytes}",
            metadata={"needed_bytes": str(needed), "limit_bytes": str(room.limit_bytes)},
        )

    def _check_queue(self, new: int) -> None:
        room = self._limits.max_queued_rows + self._limits.max_active_rows
        held = self.waiting + self.active
        if held + new > room:
            raise Fault(
                FaultKind.RESOURCE_EXHAUSTED,
                "QUEUE_FULL",
                f"{held} answers are running or waiting, and at most {room} may be",
                retry_after_ms=_RETRY_AFTER_MS,
            )

    def _check_tenant_queue(self, tenant: str, new: int) -> None:
        limits = self._limits
        if not limits.tenant_max_queued_rows:
            return
        waiting, active = self._turns.waiting_of(tenant), self._turns.active_of(tenant)
        # Whoever finds a place at the next pass does not count as waiting.
        places = max(0, limits.max_active_rows - self.active - (self.waiting - waiting))
        if limits.tenant_max_active_rows:
            places = min(places, limits.tenant_max_active_rows - active)
        if waiting + new - places > limits.tenant_max_queued_rows:
            whose = f"tenant {tenant!r}" if tenant else "callers that name no tenant"
            raise Fault(
                FaultKind.RESOURCE_EXHAUSTED,
                "TENANT_QUEUE_FULL",
                f"{active} answers of {whose} are running and {waiting} are waiting,"
                f" and at most {limits.tenant_max_queued_rows} of one tenant may wait",
                metadata={"tenant": tenant, "limit": str(limits.tenant_max_queued_rows)},
                retry_after_ms=_RETRY_AFTER_MS,
            )

    def _unreachable(self, row: R, speed: Speed | None, now_ms: float) -> Fault | None:
        """Why the row's first token cannot come in time; None where it may."""
        if row.deadline_ms is None:
            return None
        left_ms, prompt = row.deadline_ms - now_ms, row.request.prompt
        needed_ms = speed.first_token_ms(len(prompt)) if speed is not None else 0.0
        if speed is not None and needed_ms > left_ms > 0:
            needed_ms = speed.first_token_ms(len(prompt) - self.reusable(prompt))
        if left_ms > 0 and needed_ms <= left_ms:
            return None
        return _deadline_fault(needed_ms, max(0.0, left_ms))


def _deadline_fault(needed_ms: float, left_ms: float) -> Fault:
    return Fault(
        FaultKind.DEADLINE_EXCEEDED,
        "DEADLINE_UNREACHABLE",
        f"the first token takes at least {needed_ms:.0f} ms here, and {left_ms:.0f} ms are left"
        if left_ms
        else "the deadline passed before the request was given a place",
        metadata={"estimate_ms": f"{needed_ms:.0f}", "left_ms": f"{left_ms:.0f}"},
    )

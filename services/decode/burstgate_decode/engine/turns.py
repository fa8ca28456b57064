"""Whose turn it is: the rows that wait, by tenant and priority, and the order in which they come to a place.

A higher class goes first. Within a class, the tenant goes first that was given the fewest tokens so far, prompt
and most answer tokens counted when a row is given its place; a tenant that begins to wait starts level with the
least of the others, so that no rest is saved up. Among equals the tenant whose last turn is longest ago, so that a
newcomer is next; then the older row.

Nobody starves: a row's class is its priority plus one each time that rows which came later, worth eight times its
own tokens and at least 8,192, went before it while it headed its line, without an upper end.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, Protocol, TypeVar

from burstgate_decode.engine.request import AnswerRequest, Claim, Priority

_PATIENCE = 8
_LEAST_PATIENCE_TOKENS = 8192


class Waiting(Protocol):
    """What is known of a row that waits."""

    @property
    def request(self) -> AnswerRequest:
        """What it is to generate."""
        ...

    @property
    def claim(self) -> Claim:
        """Its tenant and priority."""
        ...

    @property
    def deadline_ms(self) -> float | None:
        """When its caller gives up; None never."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it still wants a place."""
        ...


R = TypeVar("R", bound=Waiting)


def tokens_of(row: Waiting) -> int:
    """The most tokens that a row comes to, prompt and answer together."""
    return len(row.request.prompt) + row.request.max_tokens


class Turns(Generic[R]):
    """Rows that wait, and how many rows of each tenant hold a place."""

    def __init__(self, tenant_max_active_rows: int) -> None:
        """A tenant with so many places has no turn until it gives one back; 0 sets no limit."""
        self._most_active = tenant_max_active_rows
        self._tenants: dict[str, _Tenant[R]] = {}
        self._numbers = count()
        self._turns = count()
        self._level = 0
        """Where a tenant starts while nobody waits: what the tenant of the last turn was given."""
        self.waiting = 0

    def waiting_of(self, tenant: str) -> int:
        """Rows of a tenant that wait."""
        return sum(len(line.rows) for line in self._lines_of(tenant))

    def active_of(self, tenant: str) -> int:
        """Places that a tenant holds."""
        return self._tenants[tenant].active if tenant in self._tenants else 0

    def join(self, row: R) -> None:
        """Lets a row wait."""
        claim = row.claim
        tenant = self._tenants.setdefault(claim.tenant, _Tenant())
        if not any(line.rows for line in tenant.lines.values()):
            self._start_level(tenant)
        line = tenant.lines.setdefault(claim.priority, _Line(tenant, claim.priority))
        line.rows.append((next(self._numbers), row))
        self.waiting += 1

    def drop(self, unwanted: Callable[[R], bool]) -> None:
        """Lets the unwanted rows go."""
        for tenant in self._tenants.values():
            for line in tenant.lines.values():
                kept = deque(place for place in line.rows if not unwanted(place[1]))
                if len(kept) == len(line.rows):
                    continue
                if not kept or kept[0] is not line.rows[0]:
                    line.passed_tokens = 0
                self.waiting -= len(line.rows) - len(kept)
                line.rows = kept
        self._forget()

    def order(self) -> "list[Turn[R]]":
        """The rows that head a line of a tenant that may have another place, the next one first."""
        heads = [
            Turn(line) for tenant in self._tenants.values() if self._may_have_more(tenant) for line in tenant.waiting()
        ]
        return sorted(heads, key=lambda turn: turn.rank)

    def take(self, turn: "Turn[R]") -> R:
        """Gives a row its place."""
        row = turn.row
        for other in self.order():
            if other.number < turn.number:
                other.line.passed_tokens += tokens_of(row)
        turn.line.rows.popleft()
        turn.line.passed_tokens = 0
        self.waiting -= 1
        tenant = turn.line.tenant
        tenant.active += 1
        tenant.given_tokens += tokens_of(row)
        tenant.last_turn = next(self._turns)
        self._level = tenant.given_tokens
        return row

    def give_back(self, name: str) -> None:
        """Takes back a place of a tenant."""
        tenant = self._tenants[name]
        could_not = not self._may_have_more(tenant)
        tenant.active -= 1
        if could_not:
            self._start_level(tenant)
        self._forget()

    def rows(self) -> list[R]:
        """Everybody who waits, by tenant and priority."""
        return [row for tenant in self._tenants.values() for line in tenant.waiting() for _, row in line.rows]

    def _lines_of(self, name: str) -> "Iterable[_Line[R]]":
        return self._tenants[name].waiting() if name in self._tenants else ()

    def _may_have_more(self, tenant: "_Tenant[R]") -> bool:
        return not self._most_active or tenant.active < self._most_active

    def _start_level(self, newcomer: "_Tenant[R]") -> None:
        """Brings a tenant that did not compete for a while up to those that did."""
        competing = [
            tenant.given_tokens
            for tenant in self._tenants.values()
            if tenant is not newcomer and self._may_have_more(tenant) and any(tenant.waiting())
        ]
        newcomer.given_tokens = max(newcomer.given_tokens, min(competing, default=self._level))

    def _forget(self) -> None:
        """Keeps no tenant that has nothing here and would start level anyway, and none at all while nobody waits."""
        waits = [tenant.given_tokens for tenant in self._tenants.values() if any(tenant.waiting())]
        self._tenants = {
            name: tenant
            for name, tenant in self._tenants.items()
            if tenant.active or any(tenant.waiting()) or (waits and tenant.given_tokens > min(waits))
        }


@dataclass(eq=False)
class _Line(Generic[R]):
    """Rows of one tenant and priority with the numbers that they drew, the oldest first."""

    tenant: "_Tenant[R]"
    priority: Priority
    rows: deque[tuple[int, R]] = field(default_factory=deque)
    passed_tokens: int = 0
    """Of rows that came later than the first one and went before it while it was the first."""


@dataclass(eq=False)
class _Tenant(Generic[R]):
    """What one tenant was given, holds and waits for."""

    given_tokens: int = 0
    last_turn: int = -1
    """Counts up with every turn of anybody; -1 before the first."""
    active: int = 0
    lines: dict[Priority, _Line[R]] = field(default_factory=dict)

    def waiting(self) -> list[_Line[R]]:
        """The lines in which somebody waits."""
        return [line for line in self.lines.values() if line.rows]


class Turn(Generic[R]):
    """The row that heads a line, and what its place in the order follows from."""

    def __init__(self, line: _Line[R]) -> None:
        """The line has a row."""
        self.line = line
        self.number, self.row = line.rows[0]
        self._risen = line.passed_tokens // max(_PATIENCE * tokens_of(self.row), _LEAST_PATIENCE_TOKENS)

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """Sorts turns, the next one first."""
        tenant = self.line.tenant
        return -(self.line.priority + self._risen), tenant.given_tokens, tenant.last_turn, self.number

    @property
    def has_waited_enough(self) -> bool:
        """Whether so much went before it that nothing else may, even if there is no room for it yet."""
        return self._risen > 0

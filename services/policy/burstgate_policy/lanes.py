"""Which lanes are open and which pairings are known.

Lanes of one pairing share its policy. Both tables are bounded: a lane that nobody used for the time
to live is gone, and beyond a limit the pairing that was used longest ago and has no lane is forgotten
(its stored hint stays). What a lane lost stays in its pairing's account when the lane is gone. Time comes
in as a clock, ids as a function; storage and messages are unknown here. One event loop owns the table, and
other threads may read the accounts; nothing in it awaits.
"""

import dataclasses
from collections.abc import Callable

from burstgate_policy.core.controller import Lane
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.regret import Regret, together
from burstgate_runtime.faults import Fault, FaultKind

# Known pairings for each lane that may be open: enough that a listing shows what ran before.
_PAIRINGS_PER_LANE = 2
_LEAST_RETRY_MS = 1000


@dataclasses.dataclass(slots=True)
class LaneEntry:
    """An open lane."""

    lane_id: str
    local_id: str
    """The lane's id, or one of its own where the lane was opened elsewhere: both grant under it."""
    instance_id: str
    lane: Lane
    used_s: float
    """When the lane was used last, by the table's clock."""

    @property
    def last_grant_id(self) -> str:
        """Id of the last grant: the lane's and the grant's number on it."""
        return f"{self.local_id}:{self.lane.grants}"


@dataclasses.dataclass(frozen=True, slots=True)
class PairingAccount:
    """What deciding has cost a pairing. Never changed, only replaced, so that any thread can read it."""

    past: Regret = Regret()  # noqa: RUF009 - frozen
    """Of the lanes that are gone."""
    lanes: tuple[Lane, ...] = ()
    """Those that are open."""

    @property
    def regret(self) -> Regret:
        """All lanes together, as of now."""
        return together([self.past, *(lane.regret for lane in self.lanes)])

    @property
    def holding_lanes(self) -> int:
        """Lanes that explore nothing now, because too much was lost."""
        return sum(lane.regret.holding for lane in self.lanes)


class LaneTable:
    """The open lanes and the policies of their pairings."""

    def __init__(self, *, clock: Callable[[], float], new_id: Callable[[], str], max_lanes: int, ttl_s: float) -> None:
        self._clock = clock
        self._new_id = new_id
        self._max_lanes = max_lanes
        self._ttl_s = ttl_s
        # Least recently used first, both.
        self._lanes: dict[str, LaneEntry] = {}
        self._policies: dict[str, MtpPolicy] = {}
        self._accounts: dict[str, PairingAccount] = {}
        """One for each policy."""

    def __len__(self) -> int:
        return len(self._lanes)

    def policy(self, key_hash: str) -> MtpPolicy | None:
        """The policy of a pairing, if it is known."""
        return self._policies.get(key_hash)

    def key_hashes(self) -> list[str]:
        """Every known pairing."""
        return list(self._policies)

    def lanes_of(self, key_hash: str) -> list[LaneEntry]:
        """The open lanes of a pairing."""
        self.expire()
        return [entry for entry in self._lanes.values() if entry.lane.policy.key.hash == key_hash]

    def account(self, key_hash: str) -> PairingAccount:
        """What deciding has cost a pairing; nothing if it is not known."""
        self.expire()
        return self._accounts.get(key_hash, PairingAccount())

    def accounts(self) -> dict[str, PairingAccount]:
        """Every known pairing's account by key hash, for any thread."""
        return self._accounts.copy()

    def check_room(self) -> None:
        """Refuses a further lane while the table is full."""
        self.expire()
        if len(self._lanes) < self._max_lanes:
            return
        stalest = next(iter(self._lanes.values()))
        free_in_ms = int((stalest.used_s + self._ttl_s - self._clock()) * 1000)
        raise Fault(
            FaultKind.RESOURCE_EXHAUSTED,
            "TOO_MANY_LANES",
            f"{len(self._lanes)} lanes are open and {self._max_lanes} are allowed; "
            f"a lane is closed when it was not used for {self._ttl_s:g} s",
            metadata={"max_lanes": str(self._max_lanes)},
            retry_after_ms=max(free_in_ms, _LEAST_RETRY_MS),
        )

    def open(
        self,
        policy: MtpPolicy,
        instance_id: str,
        make_lane: Callable[[MtpPolicy], Lane],
        *,
        lane_id: str | None = None,
    ) -> LaneEntry:
        """Opens a lane; if its pairing is already known, the known policy rules it, not the one given.

        With an id it is a lane that was opened on another replica and is served here as well.
        """
        self.check_room()
        key_hash = policy.key.hash
        policy = self._policies.pop(key_hash, policy)
        self._policies[key_hash] = policy
        new_id = self._new_id()
        entry = LaneEntry(lane_id or new_id, new_id, instance_id, make_lane(policy), self._clock())
        self._lanes[entry.lane_id] = entry
        account = self._accounts.get(key_hash, PairingAccount())
        self._accounts[key_hash] = PairingAccount(account.past, (*account.lanes, entry.lane))
        self._forget_pairings()
        return entry

    def peek(self, lane_id: str) -> LaneEntry | None:
        """An open lane, without using it."""
        self.expire()
        return self._lanes.get(lane_id)

    def find(self, lane_id: str) -> LaneEntry | None:
        """An open lane, which counts as using it."""
        entry = self._lanes.pop(lane_id, None)
        now_s = self._clock()
        if entry is None:
            return None
        if now_s - entry.used_s > self._ttl_s:
            self._close([entry])
            return None
        entry.used_s = now_s
        self._lanes[lane_id] = entry
        return entry

    def expire(self) -> None:
        """Closes the lanes that were not used for too long."""
        oldest_s = self._clock() - self._ttl_s
        expired = [lane_id for lane_id, entry in self._lanes.items() if entry.used_s < oldest_s]
        self._close([self._lanes.pop(lane_id) for lane_id in expired])

    def _close(self, entries: list[LaneEntry]) -> None:
        """Keeps what lanes lost in their pairings' accounts."""
        closed: dict[str, list[Lane]] = {}
        for entry in entries:
            closed.setdefault(entry.lane.policy.key.hash, []).append(entry.lane)
        for key_hash, lanes in closed.items():
            account, gone = self._accounts[key_hash], set(lanes)
            past = together([account.past, *(lane.regret.past() for lane in lanes)])
            left = tuple(lane for lane in account.lanes if lane not in gone)
            self._accounts[key_hash] = PairingAccount(past, left)

    def _forget_pairings(self) -> None:
        limit = self._max_lanes * _PAIRINGS_PER_LANE
        if len(self._policies) <= limit:
            return
        in_use = {entry.lane.policy.key.hash for entry in self._lanes.values()}
        idle = next(key_hash for key_hash in self._policies if key_hash not in in_use)
        del self._policies[idle], self._accounts[idle]

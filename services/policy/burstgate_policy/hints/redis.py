"""Keeps hints in Redis, so that the policy services of a fleet share them.

One hash a pairing holds a document and its revision; a script on the server compares the revision,
sets the document, its expiry and its place in the order of changes in one piece. All names carry one
hash tag, so that they live on one node of a cluster. Every wait has a limit. Async replication may
lose an acknowledged write in a failover: the services' memories are what it is repaired from.
"""

import time
import uuid
from collections.abc import Callable
from typing import Any, Final, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from burstgate_policy.hints.document import HintDocument as Document
from burstgate_policy.hints.document import HintDocumentError, decode, encode
from burstgate_policy.hints.store import HintChanges, HintLoad, HintStoreError

SOCKET_TIMEOUT_S = 1.0
"""Longest wait for a connection or an answer: a hundred times what a busy server takes; the services
decide from memory meanwhile."""

MAX_CONNECTIONS = 4
"""The ledger uses one at a time, lanes that are opened at once share the others; who finds none waits for one."""

_T = TypeVar("_T")

_TAG: Final = "{burstgate}"
_CHANGES: Final = f"{_TAG}:changes"
_SEQUENCE: Final = f"{_TAG}:sequence"
_EPOCH: Final = f"{_TAG}:epoch"
_PAGE = 256

# The lists of names and of values come as KEYS and ARGV, as in every Redis script.
_COMPARE_AND_SET: Final = """
local kind = redis.call('TYPE', KEYS[1]).ok
local stored = '0'
if kind == 'hash' then
    stored = redis.call('HGET', KEYS[1], 'revision') or '0'
end
if not string.match(stored, '^%d+$') then
    stored = '0'
end
if stored ~= ARGV[1] then
    return 0
end
if kind ~= 'hash' then
    redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'revision', ARGV[2], 'document', ARGV[3])
if ARGV[4] == '' then
    redis.call('PERSIST', KEYS[1])
else
    redis.call('PEXPIREAT', KEYS[1], ARGV[4])
end
redis.call('ZADD', KEYS[2], redis.call('INCR', KEYS[3]), ARGV[5])
return 1
"""

_FORGET_IF_GONE: Final = """
if redis.call('EXISTS', KEYS[1]) == 0 then
    redis.call('ZREM', KEYS[2], ARGV[1])
end
return 0
"""


class RedisHintStore:
    """Hints in a Redis database, by its URL."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.time) -> None:
        pool = redis.BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=SOCKET_TIMEOUT_S,
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=SOCKET_TIMEOUT_S,
            # Trying again is the caller's business: it has a clock for it and does not block a call.
            retry=Retry(NoBackoff(), 0),
            client_name="burstgate-policy",
        )
        self._redis: Any = redis.Redis(connection_pool=pool)
        self._compare_and_set = self._redis.register_script(_COMPARE_AND_SET)
        self._forget_if_gone = self._redis.register_script(_FORGET_IF_GONE)
        self._clock = clock
        self._seen = 0
        self._epoch: bytes | None = None
        self.name = _name(pool.connection_kwargs)

    def load(self, key_hash: str) -> HintLoad:
        """The document of a pairing, or the reason why it has none; raises HintStoreError."""
        return self._guarded(lambda: self._load(key_hash))

    def save(self, document: Document, *, replaces: int) -> bool:
        """Stores a document if the stored revision is still `replaces`; raises HintStoreError."""
        document = document.model_copy(update={"revision": replaces + 1})
        expires_at = document.expires_at
        expiry = "" if expires_at is None else str(max(int(expires_at * 1000), 1))
        keys = [_hint(document.key_hash), _CHANGES, _SEQUENCE]
        values: list[str | int | bytes] = [replaces, document.revision, encode(document), expiry, document.key_hash]
        return bool(self._guarded(lambda: self._compare_and_set(keys=keys, args=values)))

    def changes(self) -> HintChanges:
        """The documents that changed since the last call, in the order of their changes."""
        return self._guarded(self._changes)

    def put_lane(self, lane_id: str, opening: bytes, *, ttl_s: float) -> None:
        """Remembers how a lane was opened; raises HintStoreError."""
        self._guarded(lambda: self._redis.set(_lane(lane_id), opening, px=max(int(ttl_s * 1000), 1)))

    def get_lane(self, lane_id: str) -> bytes | None:
        """How a lane was opened, on whichever service; raises HintStoreError."""
        opening: bytes | None = self._guarded(lambda: self._redis.get(_lane(lane_id)))
        return opening

    def close(self) -> None:
        """Closes the connections."""
        self._redis.connection_pool.disconnect()

    def _load(self, key_hash: str) -> HintLoad:
        try:
            revision, content = self._redis.hmget(_hint(key_hash), "revision", "document")
        except redis.ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            return HintLoad(
                key_hash, None, f"{_hint(key_hash)} in {self.name} was ignored: it is not a hash", unusable=True
            )
        return self._read(key_hash, revision, content)

    def _changes(self) -> HintChanges:
        self._redis.set(_EPOCH, uuid.uuid4().hex, nx=True)
        epoch, sequence = self._redis.mget(_EPOCH, _SEQUENCE)
        newest = int(sequence or 0)
        # A server that lost its memory, or another one in its place, has another epoch; one that lost its
        # latest writes in a failover counts on from an earlier number.
        restarted = self._epoch is not None and (epoch != self._epoch or newest < self._seen)
        if restarted:
            self._seen = 0
        self._epoch = epoch
        loads: list[HintLoad] = []
        while self._seen < newest:
            page = self._redis.zrangebyscore(
                _CHANGES, f"({self._seen}", newest, start=0, num=_PAGE, withscores=True, score_cast_func=int
            )
            for member, _ in page:
                key_hash = member.decode(errors="replace")
                load = self._load(key_hash)
                loads.append(load)
                if load.document is None:
                    self._forget_if_gone(keys=[_hint(key_hash), _CHANGES], args=[member])
            self._seen = page[-1][1] if len(page) == _PAGE else newest
        return HintChanges(loads, restarted)

    def _read(self, key_hash: str, revision: bytes | None, content: bytes | None) -> HintLoad:
        place = f"{_hint(key_hash)} in {self.name}"
        if revision is None or content is None:
            return HintLoad(key_hash, None, f"{place} is missing", revision=_revision(revision))
        try:
            document = decode(content)
        except HintDocumentError as error:
            return HintLoad(
                key_hash, None, f"{place} was ignored: {error}", unusable=True, revision=_revision(revision)
            )
        if document.key_hash != key_hash:
            why = f"{place} was ignored: it belongs to another pairing, {document.key_hash}"
            return HintLoad(key_hash, None, why, unusable=True, revision=_revision(revision))
        expires_at = document.expires_at
        if expires_at is not None and expires_at <= self._clock():
            return HintLoad(key_hash, None, f"{place} has expired", revision=_revision(revision))
        return HintLoad(key_hash, document, revision=_revision(revision))

    def _guarded(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except (redis.RedisError, OSError, ValueError) as error:
            # The name and not the text of the error: some texts repeat the address with its password.
            raise HintStoreError(
                f"{self.name} does not answer ({type(error).__name__}): verdicts hold in memory "
                "and are stored when it returns"
            ) from error


def _hint(key_hash: str) -> str:
    return f"{_TAG}:hint:{key_hash}"


def _lane(lane_id: str) -> str:
    return f"{_TAG}:lane:{lane_id}"


def _revision(stored: bytes | None) -> int:
    return int(stored) if stored is not None and stored.isdigit() else 0


def _name(settings: dict[str, Any]) -> str:
    """Where the database is, without user and password."""
    place = settings.get("path") or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"
    return f"redis {place} database {settings.get('db', 0)}"

"""What a process knows of hints, and how it gets along with a store that others write and that comes and goes."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from burstgate_policy.core.types import PolicyKey
from burstgate_policy.hints.document import HintDocument, StoredPin, StoredVerdict
from burstgate_policy.hints.files import FileHintStore
from burstgate_policy.hints.ledger import MAX_KNOWN, HintLedger
from burstgate_policy.hints.redis import RedisHintStore
from burstgate_policy.hints.store import HintStore

NOW_S = 2_000_000_000.0


def key(target: str = "t") -> PolicyKey:
    return PolicyKey(target, "d", "h", 4, "", "", "float32", "cpu", "", "1")


def verdict(answer: Any = "enable", *, settled_at: float = NOW_S) -> StoredVerdict:
    return StoredVerdict(
        verdict=answer, acceptance_rate=0.5, samples=8, settled_at=settled_at, expires_at=settled_at + 3600
    )


def pin(*, speculate: bool = True, ttl_s: float | None = None) -> StoredPin:
    expires_at = None if ttl_s is None else NOW_S + ttl_s
    return StoredPin(speculate=speculate, reason="why", author="who", pinned_at=NOW_S, expires_at=expires_at)


class Replica:
    """A ledger on a store, with a clock that the test moves and a note of what it heard."""

    def __init__(self, store: HintStore) -> None:
        self.now_s = NOW_S
        self.heard: list[HintDocument] = []
        self.ledger = HintLedger(
            store, clock=lambda: self.now_s, refresh_s=0.05, on_news=lambda before, now: self.heard.append(now)
        )

    def answer(self, target: str = "t") -> str | None:
        document = self.ledger.get(key(target).hash)
        return None if document is None or document.settled is None else document.settled.verdict


@pytest.fixture
def redis_server(start_redis: Callable[[], Any]) -> Any:
    return start_redis()


@pytest.fixture(params=["files", "redis"])
def replicas(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Replica, Replica]]:
    """Two replicas on one store."""
    stores: list[HintStore]
    if request.param == "redis":
        url = request.getfixturevalue("redis_server").url
        stores = [RedisHintStore(url, clock=lambda: NOW_S) for _ in range(2)]
    else:
        stores = [FileHintStore(tmp_path, clock=lambda: NOW_S) for _ in range(2)]
    yield Replica(stores[0]), Replica(stores[1])
    for store in stores:
        store.close()


Pair = tuple[Replica, Replica]


async def both(replicas: Pair, *, times: int = 2) -> None:
    for _ in range(times):
        for replica in replicas:
            await replica.ledger.synchronise()


async def test_a_verdict_of_one_replica_is_heard_by_the_other_once(replicas: Pair) -> None:
    first, second = replicas
    first.ledger.settle(key(), verdict())
    await both(replicas, times=3)
    assert (first.answer(), second.answer()) == ("enable", "enable")
    assert [len(replica.heard) for replica in replicas] == [0, 1]
    assert first.ledger.pending == second.ledger.pending == 0


async def test_of_two_verdicts_the_later_one_holds_whoever_is_faster(replicas: Pair) -> None:
    first, second = replicas
    second.ledger.settle(key(), verdict("decline", settled_at=NOW_S + 1))
    first.ledger.settle(key(), verdict("enable"))
    await asyncio.gather(first.ledger.synchronise(), second.ledger.synchronise())
    await both(replicas)
    assert (first.answer(), second.answer()) == ("decline", "decline")


async def test_a_pin_and_a_verdict_said_at_once_on_two_replicas_both_hold(replicas: Pair) -> None:
    first, second = replicas
    first.ledger.pin(key(), pin())
    second.ledger.settle(key(), verdict("decline"))
    await asyncio.gather(first.ledger.synchronise(), second.ledger.synchronise())
    await both(replicas)
    for replica in replicas:
        document = replica.ledger.get(key().hash)
        assert document is not None
        assert document.pin == pin()
        assert replica.answer() == "decline"


async def test_a_reset_and_an_unpin_reach_the_other_replica(replicas: Pair) -> None:
    first, second = replicas
    first.ledger.settle(key(), verdict())
    first.ledger.pin(key(), pin())
    await both(replicas)
    first.now_s = second.now_s = NOW_S + 1
    second.ledger.reset(key())
    second.ledger.unpin(key())
    await both(replicas)
    for replica in replicas:
        document = replica.ledger.get(key().hash)
        assert document is not None
        assert (document.settled, document.pin) == (None, None)


async def test_a_persons_word_overrules_a_verdict_and_a_pin_from_a_host_whose_clock_is_ahead(replicas: Pair) -> None:
    behind, ahead = replicas
    ahead.now_s = NOW_S + 100
    ahead.ledger.settle(key(), verdict(settled_at=NOW_S + 100))
    ahead.ledger.pin(key(), pin().model_copy(update={"pinned_at": NOW_S + 100}))
    await both(replicas)
    behind.ledger.reset(key())
    behind.ledger.unpin(key())
    await both(replicas)
    for replica in replicas:
        document = replica.ledger.get(key().hash)
        assert document is not None
        assert (document.settled, document.pin) == (None, None)


async def test_a_replacing_import_is_the_latest_word_on_what_it_says_and_leaves_the_rest(replicas: Pair) -> None:
    first, _ = replicas
    first.ledger.settle(key(), verdict("enable", settled_at=NOW_S + 50))
    first.ledger.pin(key(), pin())
    old = HintDocument(key=key(), settled=verdict("decline", settled_at=NOW_S - 50), verdict_at=NOW_S - 50)
    assert first.ledger.replace(old)
    await both(replicas)
    for replica in replicas:
        assert replica.answer() == "decline"
        document = replica.ledger.get(key().hash)
        assert document is not None
        assert document.pin == pin()


async def test_looking_up_finds_what_was_stored_a_moment_ago_or_says_why_not(replicas: Pair) -> None:
    first, second = replicas
    document, why = await second.ledger.look_up(key())
    assert document is None
    assert "missing" in why
    first.ledger.settle(key(), verdict())
    await first.ledger.synchronise()
    document, why = await second.ledger.look_up(key())
    assert document is not None
    assert (document.settled, why) == (verdict(), "")


async def test_what_expired_is_not_known_any_more_and_is_not_stored_again(replicas: Pair) -> None:
    first, _ = replicas
    first.ledger.settle(key(), verdict())
    first.ledger.pin(key("p"), pin(ttl_s=10))
    first.now_s = NOW_S + 3600
    assert first.answer() is None
    document = first.ledger.get(key("p").hash)
    assert document is not None
    assert document.pin is None
    await first.ledger.synchronise()
    assert first.ledger.pending == 0
    assert (await first.ledger.look_up(key()))[0] is not None


async def test_sixteen_replicas_writing_one_pairing_lose_nothing(tmp_path: Path) -> None:
    replicas = [Replica(FileHintStore(tmp_path, clock=lambda: NOW_S)) for _ in range(16)]
    for number, replica in enumerate(replicas):
        replica.ledger.settle(key(), verdict("decline" if number == 7 else "enable", settled_at=NOW_S + (number == 7)))
        replica.ledger.settle(key(f"own-{number}"), verdict())
    for _ in range(3):
        await asyncio.gather(*(replica.ledger.synchronise() for replica in replicas))
    for replica in replicas:
        assert replica.answer() == "decline"
        assert all(replica.answer(f"own-{number}") == "enable" for number in range(16))


async def test_while_redis_is_down_memory_answers_and_one_line_is_logged_each_way(redis_server: Any) -> None:
    first, second = (Replica(RedisHintStore(redis_server.url, clock=lambda: NOW_S)) for _ in range(2))
    first.ledger.settle(key("before"), verdict())
    await both((first, second))
    redis_server.kill()
    with structlog.testing.capture_logs() as logs:
        first.ledger.settle(key("meanwhile"), verdict())
        for _ in range(3):
            await first.ledger.synchronise()
            document, why = await first.ledger.look_up(key("unknown"))
            assert document is None
            assert "does not answer" in why
        assert first.answer("meanwhile") == "enable"
        assert first.ledger.down
        redis_server.start()
        second.ledger.settle(key("there"), verdict("decline"))
        await both((first, second))
    events = [line["event"] for line in logs if line["event"] != "hint stored"]
    assert events == ["hint store failed", "hint store answers again"]
    assert second.answer("meanwhile") == "enable"
    assert first.answer("there") == "decline"
    assert (first.answer("before"), second.answer("before")) == ("enable", "enable")


async def test_a_redis_that_lost_everything_is_filled_from_memory(redis_server: Any) -> None:
    first, second = (Replica(RedisHintStore(redis_server.url, clock=lambda: NOW_S)) for _ in range(2))
    first.ledger.settle(key(), verdict())
    await both((first, second))
    redis_server.wipe()
    redis_server.start()
    await first.ledger.synchronise()
    newcomer = Replica(RedisHintStore(redis_server.url, clock=lambda: NOW_S))
    await newcomer.ledger.synchronise()
    assert newcomer.answer() == "enable"


async def test_the_task_stores_what_is_learned_at_once_and_hears_within_a_refresh(replicas: Pair) -> None:
    running = [asyncio.create_task(replica.ledger.run()) for replica in replicas]
    try:
        replicas[0].ledger.settle(key(), verdict())
        async with asyncio.timeout(2):
            while replicas[1].answer() != "enable":  # noqa: ASYNC110  (a replica does not say that it heard)
                await asyncio.sleep(0.005)
    finally:
        for task in running:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_one_document_that_cannot_be_written_keeps_no_other_waiting(tmp_path: Path) -> None:
    replica = Replica(FileHintStore(tmp_path, clock=lambda: NOW_S))
    (tmp_path / f"{key('blocked').hash}.json").mkdir()
    for target in ("blocked", "a", "b"):
        replica.ledger.settle(key(target), verdict())
    await replica.ledger.synchronise()
    assert replica.ledger.pending == 1
    reader = FileHintStore(tmp_path, clock=lambda: NOW_S)
    assert all(reader.load(key(target).hash).document is not None for target in ("a", "b"))


async def test_an_import_is_taken_as_far_as_it_is_newer(replicas: Pair) -> None:
    first, _ = replicas
    first.ledger.settle(key(), verdict("enable", settled_at=NOW_S))
    older = HintDocument(key=key(), settled=verdict("decline", settled_at=NOW_S - 1), verdict_at=NOW_S - 1)
    assert not first.ledger.add(older)
    assert first.ledger.add(older.model_copy(update={"verdict_at": NOW_S + 1}))
    assert first.answer() == "decline"
    assert len(first.heard) == 1


async def test_memory_is_bounded_and_keeps_pins_and_what_is_not_stored_yet() -> None:
    replica = Replica(FileHintStore(None))
    replica.ledger.pin(key("pinned"), pin())
    for number in range(MAX_KNOWN + 50):
        replica.ledger.settle(key(f"t{number}"), verdict(settled_at=NOW_S + number))
        if number % 512 == 0:
            await replica.ledger.synchronise()
    await replica.ledger.synchronise()
    replica.ledger.settle(key("last"), verdict(settled_at=NOW_S + 1e6))
    assert len(replica.ledger.documents()) <= MAX_KNOWN + 1
    pinned = replica.ledger.get(key("pinned").hash)
    assert pinned is not None
    assert replica.answer("last") == "enable"

"""Hints in a store: one set of promises for every backend, then what is peculiar to files and to Redis."""

import concurrent.futures
import dataclasses
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from burstgate_policy.core.types import PolicyKey
from burstgate_policy.hints import files
from burstgate_policy.hints.document import HintDocument, StoredEvidence, StoredPin, StoredVerdict, encode
from burstgate_policy.hints.files import FileHintStore
from burstgate_policy.hints.redis import RedisHintStore
from burstgate_policy.hints.store import HintStore, HintStoreError

NOW_S = 2_000_000_000.0
EVIDENCE = StoredEvidence(
    rounds=64,
    plain_steps=8,
    traffic_kinds=2,
    speedup=1.9,
    speedup_low=1.7,
    speedup_high=2.1,
    confidence=0.9,
    spread=0.2,
    first_seen_at=NOW_S - 60,
    last_seen_at=NOW_S - 1,
    round_ms=90.0,
    plain_step_ms=68.0,
)
VERDICT = StoredVerdict(
    verdict="enable", acceptance_rate=0.68, samples=8, evidence=EVIDENCE, settled_at=NOW_S, expires_at=NOW_S + 3600
)
PIN = StoredPin(speculate=False, reason="it stutters", author="ada", pinned_at=NOW_S)
# Every number and name a document may hold; whatever else a profile or a request knows stays out of it.
EVIDENCE_FIELDS = set(StoredEvidence.model_fields)
FIELDS = {"version", "revision", "key", "settled", "verdict_at", "pin", "pin_at"}
SETTLED_FIELDS = {"verdict", "acceptance_rate", "samples", "evidence", "settled_at", "expires_at", "policy_version"}


@pytest.fixture
def document(key: PolicyKey) -> HintDocument:
    return HintDocument(key=key, settled=VERDICT, verdict_at=NOW_S)


@pytest.fixture(params=["files", "redis"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., HintStore]:
    """Opens one more store on the same documents; keyword `now_s` is what its clock says."""
    if request.param == "redis":
        url = request.getfixturevalue("start_redis")().url
        return lambda now_s=NOW_S: RedisHintStore(url, clock=lambda: now_s)
    return lambda now_s=NOW_S: FileHintStore(tmp_path / "cache" / "hints", clock=lambda: now_s)


Open = Callable[..., HintStore]


def test_a_saved_document_loads_with_its_revision(open_store: Open, document: HintDocument) -> None:
    assert open_store().save(document, replaces=0)
    loaded = open_store().load(document.key_hash)
    assert loaded.document == document.model_copy(update={"revision": 1})
    assert (loaded.reason, loaded.revision) == (None, 1)


def test_what_was_never_saved_is_missing_and_says_so(open_store: Open, key: PolicyKey) -> None:
    loaded = open_store().load(key.hash)
    assert (loaded.document, loaded.revision) == (None, 0)
    assert "missing" in str(loaded.reason)


def test_a_save_that_did_not_see_the_stored_revision_changes_nothing(open_store: Open, document: HintDocument) -> None:
    first, second = open_store(), open_store()
    newer = document.model_copy(update={"verdict_at": NOW_S + 1})
    assert first.save(document, replaces=0)
    assert second.save(newer, replaces=1)
    for replaces in (0, 1, 3):
        assert not first.save(document, replaces=replaces)
    assert first.load(document.key_hash).document == newer.model_copy(update={"revision": 2})


def test_of_many_writers_at_once_every_revision_has_exactly_one(open_store: Open, document: HintDocument) -> None:
    writers = [open_store() for _ in range(6)]

    def write(store: HintStore) -> list[int]:
        won: list[int] = []
        while len(won) < 10:
            replaces = store.load(document.key_hash).revision
            if store.save(document, replaces=replaces):
                won.append(replaces + 1)
        return won

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        revisions = sorted(revision for won in pool.map(write, writers) for revision in won)
    assert revisions == list(range(1, 61))


def test_pairings_do_not_touch_each_other(open_store: Open, document: HintDocument) -> None:
    store = open_store()
    other = document.model_copy(update={"key": dataclasses.replace(document.key, draft_width=4)})
    assert store.save(document, replaces=0)
    assert store.save(other, replaces=0)
    assert {load.key_hash for load in open_store().changes().loads} == {document.key_hash, other.key_hash}


def test_changes_tells_everything_first_and_then_only_what_changed(open_store: Open, document: HintDocument) -> None:
    reader, writer = open_store(), open_store()
    assert reader.changes().loads == []
    assert writer.save(document, replaces=0)
    (seen,) = reader.changes().loads
    assert seen.document == document.model_copy(update={"revision": 1})
    assert reader.changes().loads == []
    assert writer.save(document.model_copy(update={"pin": PIN, "pin_at": NOW_S}), replaces=1)
    (seen,) = reader.changes().loads
    assert seen.document is not None
    assert seen.document.pin == PIN


def test_nothing_outlives_its_expiry(open_store: Open, document: HintDocument) -> None:
    assert open_store().save(document, replaces=0)
    late = open_store(now_s=NOW_S + 3600)
    loaded = late.load(document.key_hash)
    assert loaded.document is None
    assert "expired" in str(loaded.reason)
    later = document.model_copy(update={"settled": VERDICT.model_copy(update={"expires_at": NOW_S + 9999})})
    assert late.save(later, replaces=loaded.revision)
    assert late.load(document.key_hash).document is not None


def test_a_pin_without_an_end_outlives_the_verdict(open_store: Open, document: HintDocument) -> None:
    pinned = document.model_copy(update={"pin": PIN, "pin_at": NOW_S})
    assert open_store().save(pinned, replaces=0)
    loaded = open_store(now_s=NOW_S + 1e6).load(document.key_hash).document
    assert loaded is not None
    assert loaded.at(NOW_S + 1e6).settled is None
    assert loaded.at(NOW_S + 1e6).pin == PIN


def test_only_verdict_evidence_pin_and_times_are_ever_stored(open_store: Open, document: HintDocument) -> None:
    store = open_store()
    assert store.save(document.model_copy(update={"pin": PIN, "pin_at": NOW_S}), replaces=0)
    loaded = store.load(document.key_hash).document
    assert loaded is not None
    stored = json.loads(encode(loaded))
    assert set(stored) == FIELDS
    assert set(stored["key"]) == {field.name for field in dataclasses.fields(PolicyKey)}
    assert set(stored["settled"]) == SETTLED_FIELDS
    assert set(stored["settled"]["evidence"]) == EVIDENCE_FIELDS
    assert set(stored["pin"]) == {"speculate", "reason", "author", "pinned_at", "expires_at"}


def test_acceptance_is_stored_with_two_decimals() -> None:
    assert StoredVerdict.model_validate({**VERDICT.model_dump(), "acceptance_rate": 0.67891}).acceptance_rate == 0.68


# --- files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "hints"


@pytest.fixture
def path(folder: Path, key: PolicyKey) -> Path:
    folder.mkdir()
    return folder / f"{key.hash}.json"


def file_store(folder: Path | None) -> FileHintStore:
    return FileHintStore(folder, clock=lambda: NOW_S)


def reason(folder: Path, key: PolicyKey) -> str:
    loaded = file_store(folder).load(key.hash)
    assert (loaded.document, loaded.revision) == (None, 0)
    return str(loaded.reason)


def test_folder_and_file_belong_to_their_owner_alone(folder: Path, document: HintDocument) -> None:
    assert file_store(folder).save(document, replaces=0)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_without_a_folder_nothing_is_remembered_and_nothing_fails(document: HintDocument) -> None:
    store = file_store(None)
    assert store.save(document, replaces=0)
    assert store.load(document.key_hash).document is None
    assert store.changes().loads == []


def test_a_folder_in_place_of_the_file_is_unreadable(path: Path, key: PolicyKey) -> None:
    path.mkdir()
    assert "unreadable" in reason(path.parent, key)


def test_a_file_over_64_kib_is_not_read(path: Path, key: PolicyKey) -> None:
    path.write_bytes(b" " * (64 * 1024 + 1))
    assert "too large" in reason(path.parent, key)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 60_000, b"nonsense", b"9" * 60_000])
def test_garbage_is_not_json(path: Path, key: PolicyKey, content: bytes) -> None:
    path.write_bytes(content)
    assert "not JSON" in reason(path.parent, key)


def test_every_truncation_is_refused(path: Path, document: HintDocument) -> None:
    whole = encode(document).rstrip()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert "not JSON" in reason(path.parent, document.key)


@pytest.mark.parametrize("content", [b"[]", b"3", b"null", b'"enable"'])
def test_json_that_is_no_object_is_refused(path: Path, key: PolicyKey, content: bytes) -> None:
    path.write_bytes(content)
    assert "not a JSON object" in reason(path.parent, key)


@pytest.mark.parametrize(
    ("version", "names"),
    [
        (1, ("target", "drafter", "hardware")),
        (2, ("target", "drafter", "hardware", "draft_width")),
        (3, tuple(field.name for field in dataclasses.fields(PolicyKey))),
    ],
)
def test_a_hint_of_an_older_format_is_recognised_and_replaced(
    path: Path, document: HintDocument, version: int, names: tuple[str, ...]
) -> None:
    key = dataclasses.asdict(document.key)
    old = {"version": version, **{name: key[name] for name in names}}
    path.write_text(json.dumps({**old, "verdict": "enable", "acceptance_rate": 0.68, "samples": 4}))
    assert f"old version {version}; the pairing is re-profiled" in reason(path.parent, document.key)
    assert file_store(path.parent).save(document, replaces=0)
    assert file_store(path.parent).load(document.key_hash).document is not None


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("version", 5, "version 5 is not 4"),
        ("version", "4", "version must be a whole number"),
        ("version", True, "version must be a whole number"),
        ("revision", -1, "revision should be greater than or equal to 0"),
        ("key.target", "another", "belongs to another pairing"),
        ("key.mlx_version", "9.9", "belongs to another pairing"),
        ("key.draft_width", 4, "belongs to another pairing"),
        ("key.draft_width", "8", "key.draft_width should be a valid integer"),
        ("key.draft_width", 65, "key.draft_width must be from 1 to 64"),
        ("key.dtype", 5, "key.dtype should be a valid string"),
        ("key.blas", "x" * 257, "key.blas must have at most 256 bytes"),
        ("settled.verdict", "ENABLE", "settled.verdict should be 'enable' or 'decline'"),
        ("settled.verdict", None, "settled.verdict should be 'enable' or 'decline'"),
        ("settled.acceptance_rate", "0.5", "settled.acceptance_rate should be a valid number"),
        ("settled.acceptance_rate", 1.5, "settled.acceptance_rate should be less than or equal to 1"),
        ("settled.acceptance_rate", float("nan"), "settled.acceptance_rate should be"),
        ("settled.acceptance_rate", 10**400, "settled.acceptance_rate should be"),
        ("settled.samples", 0, "settled.samples should be greater than or equal to 1"),
        ("settled.samples", 4.5, "settled.samples should be a valid integer"),
        ("settled.expires_at", 1e30, "settled.expires_at should be less than"),
        ("settled.evidence.spread", -1.0, "settled.evidence.spread should be greater than or equal to 0"),
        ("pin", 3, "pin"),
    ],
)
def test_each_wrong_field_is_named(path: Path, document: HintDocument, field: str, value: object, why: str) -> None:
    stored = json.loads(encode(document))
    *parents, name = field.split(".")
    place = stored
    for parent in parents:
        place = place[parent]
    place[name] = value
    path.write_text(json.dumps(stored))
    assert why in reason(path.parent, document.key)


def test_each_missing_field_is_named(path: Path, document: HintDocument) -> None:
    stored = json.loads(encode(document))
    for part in ("key", "settled"):
        for field in set(stored[part]) - {"evidence", "policy_version"}:
            cut = {**stored, part: {name: value for name, value in stored[part].items() if name != field}}
            path.write_text(json.dumps(cut))
            assert f"field {part}.{field} is missing" in reason(path.parent, document.key)


def test_unknown_fields_of_a_later_release_are_tolerated(path: Path, document: HintDocument) -> None:
    stored = json.loads(encode(document))
    path.write_text(json.dumps({**stored, "later": 1, "settled": {**stored["settled"], "later": 1}}))
    assert file_store(path.parent).load(document.key_hash).document == document


def test_a_failed_rename_leaves_no_temporary_file(path: Path, document: HintDocument) -> None:
    path.mkdir()
    with pytest.raises(HintStoreError):
        file_store(path.parent).save(document, replaces=0)
    assert {one.name for one in path.parent.iterdir()} == {path.name, ".lock"}


def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(tmp_path: Path, document: HintDocument) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(HintStoreError, match=r"file/hints .*make the folder writable"):
        file_store(blocked / "hints").save(document, replaces=0)


def test_leftovers_of_dead_writers_are_removed_and_files_being_written_are_not(
    tmp_path: Path, document: HintDocument
) -> None:
    dead, living, foreign = tmp_path / ".hint-dead.tmp", tmp_path / ".hint-new.tmp", tmp_path / "notes.tmp"
    for file in (dead, living, foreign):
        file.write_text("{")
    for file in (dead, foreign):
        os.utime(file, (1.0, 1.0))
    assert file_store(tmp_path).save(document, replaces=0)
    assert not dead.exists()
    assert living.exists()
    assert foreign.exists()


def test_a_frozen_lock_holder_costs_a_named_error_and_not_for_ever(
    folder: Path, document: HintDocument, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOCK_WAIT_S", 0.1)
    folder.mkdir()
    with (folder / ".lock").open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(HintStoreError, match="another process held its lock"):
            file_store(folder).save(document, replaces=0)
    assert file_store(folder).save(document, replaces=0)


# --- Redis


@pytest.fixture
def redis_server(start_redis: Callable[[], Any]) -> Any:
    return start_redis()


def redis_store(server: Any) -> RedisHintStore:
    return RedisHintStore(server.url, clock=time.time)


def living(document: HintDocument, *, ttl_s: float) -> HintDocument:
    """The document with times of now, which the server's own clock sees."""
    now_s = time.time()
    settled = VERDICT.model_copy(update={"settled_at": now_s, "expires_at": now_s + ttl_s})
    return document.model_copy(update={"settled": settled, "verdict_at": now_s})


def test_redis_drops_a_document_at_its_expiry_and_keeps_a_pinned_one(redis_server: Any, document: HintDocument) -> None:
    store, client = redis_store(redis_server), redis_server.client()
    assert store.save(living(document, ttl_s=30), replaces=0)
    name = f"{{burstgate}}:hint:{document.key_hash}"
    assert 25_000 < client.pttl(name) <= 30_000
    assert store.save(living(document, ttl_s=30).model_copy(update={"pin": PIN, "pin_at": NOW_S}), replaces=1)
    assert client.pttl(name) == -1
    assert store.save(living(document, ttl_s=0.05), replaces=2)
    time.sleep(0.1)
    assert not client.exists(name)
    assert store.changes().loads[0].document is None
    assert client.zcard("{burstgate}:changes") == 0


@pytest.mark.parametrize("kind", ["string", "empty hash", "garbage", "bad revision"])
def test_what_others_wrote_in_redis_is_reported_and_replaced(
    redis_server: Any, document: HintDocument, kind: str
) -> None:
    client, name = redis_server.client(), f"{{burstgate}}:hint:{document.key_hash}"
    match kind:
        case "string":
            client.set(name, "x")
        case "empty hash":
            client.hset(name, "other", "x")
        case "garbage":
            client.hset(name, mapping={"revision": 7, "document": "{"})
        case _:
            client.hset(name, mapping={"revision": "many", "document": "{"})
    store = redis_store(redis_server)
    loaded = store.load(document.key_hash)
    assert loaded.document is None
    assert name in str(loaded.reason)
    assert store.save(living(document, ttl_s=60), replaces=loaded.revision)
    assert store.load(document.key_hash).document is not None


def test_redis_that_is_gone_or_frozen_costs_an_error_within_its_limit(
    redis_server: Any, document: HintDocument
) -> None:
    store = redis_store(redis_server)
    redis_server.signal(signal.SIGSTOP)
    started_s = time.monotonic()
    with pytest.raises(HintStoreError, match="TimeoutError"):
        store.load(document.key_hash)
    assert time.monotonic() - started_s < 2.5
    redis_server.signal(signal.SIGCONT)
    assert store.save(living(document, ttl_s=60), replaces=0)
    redis_server.kill()
    for call in (lambda: store.load(document.key_hash), lambda: store.save(document, replaces=0), store.changes):
        with pytest.raises(HintStoreError, match="does not answer"):
            call()
    redis_server.start()
    assert store.load(document.key_hash).document is not None


def test_a_redis_that_lost_its_memory_is_noticed(redis_server: Any, document: HintDocument) -> None:
    store = redis_store(redis_server)
    assert store.save(living(document, ttl_s=60), replaces=0)
    assert not store.changes().restarted
    redis_server.wipe()
    redis_server.start()
    assert store.changes().restarted
    assert not store.changes().restarted


def test_the_name_of_a_redis_holds_no_password() -> None:
    store = RedisHintStore("redis://someone:secret@host:7000/3")
    assert store.name == "redis host:7000 database 3"

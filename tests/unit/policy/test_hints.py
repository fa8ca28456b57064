"""Hints on disk: what is stored, what is refused and why, and what a failure leaves behind."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from burstgate_policy.core.hint import Hint
from burstgate_policy.core.types import PolicyKey, Verdict
from burstgate_policy.hints.files import FileHintStore
from burstgate_policy.hints.store import HintStore, HintStoreError


@pytest.fixture
def hint(key: PolicyKey) -> Hint:
    return Hint(key, Verdict.ENABLE, 0.68, 4)


@pytest.fixture
def path(tmp_path: Path, key: PolicyKey) -> Path:
    return tmp_path / f"{key.hash}.json"


def reason(folder: Path, key: PolicyKey) -> str:
    loaded = FileHintStore(folder).load(key)
    assert loaded.hint is None
    assert loaded.reason is not None
    return loaded.reason


def test_a_saved_hint_loads(tmp_path: Path, hint: Hint) -> None:
    store: HintStore = FileHintStore(tmp_path / "cache" / "hints")
    store.save(hint)
    assert store.load(hint.key).hint == hint
    assert store.load(hint.key).reason is None


def test_a_new_folder_is_private_and_a_file_is_too(tmp_path: Path, hint: Hint) -> None:
    folder = tmp_path / "hints"
    FileHintStore(folder).save(hint)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / f"{hint.key.hash}.json").stat().st_mode & 0o077 == 0


def test_a_file_holds_only_coarse_fields(path: Path, hint: Hint) -> None:
    FileHintStore(path.parent).save(hint)
    document = json.loads(path.read_bytes())
    assert document == {
        "version": 3,
        **dataclasses.asdict(hint.key),
        "verdict": "enable",
        "acceptance_rate": 0.68,
        "samples": 4,
    }


def test_pairings_have_files_of_their_own_and_the_last_writer_wins(tmp_path: Path, hint: Hint) -> None:
    store = FileHintStore(tmp_path)
    other = dataclasses.replace(hint, key=dataclasses.replace(hint.key, draft_width=4))
    newer = dataclasses.replace(hint, verdict=Verdict.DECLINE)
    for each in (hint, other, newer):
        store.save(each)
    assert store.load(hint.key).hint == newer
    assert store.load(other.key).hint == other
    assert len(list(tmp_path.iterdir())) == 2


def test_without_a_folder_nothing_is_remembered_and_nothing_fails(hint: Hint) -> None:
    store = FileHintStore(None)
    store.save(hint)
    assert store.load(hint.key).hint is None


def test_a_missing_file_and_a_missing_folder_are_said_to_be_missing(tmp_path: Path, key: PolicyKey) -> None:
    assert "missing" in reason(tmp_path, key)
    assert "missing" in reason(tmp_path / "never", key)


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


def test_a_file_cut_short_is_not_json(path: Path, hint: Hint) -> None:
    FileHintStore(path.parent).save(hint)
    path.write_bytes(path.read_bytes()[:-10])
    assert "not JSON" in reason(path.parent, hint.key)


@pytest.mark.parametrize("content", [b"[]", b"3", b"null", b'"enable"'])
def test_json_that_is_no_object_is_refused(path: Path, key: PolicyKey, content: bytes) -> None:
    path.write_bytes(content)
    assert "not a JSON object" in reason(path.parent, key)


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("version", 1, "old version 1; the pairing is re-profiled"),
        ("version", 2, "old version 2; the pairing is re-profiled"),
        ("version", 4, "version is not 3"),
        ("version", "3", "version must be of type int"),
        ("version", True, "version must be of type int"),
        ("target", "another", "another pairing: its target differs"),
        ("mlx_version", "9.9", "another pairing: its mlx_version differs"),
        ("draft_width", 4, "another pairing: its draft_width differs"),
        ("draft_width", "8", "draft_width must be of type int"),
        ("dtype", 5, "dtype must be of type str"),
        ("verdict", "ENABLE", "verdict must be"),
        ("verdict", None, "verdict must be of type str"),
        ("acceptance_rate", "0.5", "acceptance_rate must be of type float"),
        ("acceptance_rate", 1.5, "acceptance_rate must lie in [0, 1]"),
        ("acceptance_rate", float("nan"), "acceptance_rate must lie in [0, 1]"),
        ("acceptance_rate", 10**400, "acceptance_rate is too large"),
        ("samples", 0, "samples must be at least 1"),
        ("samples", 4.0, "samples must be of type int"),
    ],
)
def test_each_wrong_field_is_named(path: Path, hint: Hint, field: str, value: object, why: str) -> None:
    FileHintStore(path.parent).save(hint)
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps({**document, field: value}))
    assert why in reason(path.parent, hint.key)


def test_each_missing_field_is_named(path: Path, hint: Hint) -> None:
    FileHintStore(path.parent).save(hint)
    document = json.loads(path.read_bytes())
    for field in document:
        path.write_text(json.dumps({name: value for name, value in document.items() if name != field}))
        assert f"field {field} is missing" in reason(path.parent, hint.key)


def test_unknown_fields_of_a_later_release_are_tolerated(path: Path, hint: Hint) -> None:
    FileHintStore(path.parent).save(hint)
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "later": 1}))
    assert FileHintStore(path.parent).load(hint.key).hint == hint


def test_a_failed_rename_leaves_no_temporary_file_and_keeps_the_old_hint(path: Path, hint: Hint) -> None:
    path.mkdir()
    with pytest.raises(HintStoreError):
        FileHintStore(path.parent).save(hint)
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(tmp_path: Path, hint: Hint) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(HintStoreError, match=r"file/hints .*make the folder writable"):
        FileHintStore(blocked / "hints").save(hint)


def test_leftovers_of_dead_writers_are_removed_and_files_being_written_are_not(tmp_path: Path, hint: Hint) -> None:
    dead, living, foreign = tmp_path / ".hint-dead.tmp", tmp_path / ".hint-new.tmp", tmp_path / "notes.tmp"
    for file in (dead, living, foreign):
        file.write_text("{")
    for file in (dead, foreign):
        os.utime(file, (1.0, 1.0))
    FileHintStore(tmp_path).save(hint)
    assert not dead.exists()
    assert living.exists()
    assert foreign.exists()

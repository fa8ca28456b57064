"""Stored cost tables: what is written is read, what is damaged or another's is refused with a reason."""

import dataclasses
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from burstgate_decode.models.cost_files import MAX_FILE_BYTES, METHOD, CostFileError, CostFiles, CostKey
from burstgate_policy.core.types import CostCell, PolicyKey

PAIRING = PolicyKey(
    "target", "drafter", "x86_64-2c", 8, "f" * 16, "e" * 16, "float32", "cpu", "openblas-0.3.34", "0.32.4"
)
KEY = CostKey(PAIRING, max_width=8, shares_forwards=True, blas_threads=2)
TABLE = (CostCell(1, 1, 64, 55.5, 0.0), CostCell(1, 8, 64, 71.25, 24.5), CostCell(8, 1, 64, 74.0, 0.0))
NOW_S = 1_800_000_000.0


@pytest.fixture
def files(tmp_path: Path) -> CostFiles:
    return CostFiles(tmp_path / "costs", now=lambda: NOW_S)


def edit(files: CostFiles, **changes: object) -> None:
    path = files.path(KEY)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def cell(**changes: object) -> dict[str, object]:
    return {"width": 1, "draft_width": 2, "depth_tokens": 64, "verify_ms": 60.0, "draft_ms": 3.0, **changes}


def test_what_is_saved_is_loaded(files: CostFiles) -> None:
    assert files.load(KEY) is None
    files.save(KEY, TABLE)
    stored = files.load(KEY)
    assert stored is not None
    assert (stored.table, stored.measured_at, stored.key) == (TABLE, NOW_S, KEY)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(PolicyKey)])
def test_whatever_changes_of_the_pairing_is_another_table(files: CostFiles, field: str) -> None:
    files.save(KEY, TABLE)
    value = getattr(PAIRING, field)
    changed = dataclasses.replace(PAIRING, **{field: value + 1 if isinstance(value, int) else value + "x"})
    assert files.load(dataclasses.replace(KEY, pairing=changed)) is None


@pytest.mark.parametrize(
    "changes", [{"max_width": 4}, {"shares_forwards": False}, {"blas_threads": 1}, {"method": METHOD + 1}]
)
def test_another_lane_thread_count_or_method_is_another_table(files: CostFiles, changes: dict[str, Any]) -> None:
    files.save(KEY, TABLE)
    assert files.load(dataclasses.replace(KEY, **changes)) is None


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"version": 2}, "version"),
        ({"cells": []}, "cells: Tuple should have at least 2 items"),
        ({"cells": [cell(), cell()]}, "two cells have one place"),
        ({"cells": [cell(), cell(draft_width=1, verify_ms=0.0)]}, "cells.1.verify_ms: Input should be greater than 0"),
        ({"cells": [cell(), cell(draft_width=1, verify_ms="60")]}, "cells.1.verify_ms: Input should be a valid number"),
        ({"cells": [cell(), cell(draft_width=1, draft_ms=-1.0)]}, "cells.1.draft_ms"),
        ({"cells": [cell(), cell(draft_width=65)]}, "cells.1.draft_width: Input should be less than or equal to 64"),
        ({"cells": [cell(), cell(draft_width=1, width=0)]}, "cells.1.width"),
        ({"cells": [cell(), cell(draft_width=1, more=1)]}, "cells.1.more"),
        ({"measured_at": -1.0}, "measured_at"),
        ({"more": 1}, "more"),
        ({"key": {}}, "key"),
    ],
)
def test_a_document_with_a_wrong_field_is_refused_by_its_name(
    files: CostFiles, changes: dict[str, object], complaint: str
) -> None:
    files.save(KEY, TABLE)
    edit(files, **changes)
    with pytest.raises(CostFileError, match=r"is no cost table: ") as refused:
        files.load(KEY)
    assert complaint in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"[]", b"{", b'{"cells": [NaN]}', b"[" * 100_000])
def test_what_is_no_document_is_refused(files: CostFiles, content: bytes) -> None:
    files.save(KEY, TABLE)
    files.path(KEY).write_bytes(content)
    with pytest.raises(CostFileError, match="is no cost table"):
        files.load(KEY)


def test_a_file_that_was_cut_short_is_refused_and_replaced_whole(files: CostFiles) -> None:
    files.save(KEY, TABLE)
    path = files.path(KEY)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CostFileError):
        files.load(KEY)
    files.save(KEY, TABLE)
    stored = files.load(KEY)
    assert stored is not None
    assert stored.table == TABLE


def test_a_huge_file_is_not_read_to_its_end(files: CostFiles) -> None:
    files.save(KEY, TABLE)
    files.path(KEY).write_bytes(b" " * (MAX_FILE_BYTES + 1))
    with pytest.raises(CostFileError, match=f"larger than {MAX_FILE_BYTES} bytes"):
        files.load(KEY)


def test_a_file_that_was_copied_to_another_name_is_refused(files: CostFiles) -> None:
    files.save(KEY, TABLE)
    other = dataclasses.replace(KEY, max_width=4)
    files.path(KEY).rename(files.path(other))
    with pytest.raises(CostFileError, match="the table of another key"):
        files.load(other)


def test_a_folder_where_the_file_should_be_is_a_reason_to_load_and_to_save(files: CostFiles) -> None:
    files.path(KEY).mkdir(parents=True)
    with pytest.raises(CostFileError, match="cannot be read: Is a directory"):
        files.load(KEY)
    with pytest.raises(CostFileError, match="cannot be written"):
        files.save(KEY, TABLE)
    assert list(files.path(KEY).parent.iterdir()) == [files.path(KEY)]


def test_a_cache_folder_that_is_a_file_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "costs").write_text("")
    files = CostFiles(tmp_path / "costs")
    with pytest.raises(CostFileError, match="cannot be read"):
        files.load(KEY)
    with pytest.raises(CostFileError, match="cannot be written"):
        files.save(KEY, TABLE)


def test_a_table_that_no_clock_gives_is_not_stored(files: CostFiles) -> None:
    with pytest.raises(CostFileError, match="cannot be stored"):
        files.save(KEY, (*TABLE, CostCell(1, 2, 64, float("nan"), 0.0)))
    assert files.load(KEY) is None


def test_two_writers_and_a_reader_never_meet_half_a_file(tmp_path: Path) -> None:
    files = CostFiles(tmp_path)
    files.save(KEY, TABLE)
    wrong: list[Exception] = []

    def write() -> None:
        for _ in range(100):
            files.save(KEY, TABLE)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        try:
            assert files.load(KEY) is not None
        except CostFileError as error:
            wrong.append(error)
    assert wrong == []
    assert list(files.path(KEY).parent.iterdir()) == [files.path(KEY)]


def test_what_a_killed_writer_left_is_removed_once_it_is_old(files: CostFiles) -> None:
    files.save(KEY, TABLE)
    folder = files.path(KEY).parent
    old, new = folder / ".costs-old", folder / ".costs-new"
    for leftover, age_s in ((old, 3600.0), (new, 1.0)):
        leftover.write_text("")
        os.utime(leftover, (NOW_S - age_s, NOW_S - age_s))
    files.save(KEY, TABLE)
    assert not old.exists()
    assert new.exists()


def test_the_document_can_be_read_by_a_person(files: CostFiles) -> None:
    files.save(KEY, TABLE)
    document: dict[str, Any] = json.loads(files.path(KEY).read_text())
    assert document["key"]["pairing"]["target_fingerprint"] == "f" * 16
    assert document["cells"][1] == {
        "width": 1,
        "draft_width": 8,
        "depth_tokens": 64,
        "verify_ms": 71.25,
        "draft_ms": 24.5,
    }

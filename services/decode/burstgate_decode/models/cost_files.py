"""Keeps measured cost tables in the cache folder, one JSON file for everything that changes a cost.

A file is whole or not there: it is written beside its place and renamed. What is read is checked in every
field, because a file may be damaged, edited or another release's. It must not decide whether a table that
reads well still holds.
"""

import dataclasses
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Literal

import pydantic

from burstgate_policy.core.types import CostCell, PolicyKey

METHOD: Final = 4
"""To be raised when cells are measured otherwise, or cost what they did not, so that older tables are not compared with
newer ones."""

MAX_FILE_BYTES: Final = 256 * 1024
"""A table has some dozens of cells and under 8 KiB; anything far larger is none."""

_LEFTOVER_AGE_S: Final = 600.0  # writing takes milliseconds: a temporary file this old lost its writer
_TEMPORARY_PREFIX: Final = ".costs-"

_Rows = Annotated[int, pydantic.Field(ge=1, le=4096)]
_DraftWidth = Annotated[int, pydantic.Field(ge=1, le=64)]
_Depth = Annotated[int, pydantic.Field(ge=0, lt=2**31)]
_Ms = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
_MsOrZero = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]


class CostFileError(Exception):
    """A stored table cannot be used, or a table cannot be stored; the message says why."""


@dataclasses.dataclass(frozen=True)
class CostKey:
    """Everything that changes what is measured."""

    pairing: PolicyKey
    max_width: int
    """Most rows of a batch."""
    shares_forwards: bool
    """Whether the rows of a batch run in one forward."""
    blas_threads: int
    """Threads of the matrix library; 0 where it has none of its own."""
    method: int = METHOD

    @property
    def hash(self) -> str:
        """Sixteen hex characters that name the table's file."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class _Stored(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, strict=True, extra="forbid")


class StoredCell(_Stored):
    """One cell; the fields of `CostCell`."""

    width: _Rows
    draft_width: _DraftWidth
    depth_tokens: _Depth
    verify_ms: _Ms
    draft_ms: _MsOrZero


class StoredCosts(_Stored):
    """A stored table."""

    version: Literal[1] = 1
    key: CostKey
    measured_at: Annotated[float, pydantic.Field(ge=0, lt=253_402_300_800, allow_inf_nan=False)]
    """Seconds since the epoch."""
    cells: Annotated[tuple[StoredCell, ...], pydantic.Field(min_length=2, max_length=4096)]

    @pydantic.model_validator(mode="after")
    def _one_cell_a_place(self) -> "StoredCosts":
        places = {(cell.width, cell.draft_width, cell.depth_tokens) for cell in self.cells}
        if len(places) != len(self.cells):
            raise ValueError("two cells have one place")
        return self

    @property
    def table(self) -> tuple[CostCell, ...]:
        """The cells as the policy takes them."""
        return tuple(CostCell(**cell.model_dump()) for cell in self.cells)


class CostFiles:
    """Tables in a folder."""

    def __init__(self, folder: Path, *, now: Callable[[], float] = time.time) -> None:
        """`now` gives seconds since the epoch."""
        self._folder = folder
        self._now = now

    def path(self, key: CostKey) -> Path:
        """Where a key's table is kept."""
        return self._folder / f"{key.hash}.json"

    def load(self, key: CostKey) -> StoredCosts | None:
        """The stored table, None if there is none. Raises `CostFileError` when it cannot be used."""
        path = self.path(key)
        try:
            with path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CostFileError(f"{path} cannot be read: {error.strerror or error}") from error
        if len(content) > MAX_FILE_BYTES:
            raise CostFileError(f"{path} is larger than {MAX_FILE_BYTES} bytes, so it is no cost table")
        try:
            stored = StoredCosts.model_validate_json(content)
        except pydantic.ValidationError as error:
            raise CostFileError(f"{path} is no cost table: {_first_problem(error)}") from error
        if stored.key != key:
            raise CostFileError(f"{path} holds the table of another key")
        return stored

    def save(self, key: CostKey, table: tuple[CostCell, ...]) -> StoredCosts:
        """Stores a table in place of the one that is there. Raises `CostFileError`."""
        try:
            cells = tuple(StoredCell(**dataclasses.asdict(cell)) for cell in table)
            stored = StoredCosts(key=key, measured_at=self._now(), cells=cells)
            content = stored.model_dump_json(indent=2).encode() + b"\n"
        except ValueError as error:
            raise CostFileError(f"the table of {key.hash} cannot be stored: {error}") from error
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            _replace(self.path(key), content)
        except OSError as error:
            raise CostFileError(f"{self._folder} cannot be written: {error.strerror or error}") from error
        return stored

    def _remove_leftovers(self) -> None:
        for path in self._folder.glob(f"{_TEMPORARY_PREFIX}*"):
            with suppress(OSError):
                if self._now() - path.stat().st_mtime > _LEFTOVER_AGE_S:
                    path.unlink()


def _replace(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=_TEMPORARY_PREFIX, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _first_problem(error: pydantic.ValidationError) -> str:
    problem = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, problem["loc"]))
    return f"{place}: {problem['msg']}" if place else problem["msg"]

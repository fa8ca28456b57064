"""Keeps hints in a folder, one JSON file a pairing, named by the key's hash.

A file is always whole: it is written beside its place under a name of its own, flushed to the disk
and renamed. Processes that share the folder take turns through a lock file, which the system releases
when its holder dies, so that a revision is compared and set in one piece. Nobody but the owner of the
process may read the folder or a file.
"""

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from burstgate_policy.hints.document import MAX_DOCUMENT_BYTES, HintDocument, HintDocumentError, decode, encode
from burstgate_policy.hints.store import HintChanges, HintLoad, HintStoreError

LEFTOVER_AGE_S = 600.0
"""A temporary file older than this lost its writer: writing one takes milliseconds. Age and not the
writer's process id, because processes of other machines and containers may share the folder."""

LOCK_WAIT_S = 5.0
"""How long a frozen process may hold the lock before others give up: far longer than any write takes."""

_LOCK_RETRY_S = 0.01
_LOCK_NAME = ".lock"
_TEMPORARY_PREFIX = ".hint-"
_TEMPORARY_SUFFIX = ".tmp"
_FILE_NAME = re.compile(r"[0-9a-f]{16}\.json")

_Stamp = tuple[int, int, int]


class FileHintStore:
    """Hints in a folder; None keeps nothing."""

    def __init__(self, folder: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._seen: dict[str, _Stamp] = {}
        self.name = "nowhere" if folder is None else str(folder)

    def load(self, key_hash: str) -> HintLoad:
        """The document of a pairing, or the reason why it has none."""
        if self._folder is None:
            return HintLoad(key_hash, None, "no hint folder is set")
        path = self._folder / f"{key_hash}.json"
        try:
            with path.open("rb") as file:
                content = file.read(MAX_DOCUMENT_BYTES + 1)
        except FileNotFoundError:
            return HintLoad(key_hash, None, f"{path} is missing")
        except (OSError, ValueError) as error:
            return HintLoad(key_hash, None, f"{path} is unreadable: {_cause(error)}", unusable=True)
        try:
            document = decode(content)
        except HintDocumentError as error:
            return HintLoad(key_hash, None, f"{path} was ignored: {error}", unusable=True)
        if document.key_hash != key_hash:
            why = f"{path} was ignored: it belongs to another pairing, {document.key_hash}"
            return HintLoad(key_hash, None, why, unusable=True)
        expires_at = document.expires_at
        if expires_at is not None and expires_at <= self._clock():
            return HintLoad(key_hash, None, f"{path} has expired", revision=document.revision)
        return HintLoad(key_hash, document, revision=document.revision)

    def save(self, document: HintDocument, *, replaces: int) -> bool:
        """Stores a document if the stored revision is still `replaces`; raises HintStoreError."""
        folder = self._folder
        if folder is None:
            return True
        document = document.model_copy(update={"revision": replaces + 1})
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(folder):
                if self.load(document.key_hash).revision != replaces:
                    return False
                path = folder / f"{document.key_hash}.json"
                _replace(path, encode(document))
                self._seen[path.name] = _stamp(path.stat())
                _remove_leftovers(folder, written_s=path.stat().st_mtime)
        except (OSError, ValueError) as error:
            raise HintStoreError(
                f"the verdict could not be written to {folder} ({_cause(error)}): make the folder "
                "writable for this process, or set another one; the verdict holds until this process ends"
            ) from error
        return True

    def changes(self) -> HintChanges:
        """The documents whose files changed since the last call, by this store or by others."""
        if self._folder is None:
            return HintChanges([])
        changed: list[str] = []
        present: dict[str, _Stamp] = {}
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if not _FILE_NAME.fullmatch(entry.name):
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        present[entry.name] = _stamp(entry.stat())
                    if present.get(entry.name) != self._seen.get(entry.name):
                        changed.append(entry.name)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise HintStoreError(f"the hint folder {self._folder} cannot be read: {_cause(error)}") from error
        self._seen = present
        return HintChanges([self.load(name.removesuffix(".json")) for name in sorted(changed)])

    def close(self) -> None:
        """Nothing is held between calls."""


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline_s = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"another process held its lock for {LOCK_WAIT_S:g} s") from None
                time.sleep(_LOCK_RETRY_S)
        yield
    finally:
        os.close(handle)


def _replace(path: Path, content: bytes) -> None:
    # mkstemp gives the file to its owner alone.
    handle, name = tempfile.mkstemp(prefix=_TEMPORARY_PREFIX, suffix=_TEMPORARY_SUFFIX, dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Makes a rename last through a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_leftovers(folder: Path, *, written_s: float) -> None:
    """Removes the temporary files of dead writers; the file just written says what time it is there."""
    for path in folder.glob(f"{_TEMPORARY_PREFIX}*{_TEMPORARY_SUFFIX}"):
        with contextlib.suppress(OSError):
            if written_s - path.stat().st_mtime > LEFTOVER_AGE_S:
                path.unlink(missing_ok=True)


def _stamp(status: os.stat_result) -> _Stamp:
    # The inode tells two renames within one tick of the clock apart.
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def _cause(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__

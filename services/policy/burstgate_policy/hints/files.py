"""Keeps hints in a folder, one JSON file a pairing, named by the key's hash.

A file is always whole: it is written beside its place under a name of its own, flushed to the disk
and renamed. Several processes may share the folder; the last writer of a pairing wins. Without a
folder nothing is remembered.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from burstgate_policy.core.hint import Hint
from burstgate_policy.core.types import PolicyKey
from burstgate_policy.hints.document import HintDocumentError, decode_hint, encode_hint
from burstgate_policy.hints.store import HintLoad, HintStoreError

MAX_HINT_BYTES = 64 * 1024
"""A hint has under 1 KiB; anything far larger is not ours and is not read into memory."""

LEFTOVER_AGE_S = 600.0
"""A temporary file older than this lost its writer: writing one takes milliseconds. Age and not the
writer's process id, because processes of other machines and containers may share the folder."""

_TEMPORARY_PREFIX = ".hint-"
_TEMPORARY_SUFFIX = ".tmp"


class FileHintStore:
    """Hints in a folder; None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, key: PolicyKey) -> HintLoad:
        """The stored hint of a pairing, or why it has none."""
        if self._folder is None:
            return HintLoad(None, "no hint folder is set")
        path = self._folder / f"{key.hash}.json"
        try:
            with path.open("rb") as file:
                content = file.read(MAX_HINT_BYTES + 1)
        except FileNotFoundError:
            return HintLoad(None, f"{path} is missing")
        except (OSError, ValueError) as error:
            return HintLoad(None, f"{path} is unreadable: {_cause(error)}")
        if len(content) > MAX_HINT_BYTES:
            return HintLoad(None, f"{path} is too large: a hint has at most {MAX_HINT_BYTES} bytes")
        try:
            return HintLoad(decode_hint(content, key), None)
        except HintDocumentError as error:
            return HintLoad(None, f"{path} was ignored: {error}")

    def save(self, hint: Hint) -> None:
        """Stores a hint; raises HintStoreError."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._folder / f"{hint.key.hash}.json"
            _replace(path, encode_hint(hint))
            _remove_leftovers(self._folder, written_s=path.stat().st_mtime)
        except (OSError, ValueError) as error:
            raise HintStoreError(
                f"the verdict could not be written to {self._folder} ({_cause(error)}): make the folder "
                "writable for this process, or set another one; the verdict holds until this process ends"
            ) from error


def _replace(path: Path, content: bytes) -> None:
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


def _remove_leftovers(folder: Path, *, written_s: float) -> None:
    """Removes the temporary files of dead writers; the file just written says what time it is there."""
    for path in folder.glob(f"{_TEMPORARY_PREFIX}*{_TEMPORARY_SUFFIX}"):
        with contextlib.suppress(OSError):
            if written_s - path.stat().st_mtime > LEFTOVER_AGE_S:
                path.unlink(missing_ok=True)


def _cause(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__

"""Says which weights a model folder holds, so that two models of one name never share a verdict.

Covers the configuration, and of every safetensors file its name, its size, its header and evenly spread
samples of its contents. It must stay cheap for tens of gigabytes, so it is an identity, not a proof against
tampering.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from burstgate_decode.models.errors import ModelError

_BLOCKS: Final = 64  # with the block size, 4 MiB of reading a file
_BLOCK_BYTES: Final = 64 << 10
_MAX_HEADER_BYTES: Final = 100 << 20  # the format's own limit
_LENGTH_BYTES: Final = 8  # a safetensors file opens with the length of its header


def fingerprint(folder: Path) -> str:
    """16 hex digits for the model in `folder`. Raises `ModelError` if it holds no readable model."""
    try:
        digest = hashlib.sha256(_framed(b"config.json", (folder / "config.json").read_bytes()))
        weights = sorted(folder.glob("*.safetensors"), key=lambda path: path.name)
        for path in weights:
            digest.update(_framed(path.name.encode(), _sample(path)))
    except OSError as error:
        raise ModelError("MODEL_UNREADABLE", f"The model folder {folder} cannot be read: {error}.") from error
    if not weights:
        raise ModelError("MODEL_UNREADABLE", f"The model folder {folder} holds no .safetensors file.")
    return digest.hexdigest()[:16]


def _sample(path: Path) -> bytes:
    size = path.stat().st_size
    digest = hashlib.sha256(size.to_bytes(8, "little"))
    with path.open("rb") as file:
        length = file.read(_LENGTH_BYTES)
        start = min(_LENGTH_BYTES + min(int.from_bytes(length, "little"), _MAX_HEADER_BYTES), size)
        digest.update(length + file.read(max(start - _LENGTH_BYTES, 0)))
        last = max(start, size - _BLOCK_BYTES)
        # Spread from the first block to the last; a small file's blocks overlap and cover all of it.
        for position in sorted({start + (last - start) * i // (_BLOCKS - 1) for i in range(_BLOCKS)}):
            file.seek(position)
            digest.update(file.read(_BLOCK_BYTES))
    return digest.digest()


def _framed(name: bytes, content: bytes) -> bytes:
    """Length-prefixed, so that no name and content can be mistaken for another pair."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in (name, content))

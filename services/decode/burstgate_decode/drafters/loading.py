"""Loads a drafter of whatever kind its configuration names, bound to its target."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from burstgate_decode.drafters.base import Drafter
from burstgate_decode.drafters.mtp_head import KIND as MTP_HEAD
from burstgate_decode.drafters.mtp_head import load_mtp_head
from burstgate_decode.models.errors import ModelError
from burstgate_decode.models.loading import resolve_model
from burstgate_decode.models.target import Target

_KINDS: Mapping[str, Callable[[Path, Target], Drafter]] = MappingProxyType({MTP_HEAD: load_mtp_head})


def find_drafter(reference: str) -> Callable[[Target], Drafter]:
    """Finds the drafter at a folder or hub repository; returns what loads it for its target.

    Both raise `ModelError`: at once for what can be told without a target, which takes long to load, and then when the
    drafter does not fit.
    """
    path = resolve_model(reference)
    try:
        kind = json.loads((path / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError("DRAFTER_CONFIG_INVALID", f"drafter {path}: config.json cannot be read: {error}") from error
    load = _KINDS.get(kind)
    if load is None:
        raise ModelError(
            "DRAFTER_KIND_UNKNOWN",
            f"drafter {path} is of kind {kind!r}; served kinds are {', '.join(_KINDS)}",
        )
    return partial(_load_for, load, path)


def _load_for(load: Callable[[Path, Target], Drafter], path: Path, target: Target) -> Drafter:
    if target.irreversible_caches:
        raise ModelError(
            "CACHE_NOT_REWINDABLE",
            f"target {target.name} keeps caches that cannot be taken back to the tokens before rejected drafts"
            f" ({', '.join(target.irreversible_caches)}); serve it with the drafter none",
        )
    return load(path, target)

"""Damages the default drafter on purpose: a policy must notice one that drafts nothing of use. Imports mlx."""

import os
import shutil
from pathlib import Path
from typing import cast

import mlx.core as mx

from burstgate_decode.models.default_pair import default_models_cache, prepare_default_pair

_SEED = 0


def damaged_drafter(folder: Path) -> Path:
    """A copy of the default drafter in `folder` whose weights are random, of the spread that they had."""
    pair = prepare_default_pair(default_models_cache(os.environ), report=lambda _stage, _share: None)
    copy = folder / "damaged-drafter"
    shutil.copytree(pair.drafter, copy)
    path = str(copy / "model.safetensors")
    key = mx.random.key(_SEED)
    weights = cast("dict[str, mx.array]", mx.load(path))
    damaged: dict[str, mx.array] = {}
    for name, weight in sorted(weights.items()):
        key, own = mx.random.split(key)
        damaged[name] = _noise_like(weight, own) if mx.issubdtype(weight.dtype, mx.floating) else weight
    mx.eval(list(damaged.values()))
    mx.save_safetensors(path, damaged)
    return copy


def _noise_like(weight: mx.array, key: mx.array) -> mx.array:
    values = weight.astype(mx.float32)
    noise = mx.random.normal(weight.shape, key=key)
    return (values.mean() + mx.sqrt(values.var()) * noise).astype(weight.dtype)

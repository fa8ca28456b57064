"""Loads a target from a local folder or a hub repository, through mlx-lm's own loader.

Every way this can go wrong ends in one typed `ModelError` that names the model and says what to do.
"""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from mlx.utils import tree_flatten
from mlx_lm.utils import load as load_with_mlx_lm

from burstgate_decode.models.cpu_attention import use_cpu_attention
from burstgate_decode.models.errors import ModelError
from burstgate_decode.models.fingerprint import fingerprint
from burstgate_decode.models.lean_layers import use_lean_layers
from burstgate_decode.models.table_rope import use_table_ropes
from burstgate_decode.models.target import Target, irreversible_caches, packs_rows, split_model, takes_ragged_cache

# What a model folder is read for; the same as mlx-lm fetches.
_HUB_PATTERNS = ["*.json", "model*.safetensors", "*.py", "tokenizer.model", "*.tiktoken", "*.txt", "*.jinja"]
# For models whose configuration names no limit.
_CONTEXT_WHEN_UNSTATED = 8192


def load_target(reference: str) -> Target:
    """Loads the target at a folder or hub repository. Raises `ModelError`."""
    path = resolve_model(reference)
    try:
        model, tokenizer, config = load_with_mlx_lm(str(path), return_config=True)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, json.JSONDecodeError) as error:
        raise ModelError("TARGET_UNLOADABLE", f"target {reference} cannot be loaded: {error}") from error
    text_config = {**config, **config.get("text_config", {})}
    vocab_size = int(text_config.get("vocab_size") or len(tokenizer))
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    if on_cpu:
        use_table_ropes(model, vocab_size)
        use_cpu_attention(model, vocab_size)
        use_lean_layers(model, vocab_size)
    shares_forwards = takes_ragged_cache(model, vocab_size)
    return Target(
        model=model,
        tokenizer=tokenizer,
        name=path.name if Path(reference).exists() else reference,
        path=path,
        fingerprint=fingerprint(path),
        model_type=str(config.get("model_type", "")),
        dtype=_dtype_label(model, config),
        vocab_size=vocab_size,
        context_length=int(text_config.get("max_position_embeddings") or _CONTEXT_WHEN_UNSTATED),
        eos_token_ids=frozenset(int(token) for token in tokenizer.eos_token_ids),
        has_chat_template=bool(tokenizer.has_chat_template),
        split=split_model(model, vocab_size),
        shares_forwards=shares_forwards,
        irreversible_caches=() if shares_forwards else irreversible_caches(model, vocab_size),
        # On GPUs a few positions more cost less than laying them out.
        packs_rows=on_cpu and shares_forwards and packs_rows(model, vocab_size),
    )


def resolve_model(reference: str) -> Path:
    """The local folder of a model, fetched from the hub when it is not a path. Raises `ModelError`."""
    path = Path(reference).expanduser()
    if path.exists():
        if not (path / "config.json").is_file():
            raise ModelError("MODEL_FOLDER_INVALID", f"{path} holds no config.json, so it is not a model folder")
        return path
    if reference.startswith((".", "/", "~")) or reference.count("/") != 1:
        raise ModelError("MODEL_NOT_FOUND", f"{reference} is neither a folder nor a hub repository like owner/name")
    try:
        return Path(snapshot_download(reference, allow_patterns=_HUB_PATTERNS))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            "MODEL_UNAVAILABLE", f"{reference} cannot be fetched from the hub and is not cached: {error}"
        ) from error


def _dtype_label(model: nn.Module, config: dict[str, Any]) -> str:
    quantization = config.get("quantization")
    if isinstance(quantization, dict) and "bits" in quantization:
        return f"{quantization['bits']}bit-g{quantization.get('group_size', 0)}"
    for _, parameter in tree_flatten(model.parameters()):
        if isinstance(parameter, mx.array) and parameter.ndim == 2:
            return str(parameter.dtype).removeprefix("mlx.core.")
    return "unknown"

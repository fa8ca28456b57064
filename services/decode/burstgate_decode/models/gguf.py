"""Turns a Llama GGUF file into an ordinary MLX model folder in float32, tokenizer and chat template included.

What it writes loads through `mlx_lm.load` like any other model. Everything is taken from the file's own
metadata; a file it does not understand is refused, never guessed at. It must not know which model the file
holds, nor where the folder goes in the end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from burstgate_decode.models.errors import ModelError

_GROUP_SIZE: Final = 32  # of every quantised GGUF kind that mx.load reads
_CONTROL_TOKEN: Final = 3  # the GGUF token types that must never be split or merged
_USER_TOKEN: Final = 4
_PARTS: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write the model in `gguf` into `folder`, which exists and is empty.

    Raises `ModelError` for a file that is not understood, `OSError` when the folder cannot be written.
    """
    arrays, metadata = _read(gguf)
    values = _Metadata(gguf, metadata)
    values.require("general.architecture", "llama")
    weights = _weights(gguf, arrays)
    config = _config(values, tied="lm_head.weight" not in weights)
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    _tokenizer(values).save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(values))
    try:
        mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    except RuntimeError as error:
        raise OSError(f"the weights could not be written to {folder}: {error}") from error


def _read(gguf: Path) -> tuple[dict[str, mx.array], dict[str, Any]]:
    with gguf.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError("GGUF_INVALID", f"{gguf} is not a GGUF file; fetch it again.")
    try:
        loaded: Any = mx.load(str(gguf), format="gguf", return_metadata=True)
    except (RuntimeError, ValueError) as error:
        raise ModelError("GGUF_INVALID", f"{gguf} cannot be read ({error}); fetch it again.") from error
    arrays, metadata = loaded
    return arrays, metadata


class _Metadata:
    """The file's key-value pairs; a missing or unexpected one is a typed error that names it."""

    def __init__(self, gguf: Path, values: Mapping[str, Any]) -> None:
        self._gguf = gguf
        self._values = values

    def get(self, key: str) -> Any:
        value = self._values.get(key)
        return value.item() if isinstance(value, mx.array) and value.size == 1 else value

    def number(self, key: str) -> float:
        value = self.get(key)
        if not isinstance(value, int | float):
            raise ModelError("GGUF_UNSUPPORTED", f"{self._gguf} has no number for {key}.")
        return value

    def count(self, key: str) -> int:
        return int(self.number(key))

    def strings(self, key: str) -> list[str]:
        value = self.get(key)
        if not isinstance(value, list) or not value:
            raise ModelError("GGUF_UNSUPPORTED", f"{self._gguf} has no list for {key}.")
        return value

    def numbers(self, key: str, length: int) -> list[int]:
        value = self.get(key)
        if not isinstance(value, mx.array) or value.shape != (length,):
            raise ModelError("GGUF_UNSUPPORTED", f"{self._gguf} has no {length} numbers for {key}.")
        numbers: Any = value.tolist()
        return [int(number) for number in numbers]

    def token(self, key: str) -> str:
        """The token that `key` gives the number of."""
        tokens, number = self.strings("tokenizer.ggml.tokens"), self.count(key)
        if number >= len(tokens):
            raise ModelError("GGUF_UNSUPPORTED", f"{self._gguf} has {key} {number}, which is no token.")
        return tokens[number]

    def require(self, key: str, expected: object) -> None:
        value = self.get(key)
        if value != expected:
            raise ModelError("GGUF_UNSUPPORTED", f"{self._gguf} has {key} {value!r}; only {expected!r} is read.")


def _weights(gguf: Path, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    weights = {}
    for name, stored in arrays.items():
        stem, _, kind = name.rpartition(".")
        if kind != "weight":
            continue
        values = stored
        if stored.dtype == mx.uint32:
            scales, biases = arrays[f"{stem}.scales"], arrays[f"{stem}.biases"]
            values = mx.dequantize(
                stored,
                scales.astype(mx.float32),
                biases.astype(mx.float32),
                group_size=_GROUP_SIZE,
                bits=stored.shape[-1] // scales.shape[-1],
            )
        weights[f"{_mlx_name(gguf, stem)}.weight"] = values.astype(mx.float32)
    return weights


def _mlx_name(gguf: Path, stem: str) -> str:
    if stem in _OUTER:
        return _OUTER[stem]
    block, _, part = stem.removeprefix("blk.").partition(".")
    if stem.startswith("blk.") and block.isdecimal() and part in _PARTS:
        return f"model.layers.{block}.{_PARTS[part]}"
    raise ModelError("GGUF_UNSUPPORTED", f"{gguf} holds a weight {stem} that a plain Llama model has no place for.")


def _config(values: _Metadata, *, tied: bool) -> dict[str, Any]:
    hidden, heads = values.count("llama.embedding_length"), values.count("llama.attention.head_count")
    values.require("llama.rope.dimension_count", hidden // heads)
    values.require("llama.rope.scaling.type", None)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": values.count("llama.block_count"),
        "intermediate_size": values.count("llama.feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": values.count("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        # Stored in 32 bits: the decimal that was meant has few digits.
        "rms_norm_eps": float(f"{values.number('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": values.number("llama.rope.freq_base"),
        # GGUF stores the rows of q and k for interleaved rotation.
        "rope_traditional": True,
        "max_position_embeddings": values.count("llama.context_length"),
        "vocab_size": values.count("llama.vocab_size"),
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": values.count("tokenizer.ggml.bos_token_id"),
        "eos_token_id": values.count("tokenizer.ggml.eos_token_id"),
        "pad_token_id": values.count("tokenizer.ggml.padding_token_id"),
    }


def _tokenizer(values: _Metadata) -> Tokenizer:
    values.require("tokenizer.ggml.model", "gpt2")
    values.require("tokenizer.ggml.pre", "smollm")
    values.require("tokenizer.ggml.add_bos_token", expected=False)
    tokens = values.strings("tokenizer.ggml.tokens")
    pairs = (merge.partition(" ") for merge in values.strings("tokenizer.ggml.merges"))
    merges = [(left, right) for left, _, right in pairs]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = values.numbers("tokenizer.ggml.token_type", len(tokens))
    for kind, special in ((_CONTROL_TOKEN, True), (_USER_TOKEN, False)):
        added = [
            AddedToken(token, special=special, normalized=False)
            for token, of_kind in zip(tokens, types, strict=True)
            if of_kind == kind
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    return tokenizer


def _tokenizer_config(values: _Metadata) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": values.token("tokenizer.ggml.bos_token_id"),
        "eos_token": values.token("tokenizer.ggml.eos_token_id"),
        "pad_token": values.token("tokenizer.ggml.padding_token_id"),
        "unk_token": values.token("tokenizer.ggml.unknown_token_id"),
        "chat_template": values.get("tokenizer.chat_template"),
        "model_max_length": values.count("llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

"""A GGUF file becomes the same model, or is refused with the reason; real small files, written by MLX."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tokenizers import Tokenizer

from burstgate_decode.models.errors import ModelError
from burstgate_decode.models.gguf import convert_gguf

TOKENS = ["<s>", "<e>", "<u>", "a", "b", "c", "1", "2", "Ġ", "ab"]


def metadata(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.embedding_length": mx.array(32),
        "llama.block_count": mx.array(1),
        "llama.feed_forward_length": mx.array(64),
        "llama.attention.head_count": mx.array(4),
        "llama.attention.head_count_kv": mx.array(2),
        "llama.rope.dimension_count": mx.array(8),
        "llama.rope.freq_base": mx.array(5000.0),
        "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5),
        "llama.context_length": mx.array(128),
        "llama.vocab_size": mx.array(len(TOKENS)),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.add_bos_token": mx.array(False),
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.token_type": mx.array([3, 3, 4, 1, 1, 1, 1, 1, 1, 1], dtype=mx.int32),
        "tokenizer.ggml.bos_token_id": mx.array(0),
        "tokenizer.ggml.eos_token_id": mx.array(1),
        "tokenizer.ggml.padding_token_id": mx.array(1),
        "tokenizer.ggml.unknown_token_id": mx.array(2),
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }
    values.update({key.replace("__", "."): value for key, value in changes.items()})
    return {key: value for key, value in values.items() if value is not None}


def weights() -> dict[str, mx.array]:
    shapes = {
        "token_embd": (10, 32),
        "output_norm": (32,),
        "blk.0.attn_norm": (32,),
        "blk.0.attn_q": (32, 32),
        "blk.0.attn_k": (16, 32),
        "blk.0.attn_v": (16, 32),
        "blk.0.attn_output": (32, 32),
        "blk.0.ffn_norm": (32,),
        "blk.0.ffn_gate": (64, 32),
        "blk.0.ffn_up": (64, 32),
        "blk.0.ffn_down": (32, 64),
    }
    return {f"{name}.weight": mx.random.normal(shape).astype(mx.float16) for name, shape in shapes.items()}


def convert(tmp_path: Path, arrays: dict[str, mx.array], values: dict[str, Any]) -> Path:
    mx.save_gguf(str(tmp_path / "tiny.gguf"), arrays, values)
    folder = tmp_path / "folder"
    folder.mkdir()
    convert_gguf(tmp_path / "tiny.gguf", folder)
    return folder


def test_every_weight_keeps_its_values_under_the_name_mlx_lm_has_for_it(tmp_path: Path) -> None:
    arrays = weights()
    written: Any = mx.load(str(convert(tmp_path, arrays, metadata()) / "model.safetensors"))
    assert len(written) == len(arrays)
    assert {array.dtype for array in written.values()} == {mx.float32}
    query = written["model.layers.0.self_attn.q_proj.weight"]
    assert mx.array_equal(query, arrays["blk.0.attn_q.weight"].astype(mx.float32))


def test_the_configuration_comes_from_the_file(tmp_path: Path) -> None:
    config = json.loads((convert(tmp_path, weights(), metadata()) / "config.json").read_text())
    assert config["rope_theta"] == 5000.0
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_traditional"] is True
    assert config["tie_word_embeddings"] is True
    assert (config["bos_token_id"], config["eos_token_id"]) == (0, 1)


def test_an_output_matrix_of_its_own_is_kept(tmp_path: Path) -> None:
    arrays = weights() | {"output.weight": mx.random.normal((10, 32)).astype(mx.float16)}
    folder = convert(tmp_path, arrays, metadata())
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False
    assert "lm_head.weight" in mx.load(str(folder / "model.safetensors"))


def test_the_tokenizer_merges_splits_digits_and_keeps_special_tokens_whole(tmp_path: Path) -> None:
    folder = convert(tmp_path, weights(), metadata())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("abc12<e>").tokens == ["ab", "c", "1", "2", "<e>"]
    assert tokenizer.decode([9, 5, 1], skip_special_tokens=True) == "abc"
    assert tokenizer.decode([9, 2], skip_special_tokens=True) == "ab<u>"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"general__architecture": "mamba"}, "general.architecture"),
        ({"llama__block_count": None}, "llama.block_count"),
        ({"llama__rope__dimension_count": mx.array(4)}, "llama.rope.dimension_count"),
        ({"llama__rope__scaling__type": "yarn"}, "llama.rope.scaling.type"),
        ({"tokenizer__ggml__model": "llama"}, "tokenizer.ggml.model"),
        ({"tokenizer__ggml__pre": "qwen2"}, "tokenizer.ggml.pre"),
        ({"tokenizer__ggml__add_bos_token": mx.array(True)}, "tokenizer.ggml.add_bos_token"),
        ({"tokenizer__ggml__merges": None}, "tokenizer.ggml.merges"),
        ({"tokenizer__ggml__token_type": None}, "tokenizer.ggml.token_type"),
        ({"tokenizer__ggml__eos_token_id": mx.array(99)}, "tokenizer.ggml.eos_token_id"),
    ],
)
def test_what_the_converter_does_not_understand_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError, match=named) as refused:
        convert(tmp_path, weights(), metadata(**changes))
    assert refused.value.reason == "GGUF_UNSUPPORTED"


def test_a_weight_without_a_place_in_the_model_is_refused(tmp_path: Path) -> None:
    arrays = weights() | {"blk.0.ffn_gate_exps.weight": mx.zeros((32, 32), dtype=mx.float16)}
    with pytest.raises(ModelError, match="ffn_gate_exps"):
        convert(tmp_path, arrays, metadata())


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"nothing of the kind")
    with pytest.raises(ModelError, match=r"x\.gguf") as refused:
        convert_gguf(tmp_path / "x.gguf", tmp_path)
    assert refused.value.reason == "GGUF_INVALID"

"""Tiny random models of mlx-lm's own classes, one for each shape of cache. Their text means nothing, but it varies."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.models import (
    falcon_h1,
    gemma3_text,
    gemma3n,
    gpt_oss,
    lfm2,
    llama,
    llama4,
    mamba2,
    qwen3_next,
    recurrent_gemma,
)
from mlx_lm.models.cache import QuantizedKVCache

from burstgate_decode.models.sequence_cache import SequenceCache
from burstgate_decode.models.target import Target, irreversible_caches, split_model, takes_ragged_cache

VOCAB = 97
WINDOW = 16


def _sliding() -> nn.Module:
    return gemma3_text.Model(
        gemma3_text.ModelArgs(
            "gemma3_text", hidden_size=32, num_hidden_layers=3, intermediate_size=48, head_dim=8, vocab_size=VOCAB,
            num_key_value_heads=2, query_pre_attn_scalar=8, sliding_window=WINDOW, sliding_window_pattern=3,
        )
    )  # fmt: skip


def _sliding_experts() -> nn.Module:
    return gpt_oss.Model(
        gpt_oss.ModelArgs(
            num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2, vocab_size=VOCAB, hidden_size=32,
            intermediate_size=32, head_dim=8, num_attention_heads=4, num_key_value_heads=2, sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention"],
        )
    )  # fmt: skip


def _shared() -> nn.Module:
    text = {
        "model_type": "gemma3n", "hidden_size": 32, "num_hidden_layers": 6, "intermediate_size": 48,
        "num_attention_heads": 4, "head_dim": 8, "rms_norm_eps": 1e-6, "vocab_size": VOCAB, "num_key_value_heads": 2,
        "num_kv_shared_layers": 2, "vocab_size_per_layer_input": VOCAB, "sliding_window": WINDOW,
        "max_position_embeddings": 512, "rope_local_base_freq": 1e4, "rope_theta": 1e6, "final_logit_softcapping": 30.0,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0, 0.0, 0.0], "hidden_size_per_layer_input": 8,
        "altup_num_inputs": 2, "altup_coef_clip": 120.0, "altup_correct_scale": True, "altup_active_idx": 0,
        "laurel_rank": 4,
    }  # fmt: skip
    return gemma3n.Model(gemma3n.ModelArgs("gemma3n", text))


def _chunked() -> nn.Module:
    text = {
        "attention_bias": False, "attention_chunk_size": WINDOW, "head_dim": 8, "hidden_size": 32,
        "interleave_moe_layer_step": 2, "intermediate_size": 32, "intermediate_size_mlp": 48,
        "max_position_embeddings": 512, "model_type": "llama4_text", "num_attention_heads": 4, "num_experts_per_tok": 1,
        "num_hidden_layers": 4, "num_key_value_heads": 2, "num_local_experts": 2, "rms_norm_eps": 1e-5,
        "rope_scaling": None, "rope_theta": 1e4, "use_qk_norm": False, "vocab_size": VOCAB,
    }  # fmt: skip
    return llama4.Model(llama4.ModelArgs(text, "llama4"))


class _QuantizedLlama(llama.Model):  # type: ignore[misc]
    def make_cache(self) -> list[QuantizedKVCache]:
        return [QuantizedKVCache(group_size=32, bits=8) for _ in self.layers]


def _quantized() -> nn.Module:
    return _QuantizedLlama(llama.ModelArgs("llama", 64, 2, 64, 2, 1e-5, VOCAB, num_key_value_heads=2, head_dim=32))


def _recurrent() -> nn.Module:
    return mamba2.Model(
        mamba2.ModelArgs(
            "mamba2", num_heads=4, head_dim=8, vocab_size=VOCAB, hidden_size=16, intermediate_size=32, state_size=8,
            num_hidden_layers=2, layer_norm_epsilon=1e-5, conv_kernel=4, n_groups=1, use_bias=False, use_conv_bias=True,
            tie_word_embeddings=False, time_step_limit=(0.0, float("inf")), time_step_rank="auto",
        )
    )  # fmt: skip


def _recurrent_sliding() -> nn.Module:
    return recurrent_gemma.Model(
        recurrent_gemma.ModelArgs(
            "recurrent_gemma", attention_bias=False, conv1d_width=4, hidden_size=32, intermediate_size=96,
            logits_soft_cap=30.0, num_attention_heads=4, num_hidden_layers=3, num_key_value_heads=1, rms_norm_eps=1e-6,
            rope_theta=1e4, attention_window_size=WINDOW, vocab_size=VOCAB,
            block_types=["recurrent", "recurrent", "attention"],
        )
    )  # fmt: skip


def _convolutions() -> nn.Module:
    return lfm2.Model(
        lfm2.ModelArgs(
            "lfm2", vocab_size=VOCAB, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, norm_eps=1e-5, conv_bias=False, conv_L_cache=3, block_dim=32,
            block_multiple_of=8, block_ffn_dim_multiplier=1.0, block_auto_adjust_ff_dim=False, block_ff_dim=48,
            full_attn_idxs=[1],
        )
    )  # fmt: skip


def _linear_attention() -> nn.Module:
    return qwen3_next.Model(
        qwen3_next.ModelArgs(
            "qwen3_next", hidden_size=32, num_hidden_layers=4, intermediate_size=48, num_attention_heads=4,
            linear_num_value_heads=2, linear_num_key_heads=2, linear_key_head_dim=32, linear_value_head_dim=8,
            linear_conv_kernel_dim=4, num_experts=0, num_experts_per_tok=1, decoder_sparse_step=1,
            shared_expert_intermediate_size=16, mlp_only_layers=[], moe_intermediate_size=16, rms_norm_eps=1e-5,
            vocab_size=VOCAB, num_key_value_heads=2, rope_theta=1e4, partial_rotary_factor=0.5,
            max_position_embeddings=512, head_dim=8,
        )
    )  # fmt: skip


def _lists() -> nn.Module:
    return falcon_h1.Model(
        falcon_h1.ModelArgs(
            head_dim=8, hidden_size=32, intermediate_size=48, mamba_d_head=8, mamba_d_ssm=32, mamba_d_state=8,
            mamba_n_heads=4, num_attention_heads=4, num_hidden_layers=2, num_key_value_heads=2, vocab_size=VOCAB,
            max_position_embeddings=512, rope_theta=1e4,
        )
    )  # fmt: skip


SHAPES: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {
        "sliding": _sliding,
        "sliding_experts": _sliding_experts,
        "shared": _shared,
        "chunked": _chunked,
        "quantized": _quantized,
        "recurrent": _recurrent,
        "recurrent_sliding": _recurrent_sliding,
        "convolutions": _convolutions,
        "linear_attention": _linear_attention,
        "lists": _lists,
    }
)


def make_model(shape: str) -> nn.Module:
    """A model whose greedy text varies."""
    mx.random.seed(5)
    model = SHAPES[shape]()
    if shape != "shared":
        # Larger than at random initialisation, so that layers move the embedding they are given.
        model.update(tree_map(lambda weight: 4 * weight if weight.ndim > 1 else weight, model.parameters()))
    mx.eval(model.parameters())
    return model


def read(model: nn.Module, sequence: SequenceCache, tokens: Sequence[int]) -> mx.array:
    """Runs tokens and returns the logits `[L, V]`."""
    logits: mx.array = sequence.run(lambda inputs, cache: model(inputs, cache=cache), mx.array([tokens]))[0]
    mx.eval(logits, sequence.arrays())
    return logits


def make_target(model: nn.Module, tokenizer: Any = None) -> Target:
    shares_forwards = takes_ragged_cache(model, VOCAB)
    return Target(
        model, tokenizer, "tiny", Path(), "tiny", "tiny", "float32", VOCAB, 512, frozenset(), False,
        split_model(model, VOCAB), shares_forwards,
        () if shares_forwards else irreversible_caches(model, VOCAB),
    )  # fmt: skip

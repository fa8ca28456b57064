"""The `mtp_head` drafter: one Llama block over the pair (input embedding, hidden state).

Slot t takes the target's hidden state at position t (after its final norm) and the embedding of token
t + 1, and predicts token t + 2. Going one deeper feeds the slot's own output and the token just drafted.
The block has its own KV cache and a head over a reduced vocabulary, tied to the target's embedding.
"""

import json
from pathlib import Path
from typing import Any, Literal, cast

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache
from mlx_lm.models.llama import ModelArgs, TransformerBlock
from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, ValidationError

from burstgate_decode.drafters.base import Drafter, DraftState, GoesOn, Pick
from burstgate_decode.models.arrays import as_int
from burstgate_decode.models.errors import ModelError
from burstgate_decode.models.fingerprint import fingerprint
from burstgate_decode.models.target import Split, Target, linear_shapes

KIND = "mtp_head"
# Beyond this the accepted length of a one-block head no longer grows.
_MAX_DRAFT_WIDTH = 8
# Committed positions are folded into the drafter's cache in pieces of at most this many, so that a long
# plain stretch holds neither hidden states nor unevaluated work without bound.
_CATCH_UP_TOKENS = 256


class MtpHeadConfig(BaseModel):
    """The drafter's `config.json`."""

    model_config = ConfigDict(frozen=True)

    model_type: Literal["mtp_head"]
    hidden_size: PositiveInt
    num_hidden_layers: Literal[1]
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    intermediate_size: PositiveInt
    rms_norm_eps: PositiveFloat
    rope_theta: PositiveFloat
    rope_traditional: bool
    target_vocab_size: PositiveInt
    draft_vocab_size: PositiveInt
    hidden_state: Literal["post_norm"]
    fc_input_order: tuple[Literal["embedding"], Literal["hidden"]]
    tie_draft_head_to_target_embedding: Literal[True]


def load_mtp_head(path: Path, target: Target) -> Drafter:
    """Loads the drafter in a folder and binds it to its target. Raises `ModelError` when it does not fit."""
    config = _read_config(path)
    split = _check_fit(path, config, target)
    block = MtpHead(config)
    try:
        weights = cast("dict[str, mx.array]", mx.load(str(path / "model.safetensors")))
        ids = weights.pop("draft_token_ids")
        block.load_weights(list(weights.items()))
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        raise ModelError("DRAFTER_UNLOADABLE", f"drafter {path} cannot be loaded: {error}") from error
    if ids.shape != (config.draft_vocab_size,) or as_int(ids.max()) >= target.vocab_size:
        raise ModelError("DRAFTER_MISMATCH", f"drafter {path}: draft_token_ids do not index the target's vocabulary")
    table = split.embedding_table()[ids]
    block.set_dtype(table.dtype)
    mx.eval(block.parameters(), table, ids)
    return _MtpDrafter(path, block, split, table, ids)


class MtpHead(nn.Module):  # type: ignore[misc]
    """The block's layers, named as its weights."""

    def __init__(self, config: MtpHeadConfig) -> None:
        """Builds uninitialised layers of the configured sizes."""
        super().__init__()
        size = config.hidden_size
        self.pre_fc_norm_embedding = nn.RMSNorm(size, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = nn.RMSNorm(size, eps=config.rms_norm_eps)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layers = [TransformerBlock(_block_args(config))]
        self.norm = nn.RMSNorm(size, eps=config.rms_norm_eps)

    def __call__(self, embedding: mx.array, hidden: mx.array, cache: KVCache) -> mx.array:
        """Maps `embedding [1, L, D]` and `hidden [1, L, D]` to the slots' outputs `[1, L, D]`."""
        pair = mx.concatenate([self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)], axis=-1)
        mask = None if pair.shape[1] == 1 else "causal"
        output: mx.array = self.norm(self.layers[0](self.fc(pair), mask, cache))
        return output


class _MtpDrafter:
    """Implements `Drafter`."""

    def __init__(self, path: Path, block: MtpHead, split: Split, table: mx.array, ids: mx.array) -> None:
        self.kind = KIND
        self.name = path.name
        self.fingerprint = fingerprint(path)
        self.max_draft_width = _MAX_DRAFT_WIDTH
        self.product_shapes = [*linear_shapes(block), (table.shape[0], table.shape[1])]
        self.block = block
        self.embed = split.embed
        self.table = table
        self.ids = ids

    def open(self) -> DraftState:
        return _MtpState(self)


class _MtpState:
    """Implements `DraftState`: slots folded into the block's cache, and committed positions not folded yet."""

    def __init__(self, drafter: _MtpDrafter) -> None:
        self._drafter = drafter
        self._cache = KVCache()
        self._hidden: list[mx.array] = []
        self._tokens: list[mx.array] = []
        self._waiting = 0

    def observe(self, hidden: mx.array, next_tokens: mx.array) -> None:
        self._hidden.append(hidden)
        self._tokens.append(next_tokens)
        self._waiting += hidden.shape[1]
        if self._waiting >= _CATCH_UP_TOKENS:
            # The last position stays behind: `draft` needs its output.
            self._fold(self._waiting - 1)
            mx.async_eval(self._cache.state[:2])

    def draft(self, count: int, position: int, pick: Pick, goes_on: GoesOn | None = None) -> mx.array:
        output = self._fold(self._waiting)[:, -1:]
        drafter = self._drafter
        committed = self._cache.offset
        drafts: list[mx.array] = []
        try:
            for depth in range(count):
                token = pick(output[:, 0] @ drafter.table.T, drafter.ids, position + depth)
                drafts.append(token)
                if (goes_on is not None and not goes_on()) or depth + 1 == count:
                    break
                output = drafter.block(drafter.embed(token[:, None]), output, self._cache)
        finally:
            self._cache.trim(self._cache.offset - committed)
        return mx.concatenate(drafts)

    def _fold(self, count: int) -> mx.array:
        hidden, tokens = self._waiting_arrays()
        output = self._drafter.block(self._drafter.embed(tokens[:, :count]), hidden[:, :count], self._cache)
        self._hold(hidden[:, count:], tokens[:, count:])
        return output

    def _waiting_arrays(self) -> tuple[mx.array, mx.array]:
        if not self._waiting:
            raise RuntimeError("the drafter has observed no position yet")
        if len(self._hidden) == 1:
            return self._hidden[0], self._tokens[0]
        return mx.concatenate(self._hidden, axis=1), mx.concatenate(self._tokens, axis=1)

    def _hold(self, hidden: mx.array, tokens: mx.array) -> None:
        self._waiting = hidden.shape[1]
        self._hidden = [hidden] if self._waiting else []
        self._tokens = [tokens] if self._waiting else []


def _block_args(config: MtpHeadConfig) -> ModelArgs:
    return ModelArgs(
        model_type="llama",
        hidden_size=config.hidden_size,
        num_hidden_layers=1,
        intermediate_size=config.intermediate_size,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.rms_norm_eps,
        vocab_size=config.target_vocab_size,
        rope_theta=config.rope_theta,
        rope_traditional=config.rope_traditional,
    )


def _read_config(path: Path) -> MtpHeadConfig:
    try:
        raw: Any = json.loads((path / "config.json").read_text(encoding="utf-8"))
        return MtpHeadConfig.model_validate(raw)
    except (OSError, ValueError, ValidationError) as error:
        raise ModelError("DRAFTER_CONFIG_INVALID", f"drafter {path}: {error}") from error


def _check_fit(path: Path, config: MtpHeadConfig, target: Target) -> Split:
    if target.split is None:
        raise ModelError(
            "DRAFTER_MISMATCH",
            f"drafter {path} reads the target's hidden states, which {target.model_type} models do not expose",
        )
    hidden_size = target.split.embedding_table().shape[-1]
    if config.hidden_size != hidden_size:
        raise ModelError(
            "DRAFTER_MISMATCH",
            f"drafter {path} was made for hidden size {config.hidden_size}; target {target.name} has {hidden_size}",
        )
    if config.target_vocab_size != target.vocab_size:
        raise ModelError(
            "DRAFTER_MISMATCH",
            f"drafter {path} was made for a vocabulary of {config.target_vocab_size};"
            f" target {target.name} has {target.vocab_size}",
        )
    return target.split

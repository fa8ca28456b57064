"""The `mtp_head` drafter: one Llama block over the pair (input embedding, hidden state).

Slot t takes the target's hidden state at position t (after its final norm) and the embedding of token
t + 1, and predicts token t + 2. Going one deeper feeds the slot's own output and the token just drafted.
The block has its own KV cache and a head over a reduced vocabulary, tied to the target's embedding. All rows
of a batch are drafted for in one forward a depth.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.llama import ModelArgs, TransformerBlock
from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, ValidationError

from burstgate_decode.drafters.base import DraftBatch, Drafter, GoesOn, Kept, Pick
from burstgate_decode.drafters.waiting import WaitingPositions, padded_positions
from burstgate_decode.models.arrays import as_int, ints
from burstgate_decode.models.errors import ModelError
from burstgate_decode.models.fingerprint import fingerprint
from burstgate_decode.models.kv_span import KvSpan
from burstgate_decode.models.lean_layers import make_layers_lean
from burstgate_decode.models.ragged_cache import RaggedCache
from burstgate_decode.models.table_rope import share_rope_tables
from burstgate_decode.models.target import Split, Target

KIND = "mtp_head"
# Beyond this the accepted length of a one-block head no longer grows.
_MAX_DRAFT_WIDTH = 8
# Committed positions are folded into the drafter's cache when so many wait, so that a long plain stretch holds
# neither hidden states nor unevaluated work without bound, and the first round after it has little to catch up.
_CATCH_UP_TOKENS = 64
# So many positions cost the block little more than one does, since its weights are read once; of more, only the
# newest go through all of it.
_TOGETHER_POSITIONS = 4


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
    if mx.default_device() == mx.Device(mx.cpu):
        share_rope_tables(block)
        make_layers_lean(block)
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

    def __call__(self, embedding: mx.array, hidden: mx.array, cache: Any) -> mx.array:
        """Maps `embedding [B, L, D]` and `hidden [B, L, D]` to the slots' outputs `[B, L, D]`.

        `cache` is one layer's, as mlx-lm's attention takes it.
        """
        pair = mx.concatenate([self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)], axis=-1)
        output: mx.array = self.norm(self.layers[0](self.fc(pair), create_attention_mask(pair, cache), cache))
        return output


class _MtpDrafter:
    """Implements `Drafter`."""

    def __init__(self, path: Path, block: MtpHead, split: Split, table: mx.array, ids: mx.array) -> None:
        self.kind = KIND
        self.name = path.name
        self.fingerprint = fingerprint(path)
        self.max_draft_width = _MAX_DRAFT_WIDTH
        attention = block.layers[0].self_attn
        self.cache_token_bytes = (
            attention.k_proj.weight.shape[0] + attention.v_proj.weight.shape[0]
        ) * attention.k_proj.weight.dtype.size
        self.block = block
        self.embed = split.embed
        self.table = table
        self.ids = ids

    def open_batch(self) -> DraftBatch:
        return _MtpBatch(self)


@dataclass(frozen=True)
class _Ahead:
    """The first draft behind a forward, computed before it was known what of the forward is kept."""

    hidden: mx.array
    """The forward's, `[B, L, D]`."""
    lengths: list[int]
    """Of the slots, in front of the forward's positions."""
    newest: mx.array
    """Which position of each row was taken for the last one kept, `[B]`."""
    output: mx.array
    """The block's at that position, `[B, 1, D]`."""
    logits: mx.array
    """`[B, V']`."""


class _MtpBatch:
    """Implements `DraftBatch`, `DraftsAhead` and `CopiesSlots`.

    Of each slot it has what was folded into the block's cache, and positions that were not yet.
    """

    def __init__(self, drafter: _MtpDrafter) -> None:
        self._drafter = drafter
        self._cache = RaggedCache(layers=1)
        self._waiting: list[WaitingPositions] = []
        self._ahead: _Ahead | None = None

    def open(self) -> int:
        self._waiting.append(WaitingPositions())
        return self._cache.open()

    def swap(self, one: int, other: int) -> None:
        self._ahead = None
        self._cache.swap(one, other)
        self._waiting[one], self._waiting[other] = self._waiting[other], self._waiting[one]

    def close_last(self) -> None:
        self._ahead = None
        self._cache.close_last()
        self._waiting.pop()

    def observe(self, hidden: mx.array, next_tokens: mx.array, kept: Sequence[Kept]) -> None:
        for slot, row, count in kept:
            self._waiting[slot].add(hidden, next_tokens, row, count)
        slots = [slot for slot, _, _ in kept]
        if any(self._waiting[slot].total >= _CATCH_UP_TOKENS for slot in slots):
            # The last position stays behind: `draft` needs its output.
            first, last = min(slots), max(slots)
            self._fold(first, [max(0, waiting.total - 1) for waiting in self._waiting[first : last + 1]])
            mx.async_eval(self._cache.arrays())

    def draft_ahead(self, hidden: mx.array, next_tokens: mx.array, newest: mx.array) -> None:
        rows = len(hidden)
        if any(waiting.total for waiting in self._waiting[:rows]):
            return
        # All positions, kept or not: entries behind those that are kept are written anew, as any behind a slot's end.
        output = mx.take_along_axis(self._run(0, hidden, next_tokens), newest[:, None, None], axis=1)
        logits = self._logits(output)
        mx.async_eval(output, logits)
        self._ahead = _Ahead(hidden, list(self._cache.lengths[:rows]), newest, output, logits)

    def draft(self, rows: int, count: int, pick: Pick, goes_on: GoesOn | None = None) -> mx.array:
        drafter = self._drafter
        output, logits = self._begun_ahead(rows) or (self._newest_output(rows), None)
        committed = list(self._cache.lengths[:rows])
        drafts: list[mx.array] = []
        try:
            for depth in range(count):
                token = pick(self._logits(output) if logits is None else logits, drafter.ids, depth)
                drafts.append(token)
                if (goes_on is not None and not goes_on()) or depth + 1 == count:
                    break
                output, logits = self._run(0, output, token[:, None]), None
                self._cache.extend(0, [1] * rows)
        finally:
            for slot, length in enumerate(committed):
                self._cache.cut(slot, length)
        return mx.stack(drafts, axis=1)

    def take(self, slot: int, start: int, stop: int) -> KvSpan | None:
        missing = stop - self._cache.lengths[slot]
        if missing > 0:
            if missing > self._waiting[slot].total:
                return None
            self._fold(slot, [missing])
        return self._cache.take(slot, start, stop)

    def put(self, slot: int, span: KvSpan) -> None:
        self._ahead = None
        self._cache.put(slot, span)
        self._waiting[slot] = WaitingPositions()

    def _begun_ahead(self, rows: int) -> tuple[mx.array, mx.array] | None:
        """What was computed ahead of the newest positions, if what was observed since is what that counted on."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or list(self._cache.lengths[:rows]) != ahead.lengths:
            return None
        counts = [waiting.total for waiting in self._waiting[:rows]]
        for slot, (waiting, place) in enumerate(zip(self._waiting, ints(ahead.newest), strict=False)):
            if waiting.total and not waiting.is_start_of(ahead.hidden, slot, place + 1):
                return None
        self._take_in(0, counts)
        return ahead.output, ahead.logits

    def _newest_output(self, rows: int) -> mx.array:
        """Folds everything and returns the block's output at each row's newest position, `[rows, 1, D]`."""
        counts = [waiting.total for waiting in self._waiting[:rows]]
        if rows * max(counts) > _TOGETHER_POSITIONS and max(counts) > 1:
            # Of all but the newest the keys and values are needed and nothing else, so that no more is computed.
            self._fold(0, [max(0, count - 1) for count in counts])
            counts = [waiting.total for waiting in self._waiting[:rows]]
        output = self._fold(0, counts)
        if output.shape[1] == 1:
            return output
        newest = mx.array([max(0, count - 1) for count in counts])[:, None, None]
        return mx.take_along_axis(output, newest, axis=1)

    def _fold(self, first: int, counts: Sequence[int]) -> mx.array:
        """Runs the oldest `counts[i]` waiting positions of slot `first + i`; returns the block's outputs.

        Lazily: without the outputs, the block's one layer computes its keys and values alone.
        """
        waiting = self._waiting[first : first + len(counts)]
        if not any(counts):
            raise RuntimeError("the drafter has observed no position yet")
        hidden, tokens = padded_positions(waiting, counts)
        output = self._run(first, hidden, tokens)
        self._take_in(first, counts)
        return output

    def _run(self, first: int, hidden: mx.array, tokens: mx.array) -> mx.array:
        """The block's outputs `[B, L, D]` behind what the slots from `first` on hold; the slots stay as long as they
        are.
        """
        drafter = self._drafter
        return drafter.block(drafter.embed(tokens), hidden, self._cache.window(first, len(hidden))[0])

    def _take_in(self, first: int, counts: Sequence[int]) -> None:
        """Counts the oldest waiting positions, whose entries were written, as those of the slots from `first` on."""
        self._cache.extend(first, counts)
        for slot, count in enumerate(counts, first):
            self._waiting[slot].drop(count)

    def _logits(self, output: mx.array) -> mx.array:
        """Of `output [B, 1, D]`, `[B, V']`."""
        return output[:, 0] @ self._drafter.table.T


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

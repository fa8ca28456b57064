"""Lets prompts that begin as earlier ones did, or as earlier answers, go on from what those rows computed.

What a row has read and written is copied in whole blocks, of the target's keys and values and of the drafter's, and
copied into the slots of later rows. The text must not depend on it, so blocks end only where a row without them would
compute the same bits: anywhere where the exactness probe found that it does not matter how tokens are cut into
forwards, answers included; elsewhere only after whole chunks of prompts, which such a row runs in the same chunks.
"""

from collections.abc import Iterator, Sequence

import mlx.core as mx
import structlog

from burstgate_decode.engine.batch import Batch, slot_of
from burstgate_decode.engine.prefix_store import Block, PrefixStore, block_keys
from burstgate_decode.engine.row import Row
from burstgate_decode.models.kv_span import CopiesSlots, KvSpan

_log = structlog.get_logger(__name__)

# Also the shortest prefix that is stored. Smaller blocks waste less of a prefix's end and cost more to copy.
_BLOCK_TOKENS = 16
# Copied together and then cut into blocks, which costs fewer operations; no more than this is held twice meanwhile.
_RUN_TOKENS = 128


class PrefixCache:
    """Copies between a batch's slots and a store. Does nothing for caches that cannot be copied at any token."""

    def __init__(self, batch: Batch, store: PrefixStore, *, any_cut: bool, chunk_tokens: int) -> None:
        """`any_cut`: whether it never matters how tokens are cut into forwards. `chunk_tokens`: how prompts are."""
        self._batch = batch
        self._store = store
        self._any_cut = any_cut
        self._block_tokens = _BLOCK_TOKENS if any_cut else chunk_tokens

    def restore(self, row: Row) -> None:
        """Lets a row whose prompt is being read skip what is stored of it beyond where it is.

        At least one token before the prompt's last is left to run: a drafter goes on from its hidden state.
        """
        slots = self._slots_of(row)
        if slots is None:
            return
        target, drafter = slots
        blocks = self._store.match(block_keys(row.request.prompt[:-1], self._block_tokens), row.drafts)
        tokens = len(blocks) * self._block_tokens
        if tokens <= row.prefilled:
            return
        target.put(slot_of(row), KvSpan.joined([block.target for block in blocks]))
        if drafter is not None:
            drafter.put(slot_of(row), KvSpan.joined([block.drafter for block in blocks if block.drafter is not None]))
        row.cached_prompt_tokens += tokens - row.prefilled
        row.prefilled = tokens

    def reusable(self, prompt: Sequence[int]) -> int:
        """How many of a prompt's first tokens a row can skip, if it need not draft. Any thread may ask."""
        return self._store.covered(block_keys(prompt[:-1], self._block_tokens)) * self._block_tokens

    def keep(self, row: Row) -> bool:
        """Stores what a row that holds a slot has computed so far; returns whether there was anything new.

        What goes wrong costs only what is stored.
        """
        slots = self._slots_of(row)
        if slots is None:
            return False
        keys = block_keys(row.tokens[: self._reach(row)], self._block_tokens)
        try:
            blocks = self._store.add(
                keys, row.drafts, lambda known: list(self._copied(*slots, slot_of(row), known, len(keys)))
            )
            # At once, so that the copies do not keep the batch's arrays alive, which would have to be copied whole.
            mx.eval([array for block in blocks for array in _arrays(block)])
            return bool(blocks)
        except Exception:  # noqa: BLE001  (an answer never depends on what others may reuse of it)
            _log.exception("prefix_not_stored", request_id=row.request.request_id)
            self._store.clear()
            return True

    def _copied(
        self, target: CopiesSlots, drafter: CopiesSlots | None, slot: int, first: int, stop: int
    ) -> Iterator[Block]:
        """Copies a slot's blocks from `first` to `stop`, or as many as target and drafter both hold."""
        size = self._block_tokens
        run = max(1, _RUN_TOKENS // size)
        for start in range(first, stop, run):
            count = min(run, stop - start)
            entries = target.take(slot, start * size, (start + count) * size)
            drafted = None if drafter is None else drafter.take(slot, start * size, (start + count) * size)
            if entries is None or (drafter is not None and drafted is None):
                return
            for cut in range(0, count * size, size):
                yield Block(entries.part(cut, cut + size), None if drafted is None else drafted.part(cut, cut + size))

    def _reach(self, row: Row) -> int:
        """How many of a row's first tokens others may use, the one behind the last block included.

        A row that takes steps keeps its newest position to itself, since its drafter goes on from that.
        """
        if row.prefill_left > 0:
            return row.prefilled + 1
        return len(row.tokens) - 1 if self._any_cut else row.prefilled

    def _slots_of(self, row: Row) -> tuple[CopiesSlots, CopiesSlots | None] | None:
        """Where a row's entries are copied from and to, with the drafter's for a row that drafts."""
        target, drafter = self._batch.cache, self._batch.drafts
        if not self._store.max_bytes or not isinstance(target, CopiesSlots):
            return None
        if not row.drafts:
            return target, None
        return (target, drafter) if isinstance(drafter, CopiesSlots) else None


def _arrays(block: Block) -> list[mx.array]:
    return block.target.arrays + (block.drafter.arrays if block.drafter is not None else [])

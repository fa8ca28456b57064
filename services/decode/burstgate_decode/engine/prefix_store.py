"""Blocks of keys and values by the tokens that they stand for, the least recently used dropped first.

A block covers a fixed number of tokens and is found by a digest of every token up to and including the one behind
it. So prompts that begin alike share their blocks, a chat's later turn adds only what is new in it, and a block is of
no use without those before it: whatever touches a block touches those more recently, so that they are dropped later.
Knows nothing of rows, slots or models.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from burstgate_decode.models.kv_span import KvSpan


@dataclass(frozen=True)
class Block:
    """What a target and, unless its row went without one, a drafter remember of a block's tokens."""

    target: KvSpan
    drafter: KvSpan | None

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.target.nbytes + (self.drafter.nbytes if self.drafter is not None else 0)


def block_keys(tokens: Sequence[int], block_tokens: int) -> list[bytes]:
    """The keys of the blocks that `tokens` begin with. The last of the tokens is only read as one behind a block:
    a drafter's state of a position depends on the token that follows it.
    """
    digest = hashlib.sha256(_bytes(tokens[:1]))
    keys = []
    for end in range(block_tokens, len(tokens), block_tokens):
        digest.update(_bytes(tokens[end - block_tokens + 1 : end + 1]))
        keys.append(digest.digest())
    return keys


class PrefixStore:
    """Holds blocks, at most `max_bytes` of them. One thread changes it."""

    def __init__(self, max_bytes: int) -> None:
        """Holds nothing."""
        self.nbytes = 0
        """Any thread may read it."""
        self.max_bytes = max_bytes
        # The least recently used first.
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()

    def covered(self, keys: Sequence[bytes]) -> int:
        """How many of the first keys have blocks. Any thread may ask; the answer may be old when it comes."""
        return next((at for at, key in enumerate(keys) if key not in self._blocks), len(keys))

    def match(self, keys: Sequence[bytes], with_drafter: bool) -> list[Block]:
        """The blocks held of the first keys, up to the first one that is missing; they count as used."""
        found: list[Block] = []
        for key in keys:
            block = self._blocks.get(key)
            if block is None or (with_drafter and block.drafter is None):
                break
            found.append(block)
        self._touch(keys[: len(found)])
        return found

    def add(self, keys: Sequence[bytes], with_drafter: bool, make: Callable[[int], Sequence[Block]]) -> list[Block]:
        """Adds the blocks that are missing of a prefix with these keys.

        `make(i)` copies the blocks of `keys[i:]`, or the first few of them, lazily. Returns the new blocks that there
        was room for; the others need never be evaluated.
        """
        known = len(self.match(keys, with_drafter))
        made = dict(zip(keys[known:], make(known) if known < len(keys) else (), strict=False))
        for key, block in made.items():
            self._drop(key)
            self._blocks[key] = block
            self.nbytes += block.nbytes
        self._touch(keys[: known + len(made)])
        while self.nbytes > self.max_bytes:
            self._drop(next(iter(self._blocks)))
        return [block for key, block in made.items() if key in self._blocks]

    def clear(self) -> None:
        """Drops everything."""
        self._blocks.clear()
        self.nbytes = 0

    def _touch(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            self._blocks.move_to_end(key)

    def _drop(self, key: bytes) -> None:
        block = self._blocks.pop(key, None)
        if block is not None:
            self.nbytes -= block.nbytes


def _bytes(tokens: Sequence[int]) -> bytes:
    return array("q", tokens).tobytes()

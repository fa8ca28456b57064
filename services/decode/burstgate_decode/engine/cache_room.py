"""How much cache memory rows reserve: for the most tokens that each may come to, and how caches are laid out.

Rows that share arrays cost a slot each, of as many tokens as the longest row has room for, and slots come in
powers of two. What left may still be held: a cache gives memory back late, so that what it holds counts as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from burstgate_decode.models.cache_shape import CacheCost, CacheShape, blocks, slots_for


@dataclass(frozen=True)
class CacheRoom:
    """A limit on what the caches of all rows may take."""

    cost: CacheCost
    limit_bytes: int
    overhang_tokens: int
    """Entries that a verify may write behind a row's last token."""

    def reserved(self, rows: Sequence[int], held: CacheShape) -> int:
        """Bytes for rows that come to so many tokens each, prompt and answer together."""
        if not rows:
            return 0
        if self.cost.shared:
            slots = max(held.slots, slots_for(len(rows)))
            tokens = slots * max(held.tokens, self._tokens(max(rows)))
        else:
            tokens = sum(map(self._tokens, rows))
        return tokens * self.cost.token_bytes + len(rows) * self.cost.row_bytes

    def fits(self, rows: Sequence[int], held: CacheShape) -> bool:
        """Whether the limit has room for these rows together."""
        return self.reserved(rows, held) <= self.limit_bytes

    def _tokens(self, most: int) -> int:
        return blocks(most + self.overhang_tokens)

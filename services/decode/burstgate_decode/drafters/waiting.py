"""Committed positions that a drafter has been told of and has not run yet, for one row.

Positions arrive as rows of whole batches' arrays and are cut out of them only when they are run, so that a
plain step costs a drafter nothing but a reference.
"""

from collections.abc import Sequence

import mlx.core as mx


class WaitingPositions:
    """One row's positions, oldest first: the target's hidden state and the token that followed."""

    def __init__(self) -> None:
        """None yet."""
        self._pieces: list[_Piece] = []
        self.total = 0

    def add(self, hidden: mx.array, tokens: mx.array, row: int, count: int) -> None:
        """Adds the first `count` positions of a row of `hidden [B, L, D]` and `tokens [B, L]`."""
        if count:
            self._pieces.append(_Piece(hidden, tokens, row, 0, count))
            self.total += count

    def drop(self, count: int) -> None:
        """Drops the oldest `count` positions."""
        self.total -= count
        while count and count >= len(self._pieces[0]):
            count -= len(self._pieces.pop(0))
        if count:
            piece = self._pieces[0]
            self._pieces[0] = _Piece(piece.hidden, piece.tokens, piece.row, piece.start + count, piece.end)

    def first(self, count: int) -> tuple[mx.array, mx.array]:
        """The oldest `count` positions, `[count, D]` and `[count]`. At least one."""
        hidden: list[mx.array] = []
        tokens: list[mx.array] = []
        for piece in self._pieces:
            taken = slice(piece.start, min(piece.end, piece.start + count))
            hidden.append(piece.hidden[piece.row, taken])
            tokens.append(piece.tokens[piece.row, taken])
            count -= taken.stop - taken.start
            if not count:
                break
        if len(hidden) == 1:
            return hidden[0], tokens[0]
        return mx.concatenate(hidden), mx.concatenate(tokens)

    def whole(self, row: int) -> "tuple[mx.array, mx.array] | None":
        """The arrays that all of this row's positions begin, as row `row`; None when they lie scattered."""
        if len(self._pieces) != 1 or (self._pieces[0].row, self._pieces[0].start) != (row, 0):
            return None
        return self._pieces[0].hidden, self._pieces[0].tokens


def padded_positions(rows: Sequence[WaitingPositions], counts: Sequence[int]) -> tuple[mx.array, mx.array]:
    """The oldest `counts[i]` positions of each row, as `[B, longest, D]` and `[B, longest]`.

    What stands behind a shorter row's positions has no meaning.
    """
    longest = max(counts)
    shared = _shared(rows, counts)
    if shared is not None:
        return shared[0][:, :longest], shared[1][:, :longest]
    pieces = [row.first(count) if count else None for row, count in zip(rows, counts, strict=True)]
    size, dtype, token_dtype = next((one[0].shape[-1], one[0].dtype, one[1].dtype) for one in pieces if one)
    hidden, tokens = [], []
    for piece, count in zip(pieces, counts, strict=True):
        one = piece or (mx.zeros((0, size), dtype), mx.zeros((0,), token_dtype))
        hidden.append(mx.pad(one[0], [(0, longest - count), (0, 0)]) if count < longest else one[0])
        tokens.append(mx.pad(one[1], [(0, longest - count)]) if count < longest else one[1])
    return mx.stack(hidden), mx.stack(tokens)


def _shared(rows: Sequence[WaitingPositions], counts: Sequence[int]) -> tuple[mx.array, mx.array] | None:
    """The arrays of one batch from which all rows' positions come in place, as after every round."""
    found: tuple[mx.array, mx.array] | None = None
    for place, row in enumerate(rows):
        if not counts[place]:
            continue
        whole = row.whole(place)
        if whole is None or (found is not None and whole[0] is not found[0]):
            return None
        found = whole
    return found if found is not None and found[0].shape[0] == len(rows) else None


class _Piece:
    """Positions `start` to `end` of one row of a batch's arrays."""

    __slots__ = ("end", "hidden", "row", "start", "tokens")

    def __init__(self, hidden: mx.array, tokens: mx.array, row: int, start: int, end: int) -> None:
        self.hidden = hidden
        self.tokens = tokens
        self.row = row
        self.start = start
        self.end = end

    def __len__(self) -> int:
        return self.end - self.start

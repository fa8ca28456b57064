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
        pieces = self.pieces(count)
        hidden = [piece.hidden[piece.row, piece.start : piece.end] for piece in pieces]
        tokens = [piece.tokens[piece.row, piece.start : piece.end] for piece in pieces]
        if len(pieces) == 1:
            return hidden[0], tokens[0]
        return mx.concatenate(hidden), mx.concatenate(tokens)

    def is_start_of(self, hidden: mx.array, row: int, count: int) -> bool:
        """Whether all that waits are the first `count` positions of a row of this very `hidden [B, L, D]`."""
        return len(self._pieces) == 1 and self._pieces[0].is_start_of(hidden, row, count)

    def pieces(self, count: int) -> "list[_Piece]":
        """Where the oldest `count` positions lie."""
        found: list[_Piece] = []
        for piece in self._pieces:
            if count <= 0:
                break
            found.append(piece.first(count))
            count -= len(found[-1])
        return found


def padded_positions(rows: Sequence[WaitingPositions], counts: Sequence[int]) -> tuple[mx.array, mx.array]:
    """The oldest `counts[i]` positions of each row, as `[B, longest, D]` and `[B, longest]`. At least one.

    What stands behind a shorter row's positions has no meaning.
    """
    longest = max(counts)
    together = _side_by_side(rows, counts)
    if together is not None:
        hidden = [piece.hidden[: len(rows), piece.start : piece.end] for piece in together]
        tokens = [piece.tokens[: len(rows), piece.start : piece.end] for piece in together]
        return mx.concatenate(hidden, axis=1), mx.concatenate(tokens, axis=1)
    pieces = [row.first(count) if count else None for row, count in zip(rows, counts, strict=True)]
    size, dtype, token_dtype = next((one[0].shape[-1], one[0].dtype, one[1].dtype) for one in pieces if one)
    hidden, tokens = [], []
    for piece, count in zip(pieces, counts, strict=True):
        one = piece or (mx.zeros((0, size), dtype), mx.zeros((0,), token_dtype))
        hidden.append(mx.pad(one[0], [(0, longest - count), (0, 0)]) if count < longest else one[0])
        tokens.append(mx.pad(one[1], [(0, longest - count)]) if count < longest else one[1])
    return mx.stack(hidden), mx.stack(tokens)


def _side_by_side(rows: Sequence[WaitingPositions], counts: Sequence[int]) -> "list[_Piece] | None":
    """The longest row's pieces, if all rows' positions lie in place in the same batches' arrays.

    So they do after a round and after a plain stretch, whose hundreds of pieces would take as long to gather row by
    row as to run.
    """
    held = [row.pieces(count) for row, count in zip(rows, counts, strict=True)]
    longest = held[counts.index(max(counts))]
    if any(piece.hidden.shape[0] < len(rows) for piece in longest):
        return None
    for place, own in enumerate(held):
        for at, (piece, other) in enumerate(zip(own, longest, strict=False), 1):
            ends_alike = piece.end == other.end or (piece.end < other.end and at == len(own))
            in_place = piece.hidden is other.hidden and (piece.row, piece.start) == (place, other.start)
            if not (ends_alike and in_place):
                return None
    return longest


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

    def is_start_of(self, hidden: mx.array, row: int, count: int) -> bool:
        return self.hidden is hidden and (self.row, self.start, self.end) == (row, 0, count)

    def first(self, count: int) -> "_Piece":
        """The oldest `count` positions, or all."""
        if count >= len(self):
            return self
        return _Piece(self.hidden, self.tokens, self.row, self.start, self.start + count)

"""Names the regime of a step: what it costs moves with the batch width and the context depth.

A regime is a power-of-two bucket of the width and a doubling of the depth. Knows nothing else.
"""

Regime = tuple[int, int]
"""Bucket of the batch width and bucket of the context depth."""

DEPTH_FLOOR_TOKENS = 512
"""Contexts below this cost the same; above, every doubling is a regime of its own."""


def regime(width: int, depth_tokens: int) -> Regime:
    """The regime of a batch of `width` rows whose deepest context has `depth_tokens` tokens."""
    return (max(width, 1) - 1).bit_length(), max(depth_tokens // DEPTH_FLOOR_TOKENS, 0).bit_length()


def typical_depth(depth_bucket: int) -> int:
    """A depth in the middle of a depth bucket, in tokens."""
    return DEPTH_FLOOR_TOKENS // 4 if depth_bucket == 0 else (3 * DEPTH_FLOOR_TOKENS << depth_bucket - 1) // 2

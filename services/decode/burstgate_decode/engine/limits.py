"""How much the engine takes on. Free of mlx, so that settings can be read before it is imported."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineLimits:
    """How much the engine takes on."""

    max_active_rows: int = 8
    """Answers generated at once. Each needs its own KV cache."""
    max_queued_rows: int = 64
    """Answers that may wait; one more is refused."""
    prefill_chunk_tokens: int = 128
    """Prompt tokens run between two steps of the decoding rows, so a long prompt delays a stream by one chunk."""
    lone_chunk_tokens: int = 256
    """The same while nothing else is generated or read, where that changes no bit; never less than a chunk."""
    tenant_max_active_rows: int = 0
    """Answers of one tenant generated at once; 0 sets no limit of its own."""
    tenant_max_queued_rows: int = 0
    """Answers of one tenant that may wait; 0 sets no limit of its own."""
    cache_bytes: int | None = None
    """Most memory of all answers' KV caches together; None takes half of what is free once the models are loaded."""
    prefix_cache_bytes: int = 256 << 20
    """What is kept of rows for later ones whose prompts begin alike; 0 keeps nothing."""

    @property
    def longest_chunk_tokens(self) -> int:
        """Prompt tokens of the largest forward."""
        return max(self.prefill_chunk_tokens, self.lone_chunk_tokens)

"""Settings of the decode service, from BURSTGATE_* variables and flags.

A value that cannot be read is an error at start; no default ever replaces what somebody wrote.
"""

from pathlib import Path
from typing import Annotated, Literal

import pydantic

from burstgate_decode.engine.limits import EngineLimits
from burstgate_runtime.listen import Listen, parse_listen
from burstgate_runtime.settings import ListenAddress, ServiceSettings, SettingsError

NONE = "none"
DEFAULT_TARGET = "default"


def _policy_address(value: object) -> object:
    if value == NONE:
        return None
    if not isinstance(value, str):
        return value
    try:
        return parse_listen(value)
    except SettingsError as error:
        raise SettingsError(f"{error}, or {NONE}") from None


class DecodeSettings(ServiceSettings):
    """What the decode service can be told."""

    listen: Annotated[ListenAddress, pydantic.Field(validation_alias="BURSTGATE_DECODE_LISTEN")] = parse_listen(
        "127.0.0.1:50051"
    )
    """Where requests are taken: host:port or unix:/path."""
    policy_address: Annotated[Listen | None, pydantic.BeforeValidator(_policy_address)] = parse_listen(
        "127.0.0.1:50052"
    )
    """Where the policy service answers; "none" decides by the measured cost table alone."""
    target: str = DEFAULT_TARGET
    """Folder or hub repository of the target; "default" is the embedded default pair's."""
    drafter: str | None = None
    """Folder or hub repository of the drafter, or "none"; unset is the default pair's with the default
    target, and none with another."""
    cache_dir: Path | None = None
    """Where prepared models and the BLAS shim are kept; unset is the user's cache folder."""
    blas: Literal["auto", "openblas", "reference"] = "auto"
    """Matrix library under MLX on Linux CPUs."""
    exactness: Literal["guarded", "fast", "strict"] = "guarded"
    """What happens when a verify, or a row of a batch, is not bit-equal to one-row steps: close choices are decided
    again by a one-row step (guarded), nothing (fast), or speculation and batches are declined (strict)."""
    draft_width: int = pydantic.Field(default=8, ge=2, le=64)
    """Widest verify, in rows."""
    draft_stopping: bool = True
    """Whether a round stops drafting when the drafter's own probability says that the next draft will not pay;
    off runs every round at its full width."""
    max_active_rows: int = pydantic.Field(default=8, ge=1, le=256)
    """Answers generated at once."""
    max_queued_rows: int = pydantic.Field(default=64, ge=0, le=100_000)
    """Answers that may wait; one more is refused with RESOURCE_EXHAUSTED."""
    tenant_max_active_rows: int = pydantic.Field(default=0, ge=0, le=256)
    """Answers of one tenant generated at once; 0 sets no limit of its own."""
    tenant_max_queued_rows: int = pydantic.Field(default=0, ge=0, le=100_000)
    """Answers of one tenant that may wait; one more is refused with RESOURCE_EXHAUSTED. 0 sets no limit of its own."""
    cache_memory_mb: int | None = pydantic.Field(default=None, ge=1, le=100_000_000)
    """Most memory of the KV caches, in MB of 1024 x 1024 bytes; unset is half of what is free after loading."""
    default_max_tokens: int = pydantic.Field(default=512, ge=1, le=1_000_000)
    """max_tokens of a request that names none."""
    prefill_chunk_tokens: int = pydantic.Field(default=128, ge=16, le=65536)
    """Prompt tokens run between two steps of the running answers."""
    prefix_cache_mb: int = pydantic.Field(default=256, ge=0, le=1_000_000)
    """MiB kept of prompts and answers for prompts that begin alike, least recently used dropped first; 0 keeps none."""
    policy_deadline_ms: float = pydantic.Field(default=5.0, gt=0, le=1000, allow_inf_nan=False)
    """How long a grant is waited for."""
    stalled_client_s: float = pydantic.Field(default=60.0, gt=0, le=86400, allow_inf_nan=False)
    """How long a client may leave its stream unread before it is cut off."""

    @property
    def engine_limits(self) -> EngineLimits:
        """The engine's share of the settings."""
        return EngineLimits(
            max_active_rows=self.max_active_rows,
            max_queued_rows=self.max_queued_rows,
            prefill_chunk_tokens=self.prefill_chunk_tokens,
            tenant_max_active_rows=self.tenant_max_active_rows,
            tenant_max_queued_rows=self.tenant_max_queued_rows,
            cache_bytes=None if self.cache_memory_mb is None else self.cache_memory_mb * 1024 * 1024,
            prefix_cache_bytes=self.prefix_cache_mb << 20,
        )

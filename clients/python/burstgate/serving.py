"""What a decode server says of itself: the served pairing, its limits and its load.

Owns frozen dataclasses with the contract's field names. This module must not know protos or gRPC.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime


class Health(enum.StrEnum):
    """Answer of the standard health service."""

    UNKNOWN = "UNKNOWN"
    SERVING = "SERVING"
    NOT_SERVING = "NOT_SERVING"


@dataclass(frozen=True, slots=True)
class Target:
    """The served target."""

    name: str
    fingerprint: str
    model_type: str
    dtype: str
    vocab_size: int
    context_length: int
    """Prompt and answer together, in tokens."""
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool


@dataclass(frozen=True, slots=True)
class Drafter:
    """The drafter beside the target."""

    name: str
    fingerprint: str
    kind: str
    """Such as "mtp_head"."""
    max_draft_width: int
    """Widest verify it is run with, in rows."""


@dataclass(frozen=True, slots=True)
class Exactness:
    """What the exactness probe found at start."""

    bit_equal: bool
    positions: int
    max_logit_difference: float
    guard_margin: float
    explanation: str


@dataclass(frozen=True, slots=True)
class CostCell:
    """One measured cell of the cost table."""

    width: int
    """Rows of the batch."""
    draft_width: int
    """Rows of the verify for each sequence; 1 is a plain step."""
    depth_tokens: int
    verify_ms: float
    draft_ms: float


@dataclass(frozen=True, slots=True)
class Model:
    """The served pairing."""

    target: Target
    drafter: Drafter | None
    """None when serving without one."""
    hardware: str
    backend: str
    """"metal", "cuda" or "cpu"."""
    blas: str
    """Matrix library under the CPU backend; empty elsewhere."""
    mlx_version: str
    exactness: Exactness
    costs: tuple[CostCell, ...]


@dataclass(frozen=True, slots=True)
class PolicyLink:
    """How the decode service sees its policy service."""

    address: str
    """Empty when none is configured."""
    connected: bool
    grants: int
    fallbacks: int
    """Bursts that ran on a fallback."""
    dropped_steps: int
    """Step records dropped because they could not be delivered."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The server."""

    version: str
    started_at: datetime
    active_rows: int
    """Answers being generated."""
    queued_rows: int
    """Answers waiting."""
    max_active_rows: int
    max_queued_rows: int
    max_prompt_tokens: int
    default_max_tokens: int
    policy: PolicyLink
    prefix_cache_bytes: int
    """Kept for prompts that begin as earlier ones did."""
    max_prefix_cache_bytes: int
    """0 when nothing is kept."""
    tenant_max_active_rows: int
    """Answers of one tenant generated at once; 0 means no limit of its own."""
    tenant_max_queued_rows: int
    """Answers of one tenant that may wait; 0 means no limit of its own."""
    cache_reserved_bytes: int
    """What the caches of the answers being generated may come to."""
    cache_limit_bytes: int
    """What all caches together may take; 0 while the models load."""

"""What a caller may ask for: connection, prompt, sampling and stop options.

Owns the frozen dataclasses a caller fills in, with the server's limits named beside each field. A field
left at None is not sent, so the server's default holds. Limits are checked by the server, which knows the
model; this module must not know protos or gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]
Speculation = Literal["auto", "on", "off"]
Priority = Literal["low", "normal", "high"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str


Prompt = str | Sequence[Message] | Sequence[int]
"""A text, a conversation, or token ids."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen."""

    temperature: float | None = None
    """0 (the server's default) always takes the likeliest token; at most 10."""
    top_p: float | None = None
    """Keeps the likeliest tokens up to this probability mass; above 0, at most 1."""
    top_k: int | None = None
    """Keeps this many of the likeliest tokens; 0 keeps all."""
    min_p: float | None = None
    """Drops tokens below this share of the likeliest one's probability; from 0 to below 1."""
    repetition_penalty: float | None = None
    """Divides the score of tokens already present; above 0, at most 10."""
    presence_penalty: float | None = None
    """Subtracted once from the score of tokens already present; -2 to 2."""
    frequency_penalty: float | None = None
    """Subtracted for each earlier occurrence; -2 to 2."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the score of each token id; -100 to 100, at most 1024 entries."""
    seed: int | None = None
    """Fixes the random draws: the same request and seed give the same tokens."""


@dataclass(frozen=True, slots=True)
class Stop:
    """When an answer ends, besides its most tokens."""

    strings: Sequence[str] = ()
    """Ends the answer before the first of these; at most 16 of at most 256 bytes each."""
    token_ids: Sequence[int] = ()
    """Ends the answer at one of these; at most 64."""
    ignore_eos: bool = False
    """Goes on past the model's end-of-text tokens."""


@dataclass(frozen=True, slots=True)
class TLS:
    """Encrypts the connection. Without client certificate fields only the server is authenticated."""

    root_certificates: bytes | None = None
    """PEM of the authorities to trust; None trusts gRPC's own list."""
    private_key: bytes | None = None
    """PEM of the client's key, for servers that ask for client certificates."""
    certificate_chain: bytes | None = None
    """PEM of the client's certificate; needed with the key."""
    server_name: str | None = None
    """Name to expect in the server's certificate when it is not the address's host."""


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Where and how to connect."""

    address: str = "127.0.0.1:50051"
    """"host:port", "unix:/path", or a gRPC target with its own scheme such as "dns:///host:port"."""
    tls: TLS | None = None
    """None connects in the clear, which is right for loopback and socket files only."""
    keepalive_ms: int = 30_000
    """A ping after this much silence during a call; the server refuses pings closer than 10 s."""
    ping_timeout_ms: int = 10_000
    """A ping unanswered for this long ends the connection. gRPC's keepalive does nothing without it."""
    max_message_bytes: int = 16 * 1024 * 1024
    """Largest message sent or received; room for a long prompt with the ids of all its tokens."""
    unary_timeout_s: float = 10.0
    """Deadline of every call but a generation, when the call names none."""
    metadata: Sequence[tuple[str, str]] = ()
    """Sent with every call, such as an authorization header. Keys are lower case."""

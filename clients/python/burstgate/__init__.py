"""Client library of Burstgate: streams speculatively decoded tokens over gRPC and reads policy verdicts."""

from burstgate.aio import AsyncClient, AsyncGenerationStream, AsyncPolicyClient
from burstgate.client import Client, GenerationStream, PolicyClient
from burstgate.errors import (
    BurstgateError,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
    Unimplemented,
    Violation,
)
from burstgate.options import TLS, ConnectOptions, Message, Prompt, Sampling, Speculation, Stop
from burstgate.results import (
    BurstMode,
    Completion,
    Delta,
    Event,
    FinishReason,
    GrantReason,
    Result,
    TokenCount,
)
from burstgate.serving import Health, Model, ServerInfo
from burstgate.verdicts import PolicyState, Verdict

__all__ = [
    "TLS",
    "AsyncClient",
    "AsyncGenerationStream",
    "AsyncPolicyClient",
    "BurstMode",
    "BurstgateError",
    "Cancelled",
    "Client",
    "Completion",
    "ConnectOptions",
    "DeadlineExceeded",
    "Delta",
    "Event",
    "FailedPrecondition",
    "FinishReason",
    "GenerationStream",
    "GrantReason",
    "Health",
    "Internal",
    "InvalidRequest",
    "Message",
    "Model",
    "NotFound",
    "Overloaded",
    "PolicyClient",
    "PolicyState",
    "Prompt",
    "Result",
    "Sampling",
    "ServerInfo",
    "Speculation",
    "Stop",
    "TokenCount",
    "Unavailable",
    "Unimplemented",
    "Verdict",
    "Violation",
]

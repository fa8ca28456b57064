"""DecodeService: proto messages to engine requests and engine events to proto messages, nothing else.

This is the only module of the decode service that sees both sides. Each answer's events cross from the
engine's thread into a queue of the event loop; leaving the stream for any reason cancels the answers.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import structlog
from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp

from burstgate.decode.v1 import decode_pb2, decode_pb2_grpc
from burstgate_decode import wire
from burstgate_decode.config import DecodeSettings
from burstgate_decode.engine.engine import Engine
from burstgate_decode.engine.request import (
    AnswerRequest,
    Claim,
    Completion,
    Event,
    Failure,
    Sink,
    SpeculationChoice,
)
from burstgate_decode.engine.row import Ticket
from burstgate_decode.metrics import observe_answer, observe_rejection
from burstgate_decode.prompts import (
    Chat,
    Prompt,
    RawText,
    TokenIds,
    check_biased_ids,
    check_room,
    check_token_ids,
    tokenize,
)
from burstgate_decode.serving import Serving
from burstgate_decode.validation import GenerateLimits, checked, tenant_of
from burstgate_runtime.faults import Fault, FaultKind, Violation, invalid

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(frozen=True)
class ServerFacts:
    """What GetServerInfo says that does not change."""

    version: str
    started_at_s: float


class DecodeServicer(decode_pb2_grpc.DecodeServiceServicer):
    """Implements the service over an engine that may still be loading."""

    def __init__(self, settings: DecodeSettings, facts: ServerFacts, engine: Engine) -> None:
        """`serving` is set once the models are loaded; until then calls are UNAVAILABLE."""
        self._settings = settings
        self._facts = facts
        self._engine = engine
        self.serving: Serving | None = None

    async def Generate(  # noqa: N802
        self, request: decode_pb2.GenerateRequest, context: _Context
    ) -> None:
        """Streams the answers' deltas and completions."""
        serving, tenant = self._ready(), tenant_of(context.invocation_metadata() or ())
        limits = checked(GenerateLimits, wire.generate_fields(request))
        answers = await self._plan(serving, request, limits)
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Sequence[Event]] = asyncio.Queue()

        def sink(events: Sequence[Event]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(arrived.put_nowait, events)

        left_s = context.time_remaining()
        claim = Claim(tenant, limits.priority, None if left_s is None else left_s * 1e3)
        ticket = self._submit([(answer, sink) for answer in answers], claim)
        try:
            running = len(answers)
            while running:
                events = await arrived.get()
                for ended in events:
                    if isinstance(ended, Completion):
                        running -= 1
                        observe_answer(ended)
                for response in wire.responses(events, grouped=request.group_deltas):
                    await self._send(context, response)
                for failed in events:
                    if isinstance(failed, Failure):
                        if isinstance(failed.error, Fault):
                            observe_rejection(failed.error)
                        raise failed.error
        finally:
            ticket.cancel()

    def _submit(self, answers: list[tuple[AnswerRequest, Sink]], claim: Claim) -> Ticket:
        try:
            return self._engine.submit(answers, claim)
        except Fault as fault:
            observe_rejection(fault)
            raise

    async def _send(self, context: _Context, response: decode_pb2.GenerateResponse) -> None:
        try:
            async with asyncio.timeout(self._settings.stalled_client_s):
                await context.write(response)
        except TimeoutError:
            raise Fault(
                FaultKind.RESOURCE_EXHAUSTED,
                "CLIENT_STALLED",
                f"the stream was left unread for {self._settings.stalled_client_s:g} s",
            ) from None

    async def CountTokens(  # noqa: N802
        self, request: decode_pb2.CountTokensRequest, context: _Context
    ) -> decode_pb2.CountTokensResponse:
        """Counts the prompt's tokens."""
        serving = self._ready()
        _check_model(serving, request.model)
        ids = await asyncio.to_thread(tokenize, serving.target, _prompt(request))
        return decode_pb2.CountTokensResponse(prompt_tokens=len(ids), ids=ids if request.return_ids else ())

    async def GetModel(  # noqa: N802
        self, request: decode_pb2.GetModelRequest, context: _Context
    ) -> decode_pb2.GetModelResponse:
        """Describes the pairing."""
        return wire.model(self._ready())

    async def GetServerInfo(  # noqa: N802
        self, request: decode_pb2.GetServerInfoRequest, context: _Context
    ) -> decode_pb2.GetServerInfoResponse:
        """Describes the server, also while it loads."""
        settings = self._settings
        active, queued = self._engine.load_counts()
        cache_reserved, cache_limit = self._engine.cache_bytes()
        started_at = Timestamp()
        started_at.FromNanoseconds(int(self._facts.started_at_s * 1e9))
        return decode_pb2.GetServerInfoResponse(
            version=self._facts.version,
            started_at=started_at,
            active_rows=active,
            queued_rows=queued,
            max_active_rows=settings.max_active_rows,
            max_queued_rows=settings.max_queued_rows,
            max_prompt_tokens=self.serving.target.context_length - 1 if self.serving else 0,
            default_max_tokens=settings.default_max_tokens,
            prefix_cache_bytes=self._engine.prefix_cache_bytes(),
            max_prefix_cache_bytes=settings.engine_limits.prefix_cache_bytes,
            policy=wire.policy_link(settings.policy_address, self.serving.link() if self.serving else None),
            tenant_max_active_rows=settings.tenant_max_active_rows,
            tenant_max_queued_rows=settings.tenant_max_queued_rows,
            cache_reserved_bytes=cache_reserved,
            cache_limit_bytes=cache_limit,
        )

    def _ready(self) -> Serving:
        if self.serving is None:
            raise Fault(FaultKind.UNAVAILABLE, "MODEL_LOADING", "the models are still loading", retry_after_ms=1000)
        return self.serving

    async def _plan(
        self, serving: Serving, request: decode_pb2.GenerateRequest, limits: GenerateLimits
    ) -> list[AnswerRequest]:
        """Checks a request against what is served and expands it into its answers."""
        _check_model(serving, limits.model)
        speculation = limits.speculation
        if speculation.max_draft_width == 1:
            raise invalid(Violation("speculation.max_draft_width", "must be 0 or from 2 to 64, got 1"))
        if speculation.mode is SpeculationChoice.ON and serving.drafter is None:
            raise Fault(
                FaultKind.FAILED_PRECONDITION,
                "NO_DRAFTER",
                f"speculation is on, and {serving.no_drafter_because}",
            )
        check_token_ids(serving.target, "stop.token_ids", limits.stop.token_ids)
        check_biased_ids(serving.target, limits.sampling.logit_bias)
        prompt = await asyncio.to_thread(tokenize, serving.target, _prompt(request))
        check_room(serving.target, prompt)
        sampling = limits.sampling.params()
        room = serving.target.context_length - len(prompt)
        return [
            AnswerRequest(
                request_id=structlog.contextvars.get_contextvars().get("request_id", ""),
                index=index,
                prompt=prompt,
                max_tokens=min(limits.max_tokens or self._settings.default_max_tokens, room),
                sampling=sampling.for_answer(index),
                stop_strings=tuple(limits.stop.strings),
                stop_token_ids=frozenset(limits.stop.token_ids),
                ignore_eos=limits.stop.ignore_eos,
                logprobs=limits.logprobs,
                speculation=speculation.mode,
                max_draft_width=speculation.max_draft_width,
            )
            for index in range(limits.n or 1)
        ]


def _check_model(serving: Serving, name: str) -> None:
    if name and name != serving.target.name:
        raise Fault(
            FaultKind.NOT_FOUND,
            "UNKNOWN_MODEL",
            f"model {name!r} is not served here; {serving.target.name} is",
            metadata={"served": serving.target.name},
        )


def _prompt(request: decode_pb2.GenerateRequest | decode_pb2.CountTokensRequest) -> Prompt:
    match request.WhichOneof("prompt"):
        case "chat":
            chat = request.chat
            return Chat(
                [(message.role, message.content) for message in chat.messages],
                chat.system,
                MessageToDict(chat.chat_template_kwargs),
            )
        case "text":
            return RawText(request.text)
        case "tokens":
            return TokenIds(tuple(request.tokens.ids))
        case _:
            raise invalid(Violation("prompt", "must be one of chat, text or tokens"))

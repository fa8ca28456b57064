"""The asyncio clients: AsyncClient for a decode service, AsyncPolicyClient for a policy service's verdicts.

Owns one channel each. Every call raises only BurstgateError, and a generation that is left early, however
it is left, is cancelled on the server. A client belongs to the event loop it was made in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType, TracebackType
from typing import Any, Protocol, Self

from burstgate import _health, _policy_requests, _responses
from burstgate._answers import Answers
from burstgate._channel import call_metadata, connect_aio
from burstgate._requests import PromptOptions, count_tokens_request, generate_request
from burstgate.decode.v1 import decode_pb2, decode_pb2_grpc
from burstgate.errors import BurstgateError, converted_aio
from burstgate.options import ConnectOptions, Priority, Prompt, Sampling, Speculation, Stop
from burstgate.policy.v1 import admin_pb2, admin_pb2_grpc
from burstgate.results import Event, Result, TokenCount
from burstgate.serving import Health, Model, ServerInfo
from burstgate.verdicts import Explanation, ImportedHint, Replay, Situation, Verdict, VerdictChange, VerdictFilter


class _Connected:
    """One channel and what every client does with it."""

    def __init__(self, options: ConnectOptions | str = ConnectOptions()) -> None:  # noqa: B008 - frozen
        self._options = ConnectOptions(address=options) if isinstance(options, str) else options
        self._channel = connect_aio(self._options)
        self._check = self._channel.unary_unary(
            _health.METHOD, request_serializer=_health.encode, response_deserializer=_health.decode
        )

    async def health(
        self, service: str = "", *, timeout_s: float | None = None, request_id: str | None = None
    ) -> Health:
        """Whether the server, or one of its services by full name, is serving."""
        return _responses.health(await self._unary(self._check, service, timeout_s, request_id))

    async def close(self) -> None:
        """Closes the channel; running calls end as Cancelled."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _unary(self, method: Any, request: Any, timeout_s: float | None, request_id: str | None) -> Any:
        request_id, metadata = call_metadata(self._options, request_id)
        timeout = self._options.unary_timeout_s if timeout_s is None else timeout_s
        with converted_aio(request_id):
            return await method(request, timeout=timeout, metadata=metadata)


class AsyncClient(_Connected):
    """Talks to a decode service. Takes ConnectOptions, or just the address."""

    def __init__(self, options: ConnectOptions | str = ConnectOptions()) -> None:  # noqa: B008 - frozen
        super().__init__(options)
        self._stub = decode_pb2_grpc.DecodeServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def generate(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        system: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        model: str = "",
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
        stop: Stop = Stop(),  # noqa: B008 - frozen
        speculation: Speculation = "auto",
        draft_width: int | None = None,
        max_tokens: int | None = None,
        logprobs: int | None = None,
        n: int = 1,
        priority: Priority = "normal",
        tenant: str | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerationStream:
        """Starts a generation and returns its stream. A str is one user message, or bare text when raw.

        Tenants take turns while requests wait; without one, the connection's metadata may name it.
        """
        request = generate_request(
            PromptOptions(prompt, raw, system, chat_template_kwargs),
            model=model,
            sampling=sampling,
            stop=stop,
            speculation=speculation,
            draft_width=draft_width,
            max_tokens=max_tokens,
            logprobs=logprobs,
            n=n,
            priority=priority,
        )
        request_id, metadata = call_metadata(self._options, request_id, tenant)
        with converted_aio(request_id):
            call = self._stub.Generate(request, timeout=timeout_s, metadata=metadata)
        return AsyncGenerationStream(call, request_id, n)

    async def count_tokens(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        system: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        model: str = "",
        return_ids: bool = False,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> TokenCount:
        """Counts the tokens a prompt would take, chat template included."""
        options = PromptOptions(prompt, raw, system, chat_template_kwargs)
        request = count_tokens_request(options, model=model, return_ids=return_ids)
        return _responses.token_count(await self._unary(self._stub.CountTokens, request, timeout_s, request_id))

    async def model(self, *, timeout_s: float | None = None, request_id: str | None = None) -> Model:
        """Describes the served target and its drafter."""
        request = decode_pb2.GetModelRequest()
        return _responses.model(await self._unary(self._stub.GetModel, request, timeout_s, request_id))

    async def server_info(self, *, timeout_s: float | None = None, request_id: str | None = None) -> ServerInfo:
        """Describes the server: version, limits, load."""
        request = decode_pb2.GetServerInfoRequest()
        return _responses.server_info(await self._unary(self._stub.GetServerInfo, request, timeout_s, request_id))


class _Call(Protocol):
    """What a stream needs of gRPC's call object."""

    def __aiter__(self) -> AsyncIterator[decode_pb2.GenerateResponse]: ...

    def cancel(self) -> bool: ...


class AsyncGenerationStream(AsyncIterator[Event]):
    """The events of one generation, as they arrive.

    Leaving an `async for` loop or an `async with` block over it early, or dropping it, cancels the
    generation. `anext` takes a single event and leaves it running.
    """

    def __init__(self, call: _Call, request_id: str, n: int) -> None:
        self._call = call
        self._messages = aiter(call)
        self._request_id = request_id
        self._answers = Answers(n, request_id)
        self._arrived: deque[Event] = deque()
        self._error: BurstgateError | None = None

    @property
    def request_id(self) -> str:
        """Names the call in the server's log."""
        return self._request_id

    async def __aiter__(self) -> AsyncIterator[Event]:
        try:
            while (event := await anext(self, None)) is not None:
                yield event
        finally:
            self.cancel()

    async def __anext__(self) -> Event:
        # gRPC reports a stream's error once and a plain end after that.
        if self._error is not None:
            raise self._error
        try:
            return await self._read()
        except BurstgateError as error:
            self._error = error
            raise

    def cancel(self) -> None:
        """Cancels the generation; does nothing once it has ended."""
        self._call.cancel()

    async def result(self) -> Result:
        """The whole answer, reading what is left of the stream first."""
        await self._read_all()
        return self._answers.only()

    async def results(self) -> tuple[Result, ...]:
        """Every answer of a generation with n above 1, reading what is left of the stream first."""
        await self._read_all()
        return self._answers.all()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        # The call and its message iterator refer to each other, so the call alone would outlive this object.
        with suppress(RuntimeError):  # the event loop is closed, and the call with it
            self.cancel()

    async def _read(self) -> Event:
        while not self._arrived:
            with converted_aio(self._request_id):
                message = await anext(self._messages)
            self._arrived.extend(_responses.events(message))
        event = self._arrived.popleft()
        self._answers.add(event)
        return event

    async def _read_all(self) -> None:
        async for _ in self:
            pass


class AsyncPolicyClient(_Connected):
    """Reads, questions and overrules the verdicts of a policy service. Takes ConnectOptions, or just the address."""

    def __init__(self, options: ConnectOptions | str = ConnectOptions("127.0.0.1:50052")) -> None:  # noqa: B008 - frozen
        super().__init__(options)
        self._stub = admin_pb2_grpc.PolicyAdminServiceStub(self._channel)  # type: ignore[no-untyped-call]

    async def verdicts(
        self,
        wanted: VerdictFilter = VerdictFilter(),  # noqa: B008 - frozen
        *,
        page_size: int = 100,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> AsyncIterator[Verdict]:
        """Every verdict that is wanted, ordered by key hash, a page a call."""
        token = ""
        while True:
            request = admin_pb2.ListVerdictsRequest(
                page_size=page_size, page_token=token, filter=_policy_requests.verdict_filter(wanted)
            )
            page = await self._unary(self._stub.ListVerdicts, request, timeout_s, request_id)
            for view in page.verdicts:
                yield _responses.verdict(view)
            token = page.next_page_token
            if not token:
                return

    async def verdict(self, key_hash: str, *, timeout_s: float | None = None, request_id: str | None = None) -> Verdict:
        """The verdict of one pairing."""
        request = admin_pb2.GetVerdictRequest(key_hash=key_hash)
        return _responses.verdict((await self._unary(self._stub.GetVerdict, request, timeout_s, request_id)).verdict)

    async def watch(
        self,
        wanted: VerdictFilter = VerdictFilter(),  # noqa: B008 - frozen
        *,
        resume_token: str = "",
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[VerdictChange, None]:
        """Every change of a verdict, for ever: first the current ones, or what changed after the token.

        The call ends when the iterator is closed or dropped.
        """
        request = admin_pb2.WatchVerdictsRequest(
            filter=_policy_requests.verdict_filter(wanted), resume_token=resume_token
        )
        request_id, metadata = call_metadata(self._options, request_id)
        call = self._stub.WatchVerdicts(request, timeout=timeout_s, metadata=metadata)
        try:
            with converted_aio(request_id):
                async for message in call:
                    yield _responses.verdict_change(message)
        finally:
            call.cancel()

    async def pin(
        self,
        key_hash: str,
        *,
        speculate: bool,
        reason: str,
        author: str,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> Verdict:
        """Turns speculation on or off for a pairing, above every measurement, for a time or until unpinned."""
        request = _policy_requests.pin_request(key_hash, speculate=speculate, reason=reason, author=author, ttl_s=ttl_s)
        return _responses.verdict((await self._unary(self._stub.PinVerdict, request, timeout_s, request_id)).verdict)

    async def unpin(self, key_hash: str, *, timeout_s: float | None = None, request_id: str | None = None) -> Verdict:
        """Takes a pin back; does nothing where there is none."""
        request = admin_pb2.UnpinVerdictRequest(key_hash=key_hash)
        return _responses.verdict((await self._unary(self._stub.UnpinVerdict, request, timeout_s, request_id)).verdict)

    async def reset(self, key_hash: str, *, timeout_s: float | None = None, request_id: str | None = None) -> Verdict:
        """Forgets what was measured of a pairing: it is profiled again."""
        request = admin_pb2.ResetVerdictRequest(key_hash=key_hash)
        return _responses.verdict((await self._unary(self._stub.ResetVerdict, request, timeout_s, request_id)).verdict)

    async def export_hints(
        self,
        wanted: VerdictFilter = VerdictFilter(),  # noqa: B008 - frozen
        *,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> tuple[str, ...]:
        """What is remembered of the wanted pairings: one JSON document each."""
        request = admin_pb2.ExportHintsRequest(filter=_policy_requests.verdict_filter(wanted))
        return tuple((await self._unary(self._stub.ExportHints, request, timeout_s, request_id)).hints)

    async def import_hints(
        self,
        hints: Iterable[str],
        *,
        overwrite: bool = False,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> tuple[ImportedHint, ...]:
        """Stores documents of `export_hints`, as far as they are newer, or all of them; says what became of each."""
        request = _policy_requests.import_request(hints, overwrite=overwrite)
        return _responses.imported_hints(await self._unary(self._stub.ImportHints, request, timeout_s, request_id))

    async def explain(
        self,
        lane_id: str,
        situation: Situation | None = None,
        *,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> Explanation:
        """The rules behind a lane's last grant, or behind what it would be granted in a situation."""
        request = _policy_requests.explain_request(lane_id, situation)
        return _responses.explanation(await self._unary(self._stub.ExplainGrant, request, timeout_s, request_id))

    async def replay(
        self,
        trace: str | Mapping[str, Any],
        settings: Mapping[str, str] = MappingProxyType({}),
        *,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> Replay:
        """What the core would have decided on a trace, which is a ReplayTraceRequest as JSON, and its cost."""
        request = _policy_requests.replay_request(trace, settings)
        return _responses.replay(await self._unary(self._stub.ReplayTrace, request, timeout_s, request_id))

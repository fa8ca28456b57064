"""How tests talk to a decode service: requests in a line, streams read to their end, the account checked.

`Decode` speaks the contract through the generated stubs, so that a test sees exactly what is on the wire.
Nothing here imports mlx: the process under test owns it.
"""

import concurrent.futures
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from burstgate.decode.v1 import decode_pb2, decode_pb2_grpc

OFF = decode_pb2.SPECULATION_MODE_OFF
ON = decode_pb2.SPECULATION_MODE_ON
AUTO = decode_pb2.SPECULATION_MODE_AUTO

COUNT = "Count from one to ten in words."
# Generous: the machine may be busy with other tests, and a step then takes many times as long.
CALL_S = 240.0


@dataclass
class Answer:
    """One of a request's answers, as it was streamed."""

    deltas: list[decode_pb2.GenerateDelta] = field(default_factory=list)
    completion: decode_pb2.GenerateCompletion | None = None
    first_at: float = 0.0
    last_at: float = 0.0

    @property
    def done(self) -> decode_pb2.GenerateCompletion:
        assert self.completion is not None, "the answer has no completion"
        return self.completion

    @property
    def tokens(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def logprobs(self) -> list[decode_pb2.TokenLogprobs]:
        return [entry for delta in self.deltas for entry in delta.logprobs]


def ask(
    message: str = COUNT,
    *,
    mode: Any = OFF,
    max_tokens: int = 16,
    max_draft_width: int = 0,
    system: str = "",
    **fields: Any,
) -> decode_pb2.GenerateRequest:
    """A request; `fields` are further fields of it, among them `text` or `tokens` in place of the message."""
    if not {"text", "tokens", "chat"} & fields.keys():
        messages = [decode_pb2.ChatMessage(role="user", content=message)]
        fields["chat"] = decode_pb2.ChatPrompt(messages=messages, system=system)
    speculation = decode_pb2.SpeculationOptions(mode=mode, max_draft_width=max_draft_width)
    return decode_pb2.GenerateRequest(max_tokens=max_tokens, speculation=speculation, **fields)


def sampled(temperature: float = 0.9, seed: int = 11, **options: Any) -> decode_pb2.SamplingOptions:
    return decode_pb2.SamplingOptions(temperature=temperature, seed=seed, **options)


def events_of(response: decode_pb2.GenerateResponse) -> list[Any]:
    """The deltas of a message, or its completion."""
    kind = response.WhichOneof("event")
    return list(response.deltas.deltas) if kind == "deltas" else [getattr(response, kind or "")]


class Decode:
    """One decode service."""

    def __init__(self, address: str, pid: int = 0) -> None:
        self.address = address
        self.pid = pid
        self.channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self.stub: Any = decode_pb2_grpc.DecodeServiceStub(self.channel)  # type: ignore[no-untyped-call]

    def answers(self, request: decode_pb2.GenerateRequest) -> list[Answer]:
        """Reads a stream to its end; an answer's completion must be its last event."""
        found = [Answer() for _ in range(request.n or 1)]
        for response in self.stub.Generate(request, timeout=CALL_S):
            for event in events_of(response):
                answer = found[event.index]
                assert answer.completion is None, "an event after the completion"
                answer.last_at = time.monotonic()
                answer.first_at = answer.first_at or answer.last_at
                if response.HasField("completion"):
                    answer.completion = event
                else:
                    answer.deltas.append(event)
        assert all(answer.completion is not None for answer in found)
        return found

    def answer(self, request: decode_pb2.GenerateRequest) -> Answer:
        """The answer of a request for one."""
        (found,) = self.answers(request)
        return found

    def at_once(self, requests: Sequence[decode_pb2.GenerateRequest]) -> list[Answer]:
        """Answers of requests that run at the same time."""
        with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(self.answer, requests))

    def refused(self, request: decode_pb2.GenerateRequest) -> grpc.RpcError:
        """The error of a request that must be refused before anything is streamed."""
        try:
            first = next(iter(self.stub.Generate(request, timeout=CALL_S)))
        except grpc.RpcError as error:
            return error
        raise AssertionError(f"the request was not refused but answered with {first}")

    def info(self) -> decode_pb2.GetServerInfoResponse:
        response: decode_pb2.GetServerInfoResponse = self.stub.GetServerInfo(
            decode_pb2.GetServerInfoRequest(), timeout=30
        )
        return response

    def token_ids(self, request: decode_pb2.GenerateRequest) -> list[int]:
        """What CountTokens makes of the request's prompt."""
        counted = decode_pb2.CountTokensRequest(return_ids=True)
        match request.WhichOneof("prompt"):
            case "chat":
                counted.chat.CopyFrom(request.chat)
            case "text":
                counted.text = request.text
            case _:
                counted.tokens.CopyFrom(request.tokens)
        response = self.stub.CountTokens(counted, timeout=30)
        assert response.prompt_tokens == len(response.ids)
        return list(response.ids)

    def wait_rows(self, active: int, limit_s: float) -> None:
        """Waits until so many answers are being generated and none waits."""
        until(lambda: (self.info().active_rows, self.info().queued_rows) == (active, 0), limit_s)

    def close(self) -> None:
        self.channel.close()


def until(condition: Callable[[], bool], limit_s: float) -> None:
    """Polls for a condition."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true within {limit_s:.0f} s"
        time.sleep(0.02)


def details_of(error: grpc.RpcError) -> dict[str, Any]:
    """The details of a failed call by the names of their types; empty if it has none."""
    status = rpc_status.from_call(error)
    found: dict[str, Any] = {}
    for packed in status.details if status is not None else ():
        kind = getattr(error_details_pb2, packed.type_url.rpartition(".")[2])
        detail = kind()
        assert packed.Unpack(detail)
        found[kind.__name__] = detail
    return found


def code_of(error: grpc.RpcError) -> grpc.StatusCode:
    assert isinstance(error, grpc.Call)
    code: grpc.StatusCode = error.code()
    return code


def check_account(answer: Answer, widest: int = 8) -> None:
    """Everything a completion says must follow from what was streamed."""
    done, stats = answer.done, answer.done.speculation
    tokens = answer.tokens
    steps = [delta for delta in answer.deltas if delta.token_ids]
    assert done.usage.completion_tokens == len(tokens)
    for delta in steps:
        assert len(delta.drafted) == len(delta.token_ids)
        assert 1 <= delta.draft_width <= widest
        assert len(delta.token_ids) <= delta.draft_width
        # A step's last token is the target's own choice, unless the answer ended before it.
        assert delta is steps[-1] or not delta.drafted[-1] or stats.redecided
    numbers = [delta.round for delta in steps]
    assert numbers == sorted(set(numbers))
    assert numbers[0] >= 1
    assert numbers[-1] <= stats.rounds + stats.plain_steps
    # Drafts of the last round that lie behind the answer's end count as accepted and are not streamed.
    cut = stats.accepted + stats.rounds - stats.redecided + stats.plain_steps - len(tokens)
    assert 0 <= cut < widest
    drafted = sum(flag for delta in steps for flag in delta.drafted)
    assert stats.accepted - cut <= drafted <= stats.accepted <= stats.proposed
    assert sum(stats.accepted_by_position) == stats.accepted
    assert list(stats.accepted_by_position) == sorted(stats.accepted_by_position, reverse=True)
    assert sum(count.rounds for count in stats.draft_widths) == stats.rounds
    assert sum(count.rounds * (count.draft_width - 1) for count in stats.draft_widths) == stats.proposed
    assert stats.mean_accepted_length == (stats.accepted / stats.rounds if stats.rounds else 0.0)
    assert {(count.mode, count.reason) for count in stats.bursts} == {(delta.mode, delta.reason) for delta in steps}
    times = done.timings
    assert min(times.queue_ms, times.prefill_ms, times.decode_ms) >= 0.0
    assert times.queue_ms + times.prefill_ms <= times.time_to_first_token_ms <= times.total_ms
    assert times.time_to_first_token_ms + times.decode_ms <= times.total_ms + 0.001
    if len(tokens) > 1 and times.decode_ms > 0:
        assert abs(times.tokens_per_second * times.decode_ms / 1e3 - (len(tokens) - 1)) < 1e-6

"""Requests that cannot be served: the status, the reason, the field; and nothing else is disturbed."""

import math
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf.struct_pb2 import Struct
from tests.integration.decode.asking import AUTO, ON, Decode, ask, code_of, details_of

from burstgate.decode.v1 import decode_pb2

INVALID = grpc.StatusCode.INVALID_ARGUMENT
VOCAB = 49152


def chat(*messages: tuple[str, str], system: str = "", **variables: Any) -> decode_pb2.GenerateRequest:
    said = [decode_pb2.ChatMessage(role=role, content=content) for role, content in messages]
    kwargs = Struct()
    kwargs.update(variables)
    prompt = decode_pb2.ChatPrompt(messages=said, system=system, chat_template_kwargs=kwargs if variables else None)
    return ask(chat=prompt)


def tokens(*ids: int) -> decode_pb2.GenerateRequest:
    return ask(tokens=decode_pb2.TokenPrompt(ids=ids))


def sampling(**options: Any) -> decode_pb2.GenerateRequest:
    return ask(sampling=decode_pb2.SamplingOptions(**options))


def stop(**options: Any) -> decode_pb2.GenerateRequest:
    return ask(stop=decode_pb2.StopOptions(**options))


BAD_FIELDS = {
    "no prompt": (decode_pb2.GenerateRequest(), "prompt", "one of chat, text or tokens"),
    "chat without messages": (chat(), "chat.messages", "must not be empty"),
    "empty text": (ask(text=""), "text", "must not be empty"),
    "no tokens": (tokens(), "tokens.ids", "must not be empty"),
    "unknown role": (chat(("user", "a"), ("wizard", "b")), "chat.messages[1].role", "one of system, user"),
    "role in capitals": (chat(("User", "a")), "chat.messages[0].role", "one of system, user"),
    "two system messages": (chat(("system", "a"), ("user", "b"), system="c"), "chat.system", "must be empty"),
    "template argument": (
        chat(("user", "a"), tokenize=False),
        "chat.chat_template_kwargs[tokenize]",
        "is no variable",
    ),
    "template of one's own": (
        chat(("user", "a"), chat_template="{{ 1 }}"),
        "chat.chat_template_kwargs[chat_template]",
        "is no variable",
    ),
    "tools that are none": (chat(("user", "a"), tools="x"), "chat", "rejected by the chat template"),
    "prompt beyond the context": (tokens(*[504] * 8192), "prompt", "at most 8191 tokens for this model, got 8192"),
    "text beyond the context": (ask(text="a b " * 5000), "prompt", "at most 8191 tokens"),
    "max_tokens 0": (ask(max_tokens=0), "max_tokens", "greater than or equal to 1, got 0"),
    "max_tokens negative": (ask(max_tokens=-5), "max_tokens", "got -5"),
    "max_tokens huge": (ask(max_tokens=2**31 - 1), "max_tokens", "less than or equal to 1000000"),
    "temperature NaN": (sampling(temperature=math.nan), "sampling.temperature", "finite"),
    "temperature infinite": (sampling(temperature=math.inf), "sampling.temperature", "finite"),
    "temperature negative": (sampling(temperature=-0.1), "sampling.temperature", "got -0.1"),
    "temperature 11": (sampling(temperature=11.0), "sampling.temperature", "less than or equal to 10"),
    "top_p 2": (sampling(top_p=2.0), "sampling.top_p", "less than or equal to 1, got 2.0"),
    "top_p 0": (sampling(top_p=0.0), "sampling.top_p", "greater than 0, got 0.0"),
    "top_k -1": (sampling(top_k=-1), "sampling.top_k", "greater than or equal to 0, got -1"),
    "min_p 1": (sampling(min_p=1.0), "sampling.min_p", "less than 1, got 1.0"),
    "repetition_penalty 0": (sampling(repetition_penalty=0.0), "sampling.repetition_penalty", "greater than 0"),
    "presence_penalty 3": (sampling(presence_penalty=3.0), "sampling.presence_penalty", "less than or equal to 2"),
    "frequency_penalty NaN": (sampling(frequency_penalty=math.nan), "sampling.frequency_penalty", "finite"),
    "bias of an unknown token": (sampling(logit_bias={VOCAB: 1.0}), f"sampling.logit_bias[{VOCAB}]", "below 49152"),
    "bias too large": (sampling(logit_bias={7: 101.0}), "sampling.logit_bias[7]", "less than or equal to 100"),
    "bias NaN": (sampling(logit_bias={7: math.nan}), "sampling.logit_bias[7]", "finite"),
    "too many biases": (sampling(logit_bias=dict.fromkeys(range(1025), 0.0)), "sampling.logit_bias", "1024"),
    "10,000 stop strings": (stop(strings=[str(i) for i in range(10_000)]), "stop.strings", "at most 16"),
    "empty stop string": (stop(strings=["a", ""]), "stop.strings[1]", "at least 1"),
    "long stop string": (stop(strings=["a" * 257]), "stop.strings[0]", "at most 256 bytes, has 257"),
    "stop string of long bytes": (stop(strings=["🎉" * 65]), "stop.strings[0]", "at most 256 bytes, has 260"),
    "too many stop tokens": (stop(token_ids=range(65)), "stop.token_ids", "at most 64"),
    "unknown stop token": (stop(token_ids=[1, VOCAB]), "stop.token_ids[1]", f"below {VOCAB}"),
    "token beyond the vocabulary": (tokens(1, 2, VOCAB), "tokens.ids[2]", f"below {VOCAB}, got {VOCAB}"),
    "token of 32 bits": (tokens(2**32 - 1), "tokens.ids[0]", f"below {VOCAB}"),
    "n 9": (ask(n=9), "n", "less than or equal to 8, got 9"),
    "n -1": (ask(n=-1), "n", "greater than or equal to 0, got -1"),
    "logprobs 21": (ask(logprobs=21), "logprobs", "less than or equal to 20, got 21"),
    "logprobs -1": (ask(logprobs=-1), "logprobs", "got -1"),
    "max_draft_width 1": (ask(max_draft_width=1), "speculation.max_draft_width", "got 1"),
    "max_draft_width 65": (ask(max_draft_width=65), "speculation.max_draft_width", "got 65"),
    "max_draft_width -1": (ask(max_draft_width=-1), "speculation.max_draft_width", "got -1"),
    "unknown mode": (ask(mode=9), "speculation.mode", "got 9"),
    "unknown priority": (ask(priority=9), "priority", "got 9"),
    "long model name": (ask(model="m" * 257), "model", "at most 256"),
}


@pytest.mark.parametrize("name", BAD_FIELDS)
def test_a_bad_field_is_named_with_what_is_allowed(decode: Decode, name: str) -> None:
    request, field, allowed = BAD_FIELDS[name]
    error = decode.refused(request)
    assert code_of(error) is INVALID
    details = details_of(error)
    assert details["ErrorInfo"].domain == "burstgate.dev"
    assert details["ErrorInfo"].reason in ("INVALID_FIELD", "CHAT_TEMPLATE_REJECTED")
    (violation,) = details["BadRequest"].field_violations
    assert violation.field == field
    assert allowed in violation.description


def test_every_bad_field_of_a_request_is_named_at_once(decode: Decode) -> None:
    request = ask(n=9, max_tokens=0, sampling=decode_pb2.SamplingOptions(top_p=2.0, temperature=-1.0))
    found = details_of(decode.refused(request))["BadRequest"].field_violations
    assert {one.field for one in found} == {"n", "max_tokens", "sampling.top_p", "sampling.temperature"}


def test_more_violations_than_a_status_may_hold_are_cut_and_still_arrive(decode: Decode) -> None:
    request = ask(sampling=decode_pb2.SamplingOptions(logit_bias=dict.fromkeys(range(1000), 200.0)))
    error = decode.refused(request)
    assert code_of(error) is INVALID
    assert len(details_of(error)["BadRequest"].field_violations) == 8


def test_another_models_name_is_not_found(decode: Decode) -> None:
    counting = decode_pb2.CountTokensRequest(model="gpt-2", text="a")

    def count(_: Any) -> grpc.RpcError:
        with pytest.raises(grpc.RpcError) as caught:
            decode.stub.CountTokens(counting, timeout=30)
        return caught.value

    calls: list[Callable[[Any], grpc.RpcError]] = [decode.refused, count]
    for call in calls:
        error = call(ask(model="gpt-2"))
        assert code_of(error) is grpc.StatusCode.NOT_FOUND
        info = details_of(error)["ErrorInfo"]
        assert (info.reason, info.metadata["served"]) == ("UNKNOWN_MODEL", "smollm2-135m-instruct")
    assert decode.answer(ask(model="smollm2-135m-instruct", max_tokens=1)).tokens


@pytest.mark.parametrize("name", ["no prompt", "unknown role", "empty text", "token beyond the vocabulary"])
def test_counting_refuses_the_prompts_that_generating_refuses(decode: Decode, name: str) -> None:
    request, field, _ = BAD_FIELDS[name]
    with pytest.raises(grpc.RpcError) as caught:
        decode.token_ids(request) if request.WhichOneof("prompt") else decode.stub.CountTokens(
            decode_pb2.CountTokensRequest(), timeout=30
        )
    assert code_of(caught.value) is INVALID
    assert details_of(caught.value)["BadRequest"].field_violations[0].field == field


@pytest.mark.parametrize(
    "body",
    [b"\x0a\x02\xc3\x28", b"\x1a\x01\xff", b"\xff\xff\xff", b"\x12\x7f\x00", b"\x0a\x05ab"],
    ids=["model", "text", "noise", "cut chat", "cut string"],
)
def test_bytes_that_are_no_request_are_an_invalid_argument(decode: Decode, body: bytes) -> None:
    call: Any = decode.channel.unary_stream("/burstgate.decode.v1.DecodeService/Generate")
    with pytest.raises(grpc.RpcError) as caught:
        list(call(body, timeout=30))
    assert code_of(caught.value) is INVALID
    assert details_of(caught.value)["ErrorInfo"].reason == "UNDECODABLE_REQUEST"


def test_a_message_beyond_the_limit_is_refused_by_its_size(small: Decode) -> None:
    error = small.refused(ask(text="a" * 70_000))
    assert code_of(error) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert small.answer(ask(max_tokens=1)).tokens


def test_speculation_cannot_be_asked_of_a_server_without_a_drafter(small: Decode) -> None:
    error = small.refused(ask(mode=ON))
    assert code_of(error) is grpc.StatusCode.FAILED_PRECONDITION
    assert details_of(error)["ErrorInfo"].reason == "NO_DRAFTER"
    answer = small.answer(ask(mode=AUTO, max_tokens=3))
    assert answer.done.speculation.plain_steps == 3
    assert answer.done.speculation.explanation == "the server has no drafter"
    assert not small.stub.GetModel(decode_pb2.GetModelRequest(), timeout=30).HasField("drafter")


def test_after_all_of_it_a_good_request_is_served_and_no_row_is_held(decode: Decode) -> None:
    for request, _, _ in BAD_FIELDS.values():
        decode.refused(request)
    assert len(decode.answer(ask(max_tokens=4)).tokens) == 4
    decode.wait_rows(0, 10)

"""A stranger with grpcurl can find out what is served, and use it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.decode.asking import COUNT, Decode, ask

SERVICE = "burstgate.decode.v1.DecodeService"
Grpcurl = Callable[..., str]


def messages(output: str) -> list[dict[str, Any]]:
    """The JSON documents that grpcurl writes one after another."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while output[at:].strip():
        at += len(output[at:]) - len(output[at:].lstrip())
        document, at = decoder.raw_decode(output, at)
        found.append(document)
    return found


def test_services_are_listed_and_described(decode: Decode, grpcurl: Grpcurl) -> None:
    assert grpcurl(decode.address, "list").split() == [
        SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    ]
    described = grpcurl(decode.address, "describe", SERVICE)
    for method in ("Generate", "CountTokens", "GetModel", "GetServerInfo"):
        assert f"rpc {method} " in described
    assert "SpeculationOptions speculation = 7" in grpcurl(
        decode.address, "describe", "burstgate.decode.v1.GenerateRequest"
    )


@pytest.mark.parametrize("service", ["", SERVICE])
def test_health_is_told_for_each_service(decode: Decode, grpcurl: Grpcurl, service: str) -> None:
    (answer,) = messages(grpcurl(decode.address, "grpc.health.v1.Health/Check", data={"service": service}))
    assert answer == {"status": "SERVING"}


def test_an_answer_is_streamed_to_the_command_line(decode: Decode, grpcurl: Grpcurl) -> None:
    request = {
        "chat": {"messages": [{"role": "user", "content": COUNT}]},
        "max_tokens": 6,
        "speculation": {"mode": "SPECULATION_MODE_ON"},
    }
    *deltas, last = messages(grpcurl(decode.address, f"{SERVICE}/Generate", data=request))
    text = "".join(message["delta"].get("text", "") for message in deltas)
    assert text == decode.answer(ask(max_tokens=6)).text
    completion = last["completion"]
    assert (completion.get("finishReason") or completion["finish_reason"]) == "FINISH_REASON_LENGTH"

"""What reaches the wire, and what is refused before it does."""

from __future__ import annotations

from typing import Any

import pytest

import burstgate
from burstgate import Message, Sampling, Stop
from burstgate.decode.v1 import decode_pb2


def sent(server: Any, prompt: Any = "hi", **options: Any) -> Any:
    with burstgate.Client(server.address) as client:
        client.generate(prompt, **options).results()
    return server.asked[-1].request


def refused(prompt: Any = "hi", **options: Any) -> burstgate.InvalidRequest:
    """Nobody listens at the address: what is refused here never left."""
    with (
        burstgate.Client("127.0.0.1:1") as client,
        pytest.raises(burstgate.InvalidRequest) as caught,
    ):
        client.generate(prompt, **options)
    return caught.value


def test_a_text_is_one_user_message_of_a_chat(server: Any) -> None:
    request = sent(server, "hi", system="be brief", chat_template_kwargs={"enable_thinking": False})
    assert [(m.role, m.content) for m in request.chat.messages] == [("user", "hi")]
    assert request.chat.system == "be brief"
    assert dict(request.chat.chat_template_kwargs) == {"enable_thinking": False}


def test_a_raw_text_goes_without_the_template(server: Any) -> None:
    assert sent(server, "hi", raw=True).text == "hi"


def test_messages_are_a_conversation(server: Any) -> None:
    request = sent(server, [Message("user", "1+1?"), Message("assistant", "2"), Message("user", "sure?")])
    assert [m.role for m in request.chat.messages] == ["user", "assistant", "user"]


def test_integers_are_token_ids(server: Any) -> None:
    assert list(sent(server, [5, 6, 7]).tokens.ids) == [5, 6, 7]


def test_options_left_out_are_left_out_on_the_wire(server: Any) -> None:
    request = sent(server)
    assert not request.HasField("sampling")
    assert not request.HasField("stop")
    assert not request.HasField("max_tokens")
    assert not request.HasField("logprobs")
    assert request.speculation.max_draft_width == 0


def test_every_option_reaches_its_field(server: Any) -> None:
    sampling = Sampling(0.7, 0.9, 40, 0.05, 1.1, 0.2, 0.3, {9: -1.5}, 2**64 - 1)
    request = sent(
        server,
        model="m",
        sampling=sampling,
        stop=Stop(strings=["END"], token_ids=[3], ignore_eos=True),
        speculation="on",
        draft_width=6,
        max_tokens=5,
        logprobs=0,
        n=2,
        priority="high",
    )
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "seed"):
        assert getattr(request.sampling, name) == getattr(sampling, name)
    assert request.sampling.frequency_penalty == 0.3
    assert dict(request.sampling.logit_bias) == {9: -1.5}
    assert (list(request.stop.strings), list(request.stop.token_ids)) == (["END"], [3])
    assert request.stop.ignore_eos
    assert (request.model, request.max_tokens, request.n) == ("m", 5, 2)
    assert request.HasField("logprobs")
    assert (request.speculation.mode, request.speculation.max_draft_width) == (2, 6)
    assert request.priority == decode_pb2.PRIORITY_HIGH


def test_a_zero_that_means_something_is_sent(server: Any) -> None:
    request = sent(server, sampling=Sampling(temperature=0.0), max_tokens=0)
    assert request.sampling.HasField("temperature")
    assert request.HasField("max_tokens")


@pytest.mark.parametrize(
    ("field", "prompt", "options"),
    [
        ("sampling.seed", "hi", {"sampling": Sampling(seed=-1)}),
        ("sampling.seed", "hi", {"sampling": Sampling(seed=2**64)}),
        ("sampling.top_k", "hi", {"sampling": Sampling(top_k=2**31)}),
        ("sampling.logit_bias", "hi", {"sampling": Sampling(logit_bias={-1: 1.0})}),
        ("stop.strings", "hi", {"stop": Stop(strings="END")}),
        ("stop.token_ids", "hi", {"stop": Stop(token_ids=[-1])}),
        ("max_tokens", "hi", {"max_tokens": 2**40}),
        ("n", "hi", {"n": 1.5}),
        ("speculation.mode", "hi", {"speculation": "maybe"}),
        ("priority", "hi", {"priority": "urgent"}),
        ("x-burstgate-tenant", "hi", {"tenant": ""}),
        ("x-burstgate-tenant", "hi", {"tenant": "x" * 65}),
        ("x-burstgate-tenant", "hi", {"tenant": "caf\u00e9"}),
        ("x-burstgate-tenant", "hi", {"tenant": "a\n"}),
        ("speculation.max_draft_width", "hi", {"draft_width": 0}),
        ("chat.messages[0].content", "bad \udcff", {}),
        ("text", "bad \udcff", {"raw": True}),
        ("chat.system", "hi", {"raw": True, "system": "s"}),
        ("chat.system", [1], {"system": "s"}),
        ("chat.chat_template_kwargs", [1], {"chat_template_kwargs": {"a": 1}}),
        ("chat.chat_template_kwargs", "hi", {"chat_template_kwargs": {"a": object()}}),
        ("tokens.ids", [-1], {}),
        ("tokens.ids", [1, Message("user", "x")], {}),
        ("prompt", [], {}),
        ("prompt", [Message("user", "x")], {"raw": True}),
        ("request_id", "hi", {"request_id": "two words"}),
        ("request_id", "hi", {"request_id": "x" * 65}),
    ],
)
def test_what_the_wire_cannot_carry_is_refused_with_the_fields_name(
    field: str, prompt: Any, options: dict[str, Any]
) -> None:
    error = refused(prompt, **options)
    assert [violation.field for violation in error.violations] == [field]
    assert error.reason == "INVALID_FIELD"
    assert str(error).startswith(f"{field}: ")


@pytest.mark.parametrize("address", ["", "localhost", "host:0", "host:70000", "host:port", "http://host:1", "a b:1"])
def test_a_bad_address_is_refused_at_once(address: str) -> None:
    with pytest.raises(burstgate.InvalidRequest, match="address"):
        burstgate.Client(address)


@pytest.mark.parametrize(
    "address",
    ["localhost:1", "[::1]:50051", "unix:/tmp/x.sock", "unix:x", "dns:///host:50051", "10.0.0.1:65535"],
)
def test_a_good_address_is_taken(address: str) -> None:
    burstgate.Client(address).close()


def test_half_a_client_certificate_is_refused() -> None:
    options = burstgate.ConnectOptions("h:1", tls=burstgate.TLS(private_key=b"k"))
    with pytest.raises(burstgate.InvalidRequest, match="belong together"):
        burstgate.Client(options)

"""Whatever is asked, the answer is tokens or a status that the service chose, and it goes on serving."""

import math
from collections.abc import Callable
from typing import Any

import grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.integration.decode.asking import OFF, ON, Answer, Decode, check_account, code_of

from burstgate.decode.v1 import decode_pb2

ALLOWED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.FAILED_PRECONDITION,
}
FEW = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

numbers = st.integers(-2, 70) | st.integers(-(2**31), 2**31 - 1)
wild = st.floats() | st.sampled_from([0.0, 1e-300, 1e-38, 1e-9, 1.0, 2.0])
text = st.text(max_size=12)
messages = st.builds(
    decode_pb2.ChatMessage, role=st.sampled_from(["user", "assistant", "system", "tool", "", "x"]), content=text
)
requests = st.builds(
    lambda prompt, **fields: decode_pb2.GenerateRequest(**prompt, **fields),
    prompt=st.one_of(
        st.builds(lambda one: {"text": one}, text),
        st.builds(
            lambda ids: {"tokens": decode_pb2.TokenPrompt(ids=ids)}, st.lists(st.integers(0, 50_000), max_size=6)
        ),
        st.builds(
            lambda said, system: {"chat": decode_pb2.ChatPrompt(messages=said, system=system)},
            st.lists(messages, max_size=3),
            st.just("") | text,
        ),
    ),
    model=st.just("") | text,
    max_tokens=st.integers(-1, 3),
    logprobs=st.none() | numbers,
    n=st.integers(-1, 9),
    group_deltas=st.booleans(),
    sampling=st.builds(
        decode_pb2.SamplingOptions,
        temperature=st.none() | wild,
        top_p=st.none() | wild,
        top_k=st.none() | numbers,
        min_p=st.none() | wild,
        seed=st.none() | st.integers(0, 2**64 - 1),
    ),
    stop=st.builds(decode_pb2.StopOptions, strings=st.lists(text, max_size=3), ignore_eos=st.booleans()),
    speculation=st.builds(decode_pb2.SpeculationOptions, mode=st.integers(0, 4), max_draft_width=st.just(0) | numbers),
)
# Inside every limit, and close to many.
edges = st.builds(
    decode_pb2.SamplingOptions,
    temperature=st.sampled_from([0.0, 1e-300, 1e-38, 1e-9, 0.5, 1.0, 10.0]),
    top_p=st.sampled_from([1e-300, 1e-38, 1e-9, 0.5, 1.0]),
    top_k=st.sampled_from([0, 1, 2, 49151, 49152, 2**31 - 1]),
    min_p=st.sampled_from([0.0, 1e-300, 0.5, 0.9999999999]),
    repetition_penalty=st.sampled_from([1e-300, 1e-9, 1.0, 10.0]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 2.0]),
    frequency_penalty=st.sampled_from([-2.0, 0.0, 2.0]),
    logit_bias=st.dictionaries(st.sampled_from([0, 2, 260, 49151]), st.sampled_from([-100.0, 0.0, 100.0])),
    seed=st.sampled_from([0, 1, 2**63, 2**64 - 1]),
)


@FEW
@given(request=requests)
def test_any_request_is_answered_or_refused(decode: Decode, request: Any) -> None:
    answers: list[Answer] = []
    assert status_of(lambda: answers.extend(decode.answers(request))) in ALLOWED
    for answer in answers:
        check_account(answer)
        check_numbers(answer)


@FEW
@given(data=st.binary(max_size=80))
def test_any_bytes_are_answered_or_refused(decode: Decode, data: bytes) -> None:
    # At most one token of an answer, whatever the bytes before say.
    body = data + decode_pb2.GenerateRequest(max_tokens=1).SerializeToString()
    call: Any = decode.channel.unary_stream("/burstgate.decode.v1.DecodeService/Generate")
    assert status_of(lambda: list(call(body, timeout=120))) in ALLOWED


@settings(FEW, max_examples=15)
@given(sampling=edges)
def test_options_at_their_edges_mean_the_same_with_speculation(decode: Decode, sampling: Any) -> None:
    prompt = decode_pb2.TokenPrompt(ids=[504, 260, 3550, 282, 260])
    stop = decode_pb2.StopOptions(ignore_eos=True)
    plain, on = (
        decode.answers(
            decode_pb2.GenerateRequest(
                tokens=prompt,
                sampling=sampling,
                stop=stop,
                max_tokens=4,
                logprobs=2,
                speculation=decode_pb2.SpeculationOptions(mode=mode, max_draft_width=3),
            )
        )[0]
        for mode in (OFF, ON)
    )
    assert plain.tokens == on.tokens
    assert plain.logprobs == on.logprobs
    check_numbers(plain)
    if sampling.temperature < 1e-30 or sampling.top_k == 1:
        assert all(entry.logprob == entry.top[0].logprob for entry in plain.logprobs)


def status_of(call: Callable[[], object]) -> grpc.StatusCode:
    try:
        call()
    except grpc.RpcError as error:
        return code_of(error)
    return grpc.StatusCode.OK


def check_numbers(answer: Answer) -> None:
    """Every log-probability is one."""
    for entry in answer.logprobs:
        assert entry.logprob <= 1e-6
        assert not math.isnan(entry.logprob)
        assert not any(math.isnan(one.logprob) for one in entry.top)


def test_after_all_of_it_no_row_is_held(decode: Decode) -> None:
    decode.wait_rows(0, 30)

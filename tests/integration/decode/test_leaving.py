"""Clients that leave, stall or come too many: a row is held by nobody for longer than a step."""

import contextlib
import signal
import subprocess
import sys
import time
from typing import Any

import grpc
import pytest
from tests.integration.decode.asking import AUTO, OFF, ON, Decode, ask, code_of, details_of, until

from burstgate.decode.v1 import decode_pb2, decode_pb2_grpc

# A step takes a tenth of a second, or several on a machine that is busy with other tests.
FREED_S = 10.0
ENDLESS = decode_pb2.StopOptions(ignore_eos=True)


def endless(mode: Any = OFF, **fields: Any) -> decode_pb2.GenerateRequest:
    return ask("Write a long story.", mode=mode, max_tokens=4000, stop=ENDLESS, **fields)


@pytest.mark.parametrize("mode", [OFF, ON, AUTO])
def test_a_cancelled_stream_frees_its_rows(decode: Decode, mode: Any) -> None:
    call = decode.stub.Generate(endless(mode, n=2))
    next(call)
    assert decode.info().active_rows == 2
    call.cancel()
    decode.wait_rows(0, FREED_S)


def test_a_stream_cancelled_before_its_first_token_frees_its_row(decode: Decode) -> None:
    prompt = decode_pb2.TokenPrompt(ids=[504 + i for i in range(3000)])
    call = decode.stub.Generate(ask(tokens=prompt, max_tokens=4000))
    until(lambda: decode.info().active_rows == 1, FREED_S)
    call.cancel()
    decode.wait_rows(0, FREED_S)


def test_a_deadline_ends_the_stream_and_frees_its_row(decode: Decode) -> None:
    call = decode.stub.Generate(endless(), timeout=1.5)
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert code_of(caught.value) is grpc.StatusCode.DEADLINE_EXCEEDED
    decode.wait_rows(0, FREED_S)


CLIENT = """
import sys, grpc
from burstgate.decode.v1 import decode_pb2, decode_pb2_grpc
stub = decode_pb2_grpc.DecodeServiceStub(grpc.insecure_channel(sys.argv[1]))
request = decode_pb2.GenerateRequest.FromString(bytes.fromhex(sys.argv[2]))
for response in stub.Generate(request):
    print("token", flush=True)
"""


def test_a_killed_client_frees_its_row(decode: Decode) -> None:
    command = [sys.executable, "-c", CLIENT, decode.address, endless().SerializeToString().hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "token\n"
        assert decode.info().active_rows == 1
        client.send_signal(signal.SIGKILL)
    decode.wait_rows(0, FREED_S)


def test_a_client_that_leaves_its_stream_unread_is_cut_off(small: Decode) -> None:
    # Two kilobytes of window: a handful of tokens with their alternatives fill it.
    options = [("grpc.http2.lookahead_bytes", 2048), ("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(small.address, options) as channel:
        stub: Any = decode_pb2_grpc.DecodeServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Generate(ask(max_tokens=480, logprobs=20, stop=ENDLESS), timeout=240)
        until(lambda: small.info().active_rows == 1, FREED_S)
        small.wait_rows(0, 30)
        left: list[decode_pb2.GenerateResponse] = []
        with pytest.raises(grpc.RpcError) as caught:
            left.extend(call)
        assert code_of(caught.value) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details_of(caught.value)["ErrorInfo"].reason == "CLIENT_STALLED"
        # The row was freed long before its answer was complete.
        assert len(left) < 240
    assert small.answer(ask(max_tokens=1)).tokens


def test_a_full_queue_refuses_whole_requests_and_says_when_to_come_back(small: Decode) -> None:
    with contextlib.ExitStack() as held:
        calls = [small.stub.Generate(endless()) for _ in range(2)]
        for call in calls:
            held.callback(call.cancel)
            next(call)
        waiting = small.stub.Generate(endless())
        held.callback(waiting.cancel)
        until(lambda: (small.info().active_rows, small.info().queued_rows) == (2, 1), FREED_S)
        error = small.refused(ask(max_tokens=1))
        assert code_of(error) is grpc.StatusCode.RESOURCE_EXHAUSTED
        details = details_of(error)
        assert details["ErrorInfo"].reason == "QUEUE_FULL"
        assert details["RetryInfo"].retry_delay.ToMilliseconds() > 0
        # A place that becomes free goes to the one that waits.
        calls[0].cancel()
        assert next(waiting).delta.token_ids
    small.wait_rows(0, FREED_S)
    with contextlib.suppress(grpc.RpcError):
        list(waiting)


def test_all_answers_of_a_request_are_taken_or_none(small: Decode) -> None:
    error = small.refused(ask(n=4))
    assert code_of(error) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (small.info().active_rows, small.info().queued_rows) == (0, 0)
    assert [len(answer.tokens) for answer in small.answers(ask(n=3, max_tokens=2))] == [2, 2, 2]


def test_a_request_that_is_cancelled_while_it_waits_leaves_the_queue(small: Decode) -> None:
    running = small.stub.Generate(endless(n=2))
    next(running)
    waiting = small.stub.Generate(endless())
    until(lambda: small.info().queued_rows == 1, FREED_S)
    waiting.cancel()
    small.wait_rows(2, FREED_S)
    running.cancel()
    small.wait_rows(0, FREED_S)


def test_time_in_the_queue_is_told(small: Decode) -> None:
    running = small.stub.Generate(endless(n=2))
    next(running)
    waiting = small.stub.Generate(ask(max_tokens=1))
    until(lambda: small.info().queued_rows == 1, FREED_S)
    time.sleep(0.3)
    running.cancel()
    completions = [response.completion for response in waiting if response.HasField("completion")]
    assert completions[0].timings.queue_ms > 250

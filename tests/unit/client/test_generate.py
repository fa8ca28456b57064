"""Generation through both clients: what is sent, what comes back, and what leaving early does."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

import burstgate
from burstgate.decode.v1 import decode_pb2

# Cancelling takes about a millisecond; the rest is for a busy machine.
CANCEL_S = 10


@pytest.fixture
def endless(server: Any, messages: Any) -> Any:
    """A server whose answer never ends by itself."""

    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        while True:
            yield messages.delta(0, "x", (1,))
            await asyncio.sleep(0.01)

    server.generate = script
    return server


def test_a_stream_gives_its_deltas_then_its_completion(server: Any) -> None:
    with burstgate.Client(server.address) as client:
        first, second, last = client.generate("hi")
    assert first == burstgate.Delta(
        index=0,
        text="Hello",
        token_ids=(11,),
        drafted=(False,),
        round=1,
        mode=burstgate.BurstMode.PLAIN,
        draft_width=1,
        reason=burstgate.GrantReason.FALLBACK_STATIC,
        explanation="",
        logprobs=(),
    )
    assert isinstance(second, burstgate.Delta)
    assert second.drafted == (True, False)
    assert isinstance(last, burstgate.Completion)
    assert last.finish_reason is burstgate.FinishReason.EOS
    assert last.stop_string is None
    assert last.usage.completion_tokens == 3


def test_a_result_joins_what_is_left_of_the_stream_with_what_was_read(server: Any) -> None:
    with burstgate.Client(server.address) as client:
        stream = client.generate("hi", request_id="mine-1")
        assert isinstance(next(stream), burstgate.Delta)
        result = stream.result()
    assert result.text == "Hello world"
    assert result.token_ids == (11, 12, 13)
    assert result.drafted == (False, True, False)
    assert result.request_id == "mine-1"


async def test_an_aio_result_equals_the_sync_one(server: Any) -> None:
    async with burstgate.AsyncClient(server.address) as client:
        stream = client.generate("hi", request_id="mine-1")
        await anext(stream)
        from_aio = await stream.result()
    with burstgate.Client(server.address) as client:
        assert from_aio == client.generate("hi", request_id="mine-1").result()


def test_several_answers_are_told_apart_and_have_no_single_result(server: Any) -> None:
    with burstgate.Client(server.address) as client:
        stream = client.generate("hi", n=3)
        assert [(answer.index, answer.text, answer.seed) for answer in stream.results()] == [
            (index, "Hello world", index) for index in range(3)
        ]
        with pytest.raises(ValueError, match="results"):
            stream.result()


@pytest.fixture
def grouping(server: Any, messages: Any) -> Any:
    """A server that sends a step's deltas together, as far as it is asked to."""

    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        step = [messages.delta(index, f"{index} ", (index,)).delta for index in range(request.n or 1)]
        if request.group_deltas:
            yield decode_pb2.GenerateResponse(deltas=decode_pb2.GenerateDeltas(deltas=step))
        else:
            for delta in step:
                yield decode_pb2.GenerateResponse(delta=delta)
        for index in range(request.n or 1):
            yield messages.completion(index)

    server.generate = script
    return server


def test_several_answers_are_asked_for_in_groups_and_told_one_by_one(grouping: Any) -> None:
    with burstgate.Client(grouping.address) as client:
        events = list(client.generate("hi", n=3))
        assert [(event.index, type(event)) for event in events] == [
            *((index, burstgate.Delta) for index in range(3)),
            *((index, burstgate.Completion) for index in range(3)),
        ]
        assert [answer.text for answer in client.generate("hi", n=3).results()] == ["0 ", "1 ", "2 "]
        assert client.generate("hi").result().text == "0 "
    assert [one.request.group_deltas for one in grouping.asked] == [True, True, False]


async def test_groups_are_told_one_by_one_by_the_aio_client_too(grouping: Any) -> None:
    async with burstgate.AsyncClient(grouping.address) as client:
        stream = client.generate("hi", n=2)
        assert [(await anext(stream)).index for _ in range(2)] == [0, 1]
        assert [answer.text for answer in await stream.results()] == ["0 ", "1 "]


def test_a_stream_that_ends_without_its_completion_is_an_error(server: Any, messages: Any) -> None:
    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        yield messages.delta(0, "half", (1,))

    server.generate = script
    with burstgate.Client(server.address) as client, pytest.raises(burstgate.Internal, match="0 of 1"):
        client.generate("hi").result()


def test_an_event_and_an_enum_value_of_a_newer_server_are_harmless(server: Any, messages: Any) -> None:
    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        yield decode_pb2.GenerateResponse()
        yield messages.delta(0, "x", (1,), mode=99, reason=99)
        yield messages.completion(0, finish_reason=99)

    server.generate = script
    with burstgate.Client(server.address) as client:
        only_delta, last = client.generate("hi")
    assert isinstance(only_delta, burstgate.Delta)
    assert only_delta.mode is burstgate.BurstMode.UNSPECIFIED
    assert isinstance(last, burstgate.Completion)
    assert last.finish_reason is burstgate.FinishReason.UNSPECIFIED


def test_the_request_id_and_the_callers_metadata_travel_with_the_call(server: Any) -> None:
    options = burstgate.ConnectOptions(server.address, metadata=[("authorization", "Bearer x")])
    with burstgate.Client(options) as client:
        stream = client.generate("hi")
        stream.result()
    assert server.asked[0].metadata["x-request-id"] == stream.request_id
    assert server.asked[0].metadata["authorization"] == "Bearer x"


async def test_a_tenant_travels_with_its_call_and_stands_in_for_the_connections(server: Any) -> None:
    options = burstgate.ConnectOptions(server.address, metadata=[("x-burstgate-tenant", "all")])
    with burstgate.Client(options) as client:
        client.generate("hi").result()
        client.generate("hi", tenant="mine").result()
    async with burstgate.AsyncClient(server.address) as aio_client:
        await aio_client.generate("hi", tenant="mine").result()
        await aio_client.generate("hi").result()
    assert [asked.metadata.get("x-burstgate-tenant") for asked in server.asked] == ["all", "mine", "mine", None]


def test_a_generation_has_no_deadline_of_its_own_and_a_unary_call_has(server: Any) -> None:
    with burstgate.Client(server.address) as client:
        client.generate("hi").result()
        client.generate("hi", timeout_s=50).result()
        client.model()
    without, with_timeout, unary = (asked.time_remaining_s for asked in server.asked)
    assert without is None
    # The wire rounds a deadline up.
    assert 0 < with_timeout < 52
    assert 0 < unary < 11


def test_breaking_out_of_the_loop_cancels_while_the_stream_is_still_held(endless: Any) -> None:
    with burstgate.Client(endless.address) as client:
        stream = client.generate("hi")
        for _ in stream:
            break
        assert endless.left.wait(CANCEL_S)
        with pytest.raises(burstgate.Cancelled):
            stream.result()


def test_an_exception_in_the_loop_cancels(endless: Any) -> None:
    with burstgate.Client(endless.address) as client:
        stream = client.generate("hi")
        with pytest.raises(ZeroDivisionError):
            [1 // len(event.drafted) for event in stream]
        assert endless.left.wait(CANCEL_S)


def test_leaving_the_with_block_cancels(endless: Any) -> None:
    with burstgate.Client(endless.address) as client:
        with client.generate("hi") as stream:
            next(stream)
        assert endless.left.wait(CANCEL_S)


def test_dropping_the_stream_cancels(endless: Any) -> None:
    with burstgate.Client(endless.address) as client:
        stream = client.generate("hi")
        next(stream)
        del stream
        assert endless.left.wait(CANCEL_S)


def test_cancelling_from_another_thread_ends_the_loop_as_cancelled(endless: Any) -> None:
    with burstgate.Client(endless.address) as client:
        stream = client.generate("hi")
        timer = threading.Timer(0.1, stream.cancel)
        timer.start()
        with pytest.raises(burstgate.Cancelled) as caught:
            list(stream)
        timer.join()
        assert caught.value.request_id == stream.request_id
        assert endless.left.wait(CANCEL_S)


def test_closing_the_client_ends_its_streams_as_cancelled(endless: Any) -> None:
    client = burstgate.Client(endless.address)
    timer = threading.Timer(0.1, client.close)
    timer.start()
    with pytest.raises(burstgate.Cancelled):
        list(client.generate("hi"))
    timer.join()


def test_a_deadline_ends_the_stream_as_deadline_exceeded(endless: Any) -> None:
    with burstgate.Client(endless.address) as client:
        stream = client.generate("hi", timeout_s=0.2)
        with pytest.raises(burstgate.DeadlineExceeded):
            list(stream)
        with pytest.raises(burstgate.DeadlineExceeded):
            stream.result()


async def test_breaking_out_of_an_aio_loop_cancels_while_the_stream_is_still_held(endless: Any) -> None:
    async with burstgate.AsyncClient(endless.address) as client:
        stream = client.generate("hi")
        async for _ in stream:
            break
        assert await asyncio.to_thread(endless.left.wait, CANCEL_S)
        with pytest.raises(burstgate.Cancelled):
            await stream.result()


async def test_dropping_an_aio_stream_cancels_without_the_cycle_collector(endless: Any) -> None:
    gc.disable()
    try:
        async with burstgate.AsyncClient(endless.address) as client:
            stream = client.generate("hi")
            await anext(stream)
            del stream
            assert await asyncio.to_thread(endless.left.wait, CANCEL_S)
    finally:
        gc.enable()


async def test_cancelling_an_aio_stream_ends_its_reader_as_cancelled_again_and_again(endless: Any) -> None:
    async with burstgate.AsyncClient(endless.address) as client:
        stream = client.generate("hi")
        asyncio.get_running_loop().call_later(0.1, stream.cancel)
        for _ in range(2):
            with pytest.raises(burstgate.Cancelled):
                await stream.result()


async def test_cancelling_the_task_that_reads_stays_a_task_cancellation(endless: Any) -> None:
    async with burstgate.AsyncClient(endless.address) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.generate("hi").result()
        assert await asyncio.to_thread(endless.left.wait, CANCEL_S)


async def test_an_aio_deadline_is_reported_again_when_the_result_is_asked_for(endless: Any) -> None:
    async with burstgate.AsyncClient(endless.address) as client:
        stream = client.generate("hi", timeout_s=0.2)
        for _ in range(2):
            with pytest.raises(burstgate.DeadlineExceeded):
                await stream.result()


async def test_a_slow_aio_reader_loses_no_event_of_a_stream_that_ended_long_ago(server: Any) -> None:
    async with burstgate.AsyncClient(server.address) as client:
        stream = client.generate("hi")
        await anext(stream)
        await asyncio.sleep(0.3)
        assert (await stream.result()).text == "Hello world"

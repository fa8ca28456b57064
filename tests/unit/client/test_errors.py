"""Every way a call fails reaches the caller as one of the library's errors, with what the server said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

import burstgate
from burstgate import errors


@pytest.fixture
def failing(server: Any, abort_with: Any) -> Any:
    """Returns a function that makes the server's next generations fail."""

    def fail_with(code: int, message: str, *details: Any) -> None:
        async def script(request: Any, context: Any) -> AsyncIterator[Any]:
            await abort_with(context, code, message, *details)
            yield

        server.generate = script

    return fail_with


@pytest.mark.parametrize("status", [status for status in grpc.StatusCode if status is not grpc.StatusCode.OK])
def test_each_status_becomes_its_error_in_both_clients(server: Any, failing: Any, status: grpc.StatusCode) -> None:
    failing(status.value[0], "why")
    with burstgate.Client(server.address) as client, pytest.raises(burstgate.BurstgateError) as from_sync:
        client.generate("hi").result()

    async def ask() -> None:
        async with burstgate.AsyncClient(server.address) as client:
            await client.generate("hi").result()

    with pytest.raises(burstgate.BurstgateError) as from_aio:
        asyncio.run(ask())
    assert type(from_sync.value) is type(from_aio.value) is errors._CLASSES.get(status, burstgate.BurstgateError)
    assert from_sync.value.code == from_aio.value.code == status.name
    assert from_sync.value.message == from_aio.value.message == "why"


def test_a_rich_error_keeps_its_reason_fields_metadata_and_delay(
    server: Any, failing: Any, details: Any, codes: Any
) -> None:
    retry = details.RetryInfo()
    retry.retry_delay.FromMilliseconds(1500)
    violations = [
        details.BadRequest.FieldViolation(field="sampling.top_p", description="above 0, at most 1"),
        details.BadRequest.FieldViolation(field="n", description="1 to 8"),
    ]
    failing(
        codes.INVALID_ARGUMENT,
        "two fields",
        details.ErrorInfo(reason="INVALID_FIELD", domain="burstgate.dev", metadata={"limit": "8"}),
        details.BadRequest(field_violations=violations),
        retry,
    )
    with burstgate.Client(server.address) as client, pytest.raises(burstgate.InvalidRequest) as caught:
        client.generate("hi", request_id="r-1").result()
    error = caught.value
    assert (error.reason, error.metadata, error.retry_after_s) == ("INVALID_FIELD", {"limit": "8"}, 1.5)
    assert error.violations == (
        burstgate.Violation("sampling.top_p", "above 0, at most 1"),
        burstgate.Violation("n", "1 to 8"),
    )
    assert error.request_id == "r-1"
    assert error.__cause__ is None
    assert error.__suppress_context__


def test_the_servers_own_request_id_wins(server: Any) -> None:
    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        context.set_trailing_metadata((("x-request-id", "theirs"),))
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        yield

    server.generate = script
    with burstgate.Client(server.address) as client, pytest.raises(burstgate.Overloaded) as caught:
        client.generate("hi", request_id="mine").result()
    assert caught.value.request_id == "theirs"
    assert caught.value.retry_after_s is None


@pytest.mark.parametrize("trailer", [b"\xff\xff\xff", b"\x08\x05"])
def test_details_that_cannot_be_read_or_contradict_the_status_are_left_out(server: Any, trailer: bytes) -> None:
    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        context.set_trailing_metadata((("grpc-status-details-bin", trailer),))
        await context.abort(grpc.StatusCode.INTERNAL, "boom")
        yield

    server.generate = script
    with (
        burstgate.Client(server.address) as client,
        pytest.raises(burstgate.Internal, match="boom") as caught,
    ):
        client.generate("hi").result()
    assert caught.value.reason == ""


def test_a_failure_in_mid_stream_keeps_the_events_before_it(server: Any, messages: Any) -> None:
    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        yield messages.delta(0, "x", (1,))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "stopping")

    server.generate = script
    with burstgate.Client(server.address) as client:
        stream = client.generate("hi")
        assert isinstance(next(stream), burstgate.Delta)
        for _ in range(2):
            with pytest.raises(burstgate.Unavailable, match="stopping"):
                next(stream)


def test_nobody_at_the_address_is_unavailable_for_every_call() -> None:
    with burstgate.Client("127.0.0.1:1") as client:
        for call in (client.model, client.server_info, client.health, lambda: client.generate("hi").result()):
            with pytest.raises(burstgate.Unavailable):
                call()


async def test_nobody_at_the_address_is_unavailable_for_aio_too() -> None:
    async with burstgate.AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(burstgate.Unavailable):
            await client.model()
        with pytest.raises(burstgate.Unavailable):
            await client.generate("hi").result()


def test_a_message_over_the_limit_is_overloaded(server: Any) -> None:
    options = burstgate.ConnectOptions(server.address, max_message_bytes=1000)
    with burstgate.Client(options) as client, pytest.raises(burstgate.Overloaded):
        client.count_tokens("x" * 2000)


def test_health_is_read_for_the_server_and_for_a_service(server: Any) -> None:
    with burstgate.Client(server.address) as client:
        assert client.health() is burstgate.Health.SERVING
        assert client.health("asleep") is burstgate.Health.NOT_SERVING
        with pytest.raises(burstgate.NotFound):
            client.health("nobody")

"""Who is let in, in which order, and what the others are told: tenants, priorities, deadlines, memory on the wire."""

import contextlib
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.conftest import Processes
from tests.integration.decode.asking import CALL_S, Decode, ask, code_of, details_of, until
from tests.integration.decode.conftest import START_S

from burstgate.decode.v1 import decode_pb2

KEY = "x-burstgate-tenant"
BUSY_S = 60.0
IGNORE_EOS = decode_pb2.StopOptions(ignore_eos=True)
# Bytes of keys and values a token of the default target: 30 layers, three heads of 64 float32 numbers.
TOKEN_BYTES = 30 * 2 * 3 * 64 * 4


@pytest.fixture(scope="module")
def metrics_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def narrow(_session_processes: Processes, small_target: Path, metrics_port: int) -> Iterator[Decode]:
    """One place, three that may wait for each tenant, and memory for a cache of 512 tokens."""
    service = _session_processes.start(
        ["-m", "burstgate_decode"],
        {
            "BURSTGATE_DECODE_LISTEN": "127.0.0.1:0",
            "BURSTGATE_POLICY_ADDRESS": "none",
            "BURSTGATE_TARGET": str(small_target),
            "BURSTGATE_MAX_ACTIVE_ROWS": "1",
            "BURSTGATE_TENANT_MAX_QUEUED_ROWS": "3",
            "BURSTGATE_PREFILL_CHUNK_TOKENS": "16",
            "BURSTGATE_CACHE_MEMORY_MB": "24",
            # A prompt that was read before is in time.
            "BURSTGATE_PREFIX_CACHE_MB": "0",
            "BURSTGATE_METRICS_LISTEN": f"127.0.0.1:{metrics_port}",
        },
        timeout_s=START_S,
    )
    connected = Decode(service.address, service.pid)
    yield connected
    connected.close()


def generate(service: Decode, tenant: str | None = None, timeout: float = CALL_S, **fields: Any) -> Any:
    metadata = [] if tenant is None else [(KEY, tenant)]
    return service.stub.Generate(ask(stop=IGNORE_EOS, **fields), timeout=timeout, metadata=metadata)


def refused(call: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        next(iter(call))
    return caught.value


def metric(port: int, series: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        lines = response.read().decode().splitlines()
    (value,) = [line.split()[-1] for line in lines if line.startswith(f"{series} ")] or ["0"]
    return float(value)


@contextlib.contextmanager
def busy(service: Decode, tenant: str | None = None) -> Iterator[None]:
    """The only place is taken."""
    running = generate(service, tenant, max_tokens=450)
    next(running)
    try:
        yield
    finally:
        running.cancel()
        service.wait_rows(0, BUSY_S)


@pytest.mark.parametrize(
    "metadata",
    [[(KEY, "")], [(KEY, "x" * 65)], [(KEY, "a"), (KEY, "b")]],
    ids=["empty", "65 characters", "two of them"],
)
def test_a_tenant_that_is_none_is_an_invalid_argument(narrow: Decode, metadata: Any) -> None:
    error = refused(narrow.stub.Generate(ask(), timeout=CALL_S, metadata=metadata))
    assert code_of(error) is grpc.StatusCode.INVALID_ARGUMENT
    (violation,) = details_of(error)["BadRequest"].field_violations
    assert violation.field == KEY
    assert "1 to 64 printable ASCII characters" in violation.description


def test_a_tenant_with_any_printable_name_is_served(narrow: Decode) -> None:
    assert list(generate(narrow, "Team 7 / #α".encode("ascii", "ignore").decode(), max_tokens=2))


def test_a_tenants_full_queue_is_its_own_and_the_next_place_goes_to_another_tenant(
    narrow: Decode, metrics_port: int
) -> None:
    before = metric(metrics_port, 'burstgate_decode_rejected_total{reason="tenant_queue_full"}')
    with contextlib.ExitStack() as held:
        held.enter_context(busy(narrow, "crowd"))
        crowd = [generate(narrow, "crowd", max_tokens=20) for _ in range(3)]
        for call in crowd:
            held.callback(call.cancel)
        until(lambda: narrow.info().queued_rows == 3, BUSY_S)
        error = refused(generate(narrow, "crowd"))
        assert code_of(error) is grpc.StatusCode.RESOURCE_EXHAUSTED
        details = details_of(error)
        assert details["ErrorInfo"].reason == "TENANT_QUEUE_FULL"
        assert dict(details["ErrorInfo"].metadata) == {"tenant": "crowd", "limit": "3"}
        assert details["RetryInfo"].retry_delay.ToMilliseconds() > 0
        single = generate(narrow, "single", max_tokens=2)
        until(lambda: narrow.info().queued_rows == 4, BUSY_S)
    # The place that came free was the single one's: the crowd's three were cancelled while they waited.
    assert [response for response in single if response.HasField("completion")]
    assert metric(metrics_port, 'burstgate_decode_rejected_total{reason="tenant_queue_full"}') == before + 1


def test_another_tenant_overtakes_the_queue_and_a_high_priority_its_own_tenant(narrow: Decode) -> None:
    calls = {}
    with busy(narrow, "crowd"):
        for place, (name, tenant, priority) in enumerate(
            [
                ("first", "crowd", decode_pb2.PRIORITY_UNSPECIFIED),
                ("low", "crowd", decode_pb2.PRIORITY_LOW),
                ("other", "single", decode_pb2.PRIORITY_NORMAL),
                ("high", "crowd", decode_pb2.PRIORITY_HIGH),
            ],
            start=1,
        ):
            calls[name] = generate(narrow, tenant, priority=priority, max_tokens=4)
            until(lambda place=place: narrow.info().queued_rows == place, BUSY_S)  # type: ignore[misc]
    waits = {}
    for name, call in calls.items():
        (done,) = [response.completion for response in call if response.HasField("completion")]
        waits[name] = done.timings.queue_ms
    # All four began to wait within moments of each other, and each had to wait for those before it.
    assert sorted(waits, key=waits.__getitem__) == ["high", "other", "first", "low"]


def test_a_deadline_that_the_prompt_alone_exceeds_is_refused_with_the_estimate(narrow: Decode) -> None:
    prompt = decode_pb2.TokenPrompt(ids=[504 + place % 100 for place in range(400)])
    (done,) = [
        response.completion
        for response in generate(narrow, tokens=prompt, max_tokens=6)
        if response.HasField("completion")
    ]
    # The estimate is half of what the fastest chunks would take. On a busy machine these may be far from the mean,
    # so that a deadline near it only ends the call.
    for share in (8, 12, 16, 24):
        timeout_s = done.timings.prefill_ms / 1e3 / share
        error = refused(generate(narrow, tokens=prompt, max_tokens=6, timeout=timeout_s))
        assert code_of(error) is grpc.StatusCode.DEADLINE_EXCEEDED
        if details := details_of(error):
            break
    info = details["ErrorInfo"]
    assert info.reason == "DEADLINE_UNREACHABLE"
    assert float(info.metadata["estimate_ms"]) > float(info.metadata["left_ms"]) > 0
    assert list(generate(narrow, tokens=prompt, max_tokens=1, timeout=CALL_S))


def test_a_request_whose_cache_can_never_fit_is_refused_with_what_it_needs(narrow: Decode) -> None:
    error = refused(generate(narrow, max_tokens=500))
    assert code_of(error) is grpc.StatusCode.RESOURCE_EXHAUSTED
    details = details_of(error)
    assert details["ErrorInfo"].reason == "CACHE_TOO_SMALL"
    # 512 tokens and the one that a step may write behind them, in blocks of 256.
    assert details["ErrorInfo"].metadata["needed_bytes"] == str(768 * TOKEN_BYTES)
    assert details["ErrorInfo"].metadata["limit_bytes"] == str(24 * 2**20)
    assert "RetryInfo" not in details


def test_the_cache_that_is_reserved_and_the_wait_are_told(narrow: Decode, metrics_port: int) -> None:
    narrow.wait_rows(0, BUSY_S)
    assert (narrow.info().cache_reserved_bytes, narrow.info().cache_limit_bytes) == (0, 24 * 2**20)
    assert narrow.info().tenant_max_queued_rows == 3
    waited = metric(metrics_port, "burstgate_decode_queue_wait_seconds_count")
    with busy(narrow):
        reserved = narrow.info().cache_reserved_bytes
        assert reserved == 512 * TOKEN_BYTES
        assert metric(metrics_port, "burstgate_decode_cache_reserved_bytes") == reserved
    assert metric(metrics_port, "burstgate_decode_queue_wait_seconds_count") == waited + 1
    assert metric(metrics_port, "burstgate_decode_cache_reserved_bytes") == 0
    assert metric(metrics_port, "burstgate_decode_cache_limit_bytes") == 24 * 2**20

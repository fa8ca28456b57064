"""The end of a decode service: running streams are finished or told, and the process leaves quietly."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.conftest import RunningProcess
from tests.integration.decode.asking import OFF, Decode, ask, code_of, details_of, until

import burstgate_decode
from burstgate.decode.v1 import decode_pb2

Start = Callable[..., RunningProcess]
ENDLESS = decode_pb2.StopOptions(ignore_eos=True)
# The last step, the threads' ends and the interpreter's, on a machine that may be busy.
EXIT_S = 60.0

# Measuring exactness and costs with a drafter makes the load last for seconds.
DRAFTER = str(Path(burstgate_decode.__file__).parent / "assets" / "smollm2-135m-mtp")


def streaming(service: RunningProcess, max_tokens: int) -> Any:
    """A stream that has begun."""
    call = Decode(service.address).stub.Generate(
        ask("Write a long story.", mode=OFF, max_tokens=max_tokens, stop=ENDLESS), timeout=200
    )
    next(call)
    return call


def check_quiet(service: RunningProcess) -> None:
    """Nothing was written but log lines, and no error among them."""
    assert service.stdout == ""
    assert not [line for line in service.lines if line["level"] in ("error", "critical")]


def test_sigterm_lets_a_running_stream_finish_and_takes_no_new_one(start_decode: Start) -> None:
    service = start_decode(drain_timeout_s=120)
    call = streaming(service, 40)
    service.signal(signal.SIGTERM)
    service.wait_event("draining")
    with pytest.raises(grpc.RpcError) as caught:
        Decode(service.address).answer(ask(max_tokens=1))
    assert code_of(caught.value) is grpc.StatusCode.UNAVAILABLE
    *_, last = call
    assert last.completion.usage.completion_tokens == 40
    assert service.wait(EXIT_S) == 0
    assert service.events("stopped")[0]["drained"] is True
    check_quiet(service)


def test_a_stream_that_outlasts_the_drain_ends_with_unavailable(start_decode: Start) -> None:
    service = start_decode(drain_timeout_s=0.3)
    call = streaming(service, 4000)
    service.signal(signal.SIGTERM)
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert code_of(caught.value) is grpc.StatusCode.UNAVAILABLE
    assert service.wait(EXIT_S) == 0
    check_quiet(service)


def test_a_second_signal_stops_at_once(start_decode: Start) -> None:
    service = start_decode(drain_timeout_s=600)
    call = streaming(service, 4000)
    service.signal(signal.SIGTERM)
    service.wait_event("draining")
    service.signal(signal.SIGTERM)
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert code_of(caught.value) is grpc.StatusCode.UNAVAILABLE
    assert service.wait(EXIT_S) == 1
    assert service.events("stopped")[0]["drained"] is False
    check_quiet(service)


def test_while_it_loads_it_is_healthy_for_nobody_and_says_so(start_decode: Start, free_port: int) -> None:
    address = f"127.0.0.1:{free_port}"
    service = start_decode(serving=False, decode_listen=address, drafter=DRAFTER)
    decode = Decode(address)
    health: Any = health_pb2_grpc.HealthStub(decode.channel)
    names = ("", "burstgate.decode.v1.DecodeService")

    def status(name: str) -> Any:
        question = health_pb2.HealthCheckRequest(service=name)
        return health.Check(question, timeout=30, wait_for_ready=True).status

    assert {status(name) for name in names} == {health_pb2.HealthCheckResponse.NOT_SERVING}
    for request in (ask(), decode_pb2.GenerateRequest()):
        error = decode.refused(request)
        assert code_of(error) is grpc.StatusCode.UNAVAILABLE
        assert details_of(error)["ErrorInfo"].reason == "MODEL_LOADING"
        assert details_of(error)["RetryInfo"].retry_delay.ToMilliseconds() > 0
    info = decode.info()
    assert (info.max_active_rows, info.max_prompt_tokens) == (8, 0)
    assert not service.events("serving"), "the models were loaded before they could be asked for"

    service.wait_serving(240)
    assert {status(name) for name in names} == {health_pb2.HealthCheckResponse.SERVING}
    with pytest.raises(grpc.RpcError) as caught:
        status("burstgate.decode.v1.Nothing")
    assert code_of(caught.value) is grpc.StatusCode.NOT_FOUND
    assert decode.answer(ask(max_tokens=1)).tokens
    service.signal(signal.SIGINT)
    assert service.wait(EXIT_S) == 0
    check_quiet(service)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_loads_ends_it_without_a_word_of_serving(
    start_decode: Start, free_port: int, number: int
) -> None:
    service = start_decode(serving=False, decode_listen=f"127.0.0.1:{free_port}", drafter=DRAFTER)
    probe = Decode(f"127.0.0.1:{free_port}")
    probe.stub.GetServerInfo(decode_pb2.GetServerInfoRequest(), timeout=60, wait_for_ready=True)
    service.signal(number)
    assert service.wait(EXIT_S) == 0
    assert not service.events("serving")
    check_quiet(service)


def test_metrics_tell_what_was_generated(start_decode: Start, free_port: int) -> None:
    import urllib.request

    service = start_decode(metrics_listen=f"127.0.0.1:{free_port}")
    decode = Decode(service.address)
    usage = [decode.answer(ask(max_tokens=3)).done.usage for _ in range(2)]
    decode.refused(ask(n=9))

    def scraped() -> str:
        body: bytes = urllib.request.urlopen(f"http://127.0.0.1:{free_port}/metrics", timeout=10).read()
        return body.decode()

    labels = 'grpc_method="Generate",grpc_service="burstgate.decode.v1.DecodeService",grpc_type="server_stream"'
    until(lambda: f'grpc_server_handled_total{{grpc_code="INVALID_ARGUMENT",{labels}}} 1.0' in scraped(), 10)
    body = scraped()
    assert "burstgate_decode_tokens_total 6.0" in body
    assert 'burstgate_decode_answers_total{finish_reason="length"} 2.0' in body
    assert 'burstgate_decode_steps_total{kind="plain"} 6.0' in body
    assert "burstgate_decode_prefix_cache_hits_total 1.0" in body
    assert f"burstgate_decode_prefix_cache_tokens_total {usage[1].cached_prompt_tokens}.0" in body
    held = [line for line in body.splitlines() if line.startswith("burstgate_decode_prefix_cache_bytes ")]
    assert len(held) == 1
    assert float(held[0].split()[1]) > 0
    started = time.monotonic()
    assert service.stop(EXIT_S) == 0
    assert time.monotonic() - started < EXIT_S
    check_quiet(service)

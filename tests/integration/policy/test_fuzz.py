"""Whatever bytes arrive, the answer is a status that the service chose, and it goes on serving."""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burstgate.policy.v1 import policy_pb2

ALLOWED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
METHODS = [
    "PolicyService/OpenLane",
    "PolicyService/DecideBurst",
    "PolicyService/ReportBurst",
    "PolicyAdminService/GetVerdict",
    "PolicyAdminService/ListVerdicts",
]

numbers = st.integers(0, 2**32 - 1) | st.integers(0, 70)
floats = st.floats(width=64) | st.floats(0, 100)
steps = st.builds(
    policy_pb2.StepRecord,
    mode=st.integers(-1, 7),
    draft_width=numbers,
    width=numbers,
    depth_tokens=numbers,
    emitted=numbers,
    proposed=numbers,
    accepted_by_position=st.lists(numbers, max_size=66),
    draft_ms=floats,
    verify_ms=floats,
    overhead_ms=floats,
    wall_ms=floats,
    excluded=st.booleans(),
)
outcomes = st.builds(
    policy_pb2.BurstOutcome,
    grant_id=st.text(max_size=300),
    sequence=st.integers(0, 2**64 - 1),
    steps=st.lists(steps, max_size=20),
    dropped_steps=st.integers(0, 2**64 - 1),
)
situations = st.builds(
    policy_pb2.Situation,
    width=numbers,
    depth_tokens=numbers,
    min_emitted_tokens=numbers,
    eligible=st.booleans(),
    max_draft_width=numbers,
)


@pytest.fixture(scope="module")
def channel(
    start_module_process: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[grpc.Channel]:
    hints = str(tmp_path_factory.mktemp("hints"))
    env = {"BURSTGATE_POLICY_LISTEN": "127.0.0.1:0", "BURSTGATE_HINT_DIR": hints}
    policy = start_module_process(["-m", "burstgate_policy"], env)
    with grpc.insecure_channel(policy.address) as channel:
        yield channel
    assert policy.stop() == 0
    assert not [line for line in policy.lines if line["level"] == "error"]


def code_of(channel: grpc.Channel, method: str, request: bytes) -> grpc.StatusCode:
    call: Any = channel.unary_unary(f"/burstgate.policy.v1.{method}")
    try:
        call(request, timeout=10)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


@given(method=st.sampled_from(METHODS), request_bytes=st.binary(max_size=200))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_bytes_get_a_chosen_status(channel: grpc.Channel, method: str, request_bytes: bytes) -> None:
    assert code_of(channel, method, request_bytes) in ALLOWED


@given(situation=situations, given_outcomes=st.lists(outcomes, max_size=5))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_measurement_gets_a_grant_or_names_its_bad_field(
    channel: grpc.Channel,
    policy_lane: Any,
    situation: policy_pb2.Situation,
    given_outcomes: list[policy_pb2.BurstOutcome],
) -> None:
    lane = channel_lane(channel, policy_lane)
    request = policy_pb2.DecideBurstRequest(lane_id=lane, situation=situation, outcomes=given_outcomes)
    code = code_of(channel, "PolicyService/DecideBurst", request.SerializeToString())
    assert code in {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT}


def channel_lane(channel: grpc.Channel, policy_lane: Any) -> str:
    """One lane for all examples: what one of them taught it must not break the next."""
    if channel not in _lanes:
        _lanes[channel] = policy_lane(channel).lane_id
    return _lanes[channel]


_lanes: dict[grpc.Channel, str] = {}

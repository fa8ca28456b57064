"""Whatever bytes arrive, the answer is a status that the service chose, and it goes on serving."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burstgate.policy.v1 import admin_pb2, admin_pb2_grpc, policy_pb2

ALLOWED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.FAILED_PRECONDITION,
}
METHODS = [
    "PolicyService/OpenLane",
    "PolicyService/DecideBurst",
    "PolicyService/ReportBurst",
    "PolicyAdminService/GetVerdict",
    "PolicyAdminService/ListVerdicts",
    "PolicyAdminService/PinVerdict",
    "PolicyAdminService/UnpinVerdict",
    "PolicyAdminService/ResetVerdict",
    "PolicyAdminService/ExportHints",
    "PolicyAdminService/ImportHints",
    "PolicyAdminService/ExplainGrant",
    "PolicyAdminService/ReplayTrace",
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


texts = st.text(max_size=30)
json_texts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
).map(json.dumps)
pins = st.builds(
    admin_pb2.PinVerdictRequest,
    key_hash=st.just("") | texts,
    speculate=st.booleans(),
    reason=texts,
    author=texts,
    ttl=st.none() | st.builds(Duration, seconds=st.integers(-(2**63), 2**63 - 1), nanos=st.integers(-9, 9)),
)


@given(
    pin=pins, hint=json_texts, given_outcomes=st.lists(outcomes, max_size=5), situation=situations, known=st.booleans()
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_admin_request_gets_a_chosen_status_and_spoils_nothing(
    channel: grpc.Channel,
    policy_lane: Any,
    pin: admin_pb2.PinVerdictRequest,
    hint: str,
    given_outcomes: list[policy_pb2.BurstOutcome],
    situation: policy_pb2.Situation,
    known: bool,
) -> None:
    lane = channel_lane(channel, policy_lane)
    if known:
        admin: Any = admin_pb2_grpc.PolicyAdminServiceStub(channel)  # type: ignore[no-untyped-call]
        listed = admin.ListVerdicts(admin_pb2.ListVerdictsRequest(), timeout=10).verdicts
        pin.key_hash = listed[0].snapshot.key_hash
    lane_request = policy_lane(channel, target="replayed").open_request if known else policy_pb2.OpenLaneRequest()
    requests = {
        "PinVerdict": pin,
        "ImportHints": admin_pb2.ImportHintsRequest(hints=[hint], overwrite=known),
        "ExplainGrant": admin_pb2.ExplainGrantRequest(lane_id=lane, situation=situation),
        "ReplayTrace": admin_pb2.ReplayTraceRequest(lane=lane_request, outcomes=given_outcomes),
        "ExportHints": admin_pb2.ExportHintsRequest(),
        "ListVerdicts": admin_pb2.ListVerdictsRequest(),
    }
    for method, request in requests.items():
        assert code_of(channel, f"PolicyAdminService/{method}", request.SerializeToString()) in ALLOWED


def channel_lane(channel: grpc.Channel, policy_lane: Any) -> str:
    """One lane for all examples: what one of them taught it must not break the next."""
    if channel not in _lanes:
        _lanes[channel] = policy_lane(channel).lane_id
    return _lanes[channel]


_lanes: dict[grpc.Channel, str] = {}

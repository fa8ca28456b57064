"""What the running service decides, remembers and refuses, over real sockets."""

import concurrent.futures
import json
import math
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from burstgate.policy.v1 import admin_pb2, admin_pb2_grpc, policy_pb2

Start = Callable[..., Any]
Connect = Callable[[str], grpc.Channel]


GATE = {
    policy_pb2.GRANT_REASON_GATE_SPECULATIVE,
    policy_pb2.GRANT_REASON_GATE_PLAIN,
    policy_pb2.GRANT_REASON_GATE_PROBE_PLAIN,
    policy_pb2.GRANT_REASON_GATE_PROBE_SPECULATIVE,
}
DECLINED = {policy_pb2.GRANT_REASON_VERDICT_DECLINED}


def admin(channel: grpc.Channel) -> Any:
    return admin_pb2_grpc.PolicyAdminServiceStub(channel)  # type: ignore[no-untyped-call]


def verdict_of(channel: grpc.Channel, lane: Any) -> admin_pb2.VerdictView:
    request = admin_pb2.GetVerdictRequest(key_hash=lane.snapshot.key_hash)
    view: admin_pb2.VerdictView = admin(channel).GetVerdict(request, timeout=5).verdict
    return view


@pytest.mark.parametrize(
    ("round_ms", "accepted", "verdict", "reasons"),
    [
        (24.0, 3, policy_pb2.VERDICT_ENABLE, GATE),
        (60.0, 1, policy_pb2.VERDICT_DECLINE, DECLINED),
    ],
)
def test_a_pairing_settles_by_what_was_measured_and_a_restart_remembers_it(
    start_policy: Start,
    connect: Connect,
    policy_lane: Any,
    hint_dir: Path,
    round_ms: float,
    accepted: int,
    verdict: int,
    reasons: set[int],
) -> None:
    policy = start_policy()
    channel = connect(policy.address)
    lane = policy_lane(channel, round_ms=round_ms, accepted=accepted)
    assert (lane.snapshot.state, lane.snapshot.from_hint) == (policy_pb2.POLICY_STATE_PROFILING, False)
    assert lane.settle().reason in reasons
    snapshot = verdict_of(channel, lane).snapshot
    assert (snapshot.state, snapshot.verdict) == (policy_pb2.POLICY_STATE_SETTLED, verdict)
    policy.wait_event("hint stored")
    assert {path.name for path in hint_dir.iterdir()} == {f"{snapshot.key_hash}.json", ".lock"}
    assert policy.stop() == 0

    again = start_policy()
    reopened = policy_lane(connect(again.address))
    assert (reopened.snapshot.verdict, reopened.snapshot.from_hint) == (verdict, True)
    assert again.events("hint loaded")[0]["key_hash"] == snapshot.key_hash


def test_a_verdict_at_k4_is_not_reused_at_k8(start_policy: Start, connect: Connect, policy_lane: Any) -> None:
    channel = connect(start_policy().address)
    at_4 = policy_lane(channel, draft_width=4)
    at_4.settle()
    at_8 = policy_lane(channel, draft_width=8)
    assert at_8.snapshot.state == policy_pb2.POLICY_STATE_PROFILING
    assert at_8.snapshot.key_hash != at_4.snapshot.key_hash


def test_lanes_of_one_pairing_share_its_verdict(start_policy: Start, connect: Connect, policy_lane: Any) -> None:
    channel = connect(start_policy().address)
    first, second = policy_lane(channel), policy_lane(channel)
    first.settle()
    assert second.burst().reason in GATE
    view = verdict_of(channel, second)
    assert {lane.lane_id for lane in view.lanes} == {first.lane_id, second.lane_id}


def test_lanes_opened_at_the_same_time_share_one_policy(
    start_policy: Start, connect: Connect, policy_lane: Any
) -> None:
    channel = connect(start_policy().address)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        lanes = list(pool.map(lambda _: policy_lane(channel), range(8)))
    assert len({lane.lane_id for lane in lanes}) == 8
    lanes[0].settle()
    assert {lane.burst().reason for lane in lanes[1:]} <= GATE


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"null", b'{"version": 1}'])
def test_a_broken_hint_is_profiled_again_with_a_line_that_says_why(
    start_policy: Start, connect: Connect, policy_lane: Any, hint_dir: Path, content: bytes
) -> None:
    first = start_policy()
    policy_lane(connect(first.address)).settle()
    first.wait_event("hint stored")
    first.stop()
    (path,) = hint_dir.glob("*.json")
    path.write_bytes(content)

    policy = start_policy()
    lane = policy_lane(connect(policy.address))
    assert (lane.snapshot.state, lane.snapshot.from_hint) == (policy_pb2.POLICY_STATE_PROFILING, False)
    (line,) = policy.events("profiling")
    assert str(path) in line["why"]
    lane.settle()
    policy.wait_event("hint stored")
    assert json.loads(path.read_text())["settled"]["verdict"]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_file_of_an_older_format_is_reported_at_the_start_and_is_no_error(
    start_policy: Start, hint_dir: Path, version: int
) -> None:
    hint_dir.mkdir()
    old = {"version": version, "target": "t", "drafter": "d", "hardware": "M5-16c", "verdict": "enable"}
    (hint_dir / "0123456789abcdef.json").write_text(json.dumps({**old, "acceptance_rate": 0.68, "samples": 4}))
    policy = start_policy()
    (line,) = policy.events("hint not used")
    assert line["level"] == "info"
    assert f"old version {version}; the pairing is re-profiled" in line["why"]


def test_every_truncation_of_a_hint_is_profiled_again(
    start_policy: Start, connect: Connect, policy_lane: Any, hint_dir: Path
) -> None:
    first = start_policy()
    channel = connect(first.address)
    targets = [f"target-{n:02}" for n in range(20)]
    for target in targets:
        policy_lane(channel, target=target).settle()
    assert first.stop() == 0
    paths = sorted(hint_dir.glob("*.json"))
    assert len(paths) == len(targets)
    for n, path in enumerate(paths):
        whole = path.read_bytes().rstrip()
        path.write_bytes(whole[: len(whole) * n // len(paths)])

    policy = start_policy()
    channel = connect(policy.address)
    states = {policy_lane(channel, target=target).snapshot.state for target in targets}
    assert states == {policy_pb2.POLICY_STATE_PROFILING}
    assert len(policy.events("profiling")) == len(targets)


def test_a_folder_that_cannot_be_written_costs_one_warning_and_no_verdict(
    start_policy: Start, connect: Connect, policy_lane: Any, hint_dir: Path
) -> None:
    # A file in the folder's place refuses writing even to the superuser, whom permissions do not bind.
    hint_dir.write_text("not a folder")
    policy = start_policy()
    channel = connect(policy.address)
    lane = policy_lane(channel)
    lane.settle()
    warning = policy.wait_event("hint store failed")
    assert warning["level"] == "warning"
    assert str(hint_dir) in warning["why"]
    for _ in range(3):
        assert lane.burst().reason in GATE
    assert verdict_of(channel, lane).snapshot.verdict == policy_pb2.VERDICT_ENABLE
    assert len(policy.events("hint store failed")) == 1


@pytest.mark.parametrize(
    ("force", "mode", "reason"),
    [
        ("on", policy_pb2.BURST_MODE_SPECULATIVE, policy_pb2.GRANT_REASON_FORCED_ON),
        ("off", policy_pb2.BURST_MODE_PLAIN, policy_pb2.GRANT_REASON_FORCED_OFF),
    ],
)
def test_a_forced_service_profiles_and_stores_nothing(
    start_policy: Start,
    connect: Connect,
    policy_lane: Any,
    hint_dir: Path,
    force: str,
    mode: int,
    reason: int,
) -> None:
    policy = start_policy(mtp_force=force)
    lane = policy_lane(connect(policy.address))
    for _ in range(20):
        grant = lane.burst()
        assert (grant.mode, grant.reason) == (mode, reason)
    assert policy.stop() == 0
    assert not hint_dir.exists()


def test_without_profiling_the_static_gate_decides(start_policy: Start, connect: Connect, policy_lane: Any) -> None:
    lane = policy_lane(connect(start_policy(mtp_adaptive="off").address))
    assert lane.snapshot.state == policy_pb2.POLICY_STATE_STATIC
    assert lane.burst().reason == policy_pb2.GRANT_REASON_STATIC_OFF


def test_the_same_outcome_delivered_again_moves_the_state_once(
    start_policy: Start, connect: Connect, policy_lane: Any
) -> None:
    channel = connect(start_policy().address)
    lane = policy_lane(channel)
    lane.burst()
    lane.burst()
    repeated = policy_pb2.ReportBurstRequest(lane_id=lane.lane_id, outcomes=lane.request().outcomes)
    lane.stub.ReportBurst(repeated, timeout=5)
    before = verdict_of(channel, lane)
    for _ in range(3):
        lane.stub.ReportBurst(repeated, timeout=5)
    assert verdict_of(channel, lane) == before
    assert before.lanes[0].steps > 0


def test_a_stream_answers_in_order_and_decides_as_single_calls_do(
    start_policy: Start, connect: Connect, policy_lane: Any
) -> None:
    channel = connect(start_policy().address)
    by_call = policy_lane(channel, target="a")
    by_stream = policy_lane(channel, target="b")
    called = [by_call.burst() for _ in range(40)]

    questions: queue.SimpleQueue[policy_pb2.StreamBurstsRequest | None] = queue.SimpleQueue()
    answers = by_stream.stub.StreamBursts(iter(questions.get, None), timeout=30)
    streamed: list[policy_pb2.BurstGrant] = []
    for sequence in range(1, 41):
        question = by_stream.request()
        questions.put(
            policy_pb2.StreamBurstsRequest(
                lane_id=question.lane_id,
                situation=question.situation,
                outcomes=question.outcomes,
                sequence=sequence,
            )
        )
        answer = next(answers)
        assert answer.sequence == sequence
        by_stream.run(answer.grant)
        streamed.append(answer.grant)
    questions.put(None)
    assert list(answers) == []
    assert [(grant.mode, grant.draft_width, grant.max_steps, grant.reason) for grant in streamed] == [
        (grant.mode, grant.draft_width, grant.max_steps, grant.reason) for grant in called
    ]


def test_a_stream_survives_an_unknown_lane_and_answers_known_ones(
    start_policy: Start, connect: Connect, policy_lane: Any
) -> None:
    lane = policy_lane(connect(start_policy().address))
    situation = lane.request().situation
    questions = [
        policy_pb2.StreamBurstsRequest(lane_id=lane_id, situation=situation, sequence=sequence)
        for sequence, lane_id in enumerate([lane.lane_id, "gone", lane.lane_id], start=1)
    ]
    answers = list(lane.stub.StreamBursts(iter(questions), timeout=10))
    assert [(answer.sequence, answer.unknown_lane) for answer in answers] == [
        (1, False),
        (2, True),
        (3, False),
    ]
    assert not answers[1].HasField("grant")


def test_an_unknown_lane_is_not_found(start_policy: Start, connect: Connect, policy_lane: Any, details_of: Any) -> None:
    lane = policy_lane(connect(start_policy().address))
    lane.lane_id = "gone"
    for ask in (lane.burst, lane.report):
        with pytest.raises(grpc.RpcError) as caught:
            ask()
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        info = details_of(caught.value)["ErrorInfo"]
        assert (info.reason, dict(info.metadata)) == ("UNKNOWN_LANE", {"lane_id": "gone"})


def test_one_lane_too_many_is_refused_with_the_time_to_come_back(
    start_policy: Start, connect: Connect, policy_lane: Any, details_of: Any
) -> None:
    channel = connect(start_policy(max_lanes=2, lane_ttl_s=100).address)
    policy_lane(channel), policy_lane(channel)
    with pytest.raises(grpc.RpcError) as caught:
        policy_lane(channel)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    details = details_of(caught.value)
    assert details["ErrorInfo"].reason == "TOO_MANY_LANES"
    assert 90 < details["RetryInfo"].retry_delay.ToMilliseconds() / 1000 <= 100


def test_an_idle_lane_makes_room_for_a_new_one_and_is_gone(
    start_policy: Start, connect: Connect, policy_lane: Any
) -> None:
    channel = connect(start_policy(max_lanes=1, lane_ttl_s=0.2).address)
    idle = policy_lane(channel)
    time.sleep(0.4)
    policy_lane(channel)
    with pytest.raises(grpc.RpcError) as caught:
        idle.burst()
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_listed_verdicts_come_in_pages_ordered_by_hash(start_policy: Start, connect: Connect, policy_lane: Any) -> None:
    channel = connect(start_policy().address)
    hashes = sorted(policy_lane(channel, target=f"t{n}").snapshot.key_hash for n in range(5))
    listed: list[str] = []
    token, pages = "", 0
    while True:
        page = admin(channel).ListVerdicts(admin_pb2.ListVerdictsRequest(page_size=2, page_token=token))
        listed += [verdict.snapshot.key_hash for verdict in page.verdicts]
        token, pages = page.next_page_token, pages + 1
        if not token:
            break
    assert (listed, pages) == (hashes, 3)


def test_an_unknown_verdict_is_not_found(start_policy: Start, connect: Connect, details_of: Any) -> None:
    channel = connect(start_policy().address)
    with pytest.raises(grpc.RpcError) as caught:
        admin(channel).GetVerdict(admin_pb2.GetVerdictRequest(key_hash="0" * 16))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert details_of(caught.value)["ErrorInfo"].reason == "UNKNOWN_VERDICT"


def test_every_bad_field_is_an_invalid_argument_that_names_it(
    start_policy: Start, connect: Connect, policy_lane: Any, details_of: Any
) -> None:
    policy = start_policy()
    channel = connect(policy.address)
    lane = policy_lane(channel)

    def opened(change: Callable[[policy_pb2.OpenLaneRequest], object]) -> Any:
        request = policy_pb2.OpenLaneRequest()
        request.CopyFrom(lane.open_request)
        change(request)
        return lambda: lane.stub.OpenLane(request, timeout=5)

    def asked(change: Callable[[policy_pb2.DecideBurstRequest], object]) -> Any:
        request = lane.request()
        step = policy_pb2.StepRecord(mode=policy_pb2.BURST_MODE_PLAIN, draft_width=1, width=1, emitted=1, wall_ms=1.0)
        request.outcomes.add(sequence=1, steps=[step])
        change(request)
        return lambda: lane.stub.DecideBurst(request, timeout=5)

    def step(**fields: Any) -> Any:
        def change(request: policy_pb2.DecideBurstRequest) -> None:
            request.outcomes[0].steps[0].MergeFrom(policy_pb2.StepRecord(**fields))

        return asked(change)

    long = "ж" * 129
    table: list[tuple[str, Any]] = [
        ("key", opened(lambda r: r.ClearField("key"))),
        ("key.target", opened(lambda r: r.key.ClearField("target"))),
        ("key.target", opened(lambda r: setattr(r.key, "target", long))),
        ("key.drafter", opened(lambda r: setattr(r.key, "drafter", long))),
        ("key.hardware", opened(lambda r: setattr(r.key, "hardware", "x" * 257))),
        ("key.target_fingerprint", opened(lambda r: setattr(r.key, "target_fingerprint", long))),
        ("key.drafter_fingerprint", opened(lambda r: setattr(r.key, "drafter_fingerprint", long))),
        ("key.dtype", opened(lambda r: setattr(r.key, "dtype", long))),
        ("key.backend", opened(lambda r: setattr(r.key, "backend", long))),
        ("key.blas", opened(lambda r: setattr(r.key, "blas", long))),
        ("key.mlx_version", opened(lambda r: setattr(r.key, "mlx_version", long))),
        ("key.draft_width", opened(lambda r: setattr(r.key, "draft_width", 0))),
        ("key.draft_width", opened(lambda r: setattr(r.key, "draft_width", 65))),
        ("capabilities", opened(lambda r: r.ClearField("capabilities"))),
        ("capabilities.max_width", opened(lambda r: setattr(r.capabilities, "max_width", 0))),
        ("capabilities.drafter_kind", opened(lambda r: setattr(r.capabilities, "drafter_kind", long))),
        ("instance_id", opened(lambda r: setattr(r, "instance_id", long))),
        ("costs[0].width", opened(lambda r: r.costs.add(width=0, draft_width=1, verify_ms=1))),
        ("costs[0].draft_width", opened(lambda r: r.costs.add(width=1, draft_width=99, verify_ms=1))),
        ("costs[0].verify_ms", opened(lambda r: r.costs.add(width=1, draft_width=1, verify_ms=math.inf))),
        ("costs[0].draft_ms", opened(lambda r: r.costs.add(width=1, draft_width=1, draft_ms=-0.1))),
        ("lane_id", asked(lambda r: r.ClearField("lane_id"))),
        ("lane_id", asked(lambda r: setattr(r, "lane_id", "x" * 257))),
        ("situation", asked(lambda r: r.ClearField("situation"))),
        ("situation.width", asked(lambda r: setattr(r.situation, "width", 0))),
        ("situation.width", asked(lambda r: setattr(r.situation, "width", 4097))),
        ("situation.max_draft_width", asked(lambda r: setattr(r.situation, "max_draft_width", 65))),
        ("outcomes", asked(lambda r: [r.outcomes.add(sequence=1) for _ in range(64)])),
        ("outcomes[0].sequence", asked(lambda r: r.outcomes[0].ClearField("sequence"))),
        ("outcomes[0].grant_id", asked(lambda r: setattr(r.outcomes[0], "grant_id", long))),
        ("outcomes[0].steps", asked(lambda r: r.outcomes[0].steps.extend([r.outcomes[0].steps[0]] * 1024))),
        ("outcomes[0].steps[0].mode", asked(lambda r: r.outcomes[0].steps[0].ClearField("mode"))),
        ("outcomes[0].steps[0].mode", step(mode=6)),
        ("outcomes[0].steps[0].width", step(width=4097)),
        ("outcomes[0].steps[0].draft_width", step(draft_width=65)),
        ("outcomes[0].steps[0].accepted_by_position", step(accepted_by_position=[1] * 65)),
        ("outcomes[0].steps[0].draft_ms", step(draft_ms=math.nan)),
        ("outcomes[0].steps[0].verify_ms", step(verify_ms=math.inf)),
        ("outcomes[0].steps[0].overhead_ms", step(overhead_ms=-1.0)),
        ("outcomes[0].steps[0].wall_ms", step(wall_ms=-math.inf)),
    ]
    for field, call in table:
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, field
        details = details_of(caught.value)
        assert details["ErrorInfo"].reason == "INVALID_FIELD"
        (violation,) = details["BadRequest"].field_violations
        assert violation.field == field
        assert caught.value.details() == f"{field} {violation.description}"
    # Nothing refused has moved anything, and the largest allowed values are taken.
    largest = asked(lambda r: r.outcomes[0].steps[0].MergeFrom(policy_pb2.StepRecord(width=4096, draft_width=64)))
    assert largest().grant.max_steps > 0
    assert verdict_of(channel, lane).lanes[0].steps == 1


def test_more_mistakes_than_a_status_can_hold_still_arrive_as_one(
    start_policy: Start, connect: Connect, policy_lane: Any, details_of: Any
) -> None:
    lane = policy_lane(connect(start_policy().address))
    request = lane.request()
    request.outcomes.extend([policy_pb2.BurstOutcome(steps=[policy_pb2.StepRecord()] * 1024)] * 64)
    with pytest.raises(grpc.RpcError) as caught:
        lane.stub.DecideBurst(request, timeout=5)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len(details_of(caught.value)["BadRequest"].field_violations) == 8

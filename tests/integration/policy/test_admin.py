"""What a person asks of the running service: reading, watching, overruling, moving and questioning verdicts."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from burstgate.policy.v1 import admin_pb2, admin_pb2_grpc, policy_pb2

Start = Callable[..., Any]
Connect = Callable[[str], grpc.Channel]
PLAIN, SPECULATIVE = policy_pb2.BURST_MODE_PLAIN, policy_pb2.BURST_MODE_SPECULATIVE


def admin(channel: grpc.Channel) -> Any:
    return admin_pb2_grpc.PolicyAdminServiceStub(channel)  # type: ignore[no-untyped-call]


def pin(channel: grpc.Channel, key_hash: str, *, speculate: bool, ttl_s: float | None = None) -> Any:
    ttl = None if ttl_s is None else Duration(seconds=int(ttl_s), nanos=int(ttl_s % 1 * 1e9))
    request = admin_pb2.PinVerdictRequest(
        key_hash=key_hash, speculate=speculate, reason="it stutters", author="ada", ttl=ttl
    )
    return admin(channel).PinVerdict(request, timeout=10).verdict


def verdict(channel: grpc.Channel, key_hash: str) -> Any:
    return admin(channel).GetVerdict(admin_pb2.GetVerdictRequest(key_hash=key_hash), timeout=10).verdict


def declined(policy_lane: Any, channel: grpc.Channel, **options: Any) -> Any:
    """A lane of a pairing that speculation does not pay for."""
    lane = policy_lane(channel, round_ms=60.0, accepted=1, **options)
    lane.settle()
    return lane


def test_a_verdict_says_why_since_when_and_on_what_evidence(
    start_policy: Start, connect: Connect, policy_lane: Any
) -> None:
    channel = connect(start_policy().address)
    before_s = time.time()
    lane = declined(policy_lane, channel)
    snapshot = verdict(channel, lane.snapshot.key_hash).snapshot
    assert snapshot.verdict == policy_pb2.VERDICT_DECLINE
    evidence = snapshot.evidence
    assert (evidence.round_ms, evidence.plain_step_ms) == (pytest.approx(60.0), pytest.approx(20.0))
    assert evidence.rounds >= 8
    assert evidence.plain_steps >= 2
    assert evidence.speedup_low <= evidence.speedup <= evidence.speedup_high < 1.0
    assert before_s - 1 <= evidence.first_seen_at.seconds <= evidence.last_seen_at.seconds <= time.time()
    assert snapshot.expires_at.seconds > time.time()
    assert snapshot.version > lane.snapshot.version


def test_a_pin_rules_at_once_survives_a_restart_and_is_taken_back(
    start_policy: Start, connect: Connect, policy_lane: Any, hint_dir: Path
) -> None:
    policy = start_policy()
    channel = connect(policy.address)
    lane = declined(policy_lane, channel)
    key_hash = lane.snapshot.key_hash
    assert lane.burst().mode == PLAIN
    pinned = pin(channel, key_hash, speculate=True).snapshot
    assert (pinned.pin.speculate, pinned.pin.reason, pinned.pin.author) == (True, "it stutters", "ada")
    assert not pinned.pin.HasField("expires_at")
    assert pinned.speculation_enabled
    grant = lane.burst()
    assert (grant.mode, grant.reason) == (SPECULATIVE, policy_pb2.GRANT_REASON_PINNED_ON)
    # Acknowledged means stored: not even a kill forgets it.
    policy.kill()

    again = start_policy()
    channel = connect(again.address)
    assert verdict(channel, key_hash).snapshot.pin.reason == "it stutters"
    lane = policy_lane(channel, round_ms=60.0, accepted=1)
    assert lane.snapshot.pin.author == "ada"
    assert lane.burst().reason == policy_pb2.GRANT_REASON_PINNED_ON
    unpinned = admin(channel).UnpinVerdict(admin_pb2.UnpinVerdictRequest(key_hash=key_hash), timeout=10).verdict
    assert not unpinned.snapshot.HasField("pin")
    assert unpinned.snapshot.verdict == policy_pb2.VERDICT_DECLINE
    assert lane.burst().reason == policy_pb2.GRANT_REASON_VERDICT_DECLINED
    assert "pin" not in {name for name, value in json.loads(next(hint_dir.glob("*.json")).read_text()).items() if value}


def test_a_pin_with_a_time_to_live_ends_by_itself(start_policy: Start, connect: Connect, policy_lane: Any) -> None:
    channel = connect(start_policy().address)
    lane = declined(policy_lane, channel)
    pinned = pin(channel, lane.snapshot.key_hash, speculate=True, ttl_s=1.0).snapshot
    lasting_s = pinned.pin.expires_at.ToNanoseconds() / 1e9 - pinned.pin.pinned_at.ToNanoseconds() / 1e9
    assert lasting_s == pytest.approx(1.0, abs=0.01)
    assert lane.burst().reason == policy_pb2.GRANT_REASON_PINNED_ON
    time.sleep(1.1)
    assert lane.burst().reason == policy_pb2.GRANT_REASON_VERDICT_DECLINED
    assert not verdict(channel, lane.snapshot.key_hash).snapshot.HasField("pin")


def test_an_operators_force_cannot_be_pinned_away(
    start_policy: Start, connect: Connect, policy_lane: Any, details_of: Any
) -> None:
    channel = connect(start_policy(mtp_force="off").address)
    lane = policy_lane(channel)
    with pytest.raises(grpc.RpcError) as caught:
        pin(channel, lane.snapshot.key_hash, speculate=True)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert details_of(caught.value)["ErrorInfo"].reason == "FORCED"


def test_a_reset_profiles_again_here_and_after_a_restart(
    start_policy: Start, connect: Connect, policy_lane: Any
) -> None:
    policy = start_policy()
    channel = connect(policy.address)
    lane = declined(policy_lane, channel)
    key_hash = lane.snapshot.key_hash
    after = admin(channel).ResetVerdict(admin_pb2.ResetVerdictRequest(key_hash=key_hash), timeout=10).verdict
    assert (after.snapshot.state, after.snapshot.samples) == (policy_pb2.POLICY_STATE_PROFILING, 0)
    assert lane.burst().reason in {
        policy_pb2.GRANT_REASON_PROFILING_PLAIN,
        policy_pb2.GRANT_REASON_PROFILING_SPECULATIVE,
    }
    policy.kill()
    again = policy_lane(connect(start_policy().address))
    assert (again.snapshot.state, again.snapshot.from_hint) == (policy_pb2.POLICY_STATE_PROFILING, False)


def test_a_list_is_filtered_and_names_what_is_only_remembered(
    start_policy: Start, connect: Connect, policy_lane: Any
) -> None:
    policy = start_policy()
    channel = connect(policy.address)
    declined(policy_lane, channel, target="Small-135M")
    policy_lane(channel, target="Large-7B").settle()
    pin(channel, policy_lane(channel, target="Pinned-1B").snapshot.key_hash, speculate=False)
    policy.stop()

    channel = connect(start_policy().address)
    policy_lane(channel, target="New-3B")

    def targets(**wanted: Any) -> set[str]:
        request = admin_pb2.ListVerdictsRequest(filter=admin_pb2.VerdictFilter(**wanted))
        return {view.snapshot.key.target for view in admin(channel).ListVerdicts(request, timeout=10).verdicts}

    assert targets() == {"Small-135M", "Large-7B", "Pinned-1B", "New-3B"}
    assert targets(target="small") == {"Small-135M"}
    assert targets(verdict=policy_pb2.VERDICT_ENABLE) == {"Large-7B"}
    assert targets(state=policy_pb2.POLICY_STATE_PROFILING) == {"Pinned-1B", "New-3B"}
    assert targets(pinned=True) == {"Pinned-1B"}
    assert targets(hardware="TEST", drafter="drafter", target="7b") == {"Large-7B"}
    assert targets(hardware="elsewhere") == set()


class Watching:
    """A watch that a thread reads."""

    def __init__(self, channel: grpc.Channel, resume_token: str = "", **wanted: Any) -> None:
        request = admin_pb2.WatchVerdictsRequest(
            resume_token=resume_token, filter=admin_pb2.VerdictFilter(**wanted) if wanted else None
        )
        self.call = admin(channel).WatchVerdicts(request)
        self.seen: list[Any] = []
        self.error: grpc.RpcError | None = None
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            for change in self.call:
                self.seen.append(change)
        except grpc.RpcError as error:
            self.error = error

    def until(self, arrived: Callable[[list[Any]], bool]) -> None:
        deadline = time.monotonic() + 10
        while not arrived(self.seen):
            assert time.monotonic() < deadline, self.seen
            time.sleep(0.02)

    def end(self) -> None:
        self.call.cancel()
        self._thread.join(10)


def states(seen: list[Any]) -> list[int]:
    return [change.verdict.snapshot.state for change in seen]


def test_a_watch_tells_the_present_then_every_change_and_goes_on_after_a_token(
    start_policy: Start, connect: Connect, policy_lane: Any
) -> None:
    channel = connect(start_policy().address)
    lane = policy_lane(channel)
    watching = Watching(channel)
    watching.until(lambda seen: len(seen) == 1)
    token = watching.seen[0].resume_token
    assert states(watching.seen) == [policy_pb2.POLICY_STATE_PROFILING]
    lane.settle()
    watching.until(lambda seen: states(seen)[-1] == policy_pb2.POLICY_STATE_SETTLED)
    watching.end()
    # However often it changed meanwhile, what was missed is one state for each pairing.
    resumed = Watching(channel, token)
    resumed.until(lambda seen: len(seen) == 1)
    assert states(resumed.seen) == [policy_pb2.POLICY_STATE_SETTLED]
    pin(channel, lane.snapshot.key_hash, speculate=False)
    resumed.until(lambda seen: seen[-1].verdict.snapshot.HasField("pin"))
    resumed.end()
    nothing_new = Watching(channel, resumed.seen[-1].resume_token)
    time.sleep(0.6)
    nothing_new.end()
    assert nothing_new.seen == []


def test_a_watch_with_another_processes_token_starts_anew_and_says_so(
    start_policy: Start, connect: Connect, policy_lane: Any
) -> None:
    channel = connect(start_policy().address)
    policy_lane(channel)
    watching = Watching(channel, "0123abcd.7")
    watching.until(lambda seen: len(seen) == 2)
    watching.end()
    assert [change.restarted for change in watching.seen] == [True, False]
    assert not watching.seen[0].HasField("verdict")


def test_a_watch_tells_what_was_forgotten_by_its_key(start_policy: Start, connect: Connect, policy_lane: Any) -> None:
    # One lane at most means two pairings at most: the third pushes the first out.
    channel = connect(start_policy(max_lanes=1, lane_ttl_s=0.05).address)
    first = policy_lane(channel, target="first")
    watching = Watching(channel)
    watching.until(lambda seen: len(seen) == 1)
    for target in ("second", "third"):
        time.sleep(0.1)
        policy_lane(channel, target=target)
    watching.until(lambda seen: any(change.removed for change in seen))
    watching.end()
    (removed,) = [change for change in watching.seen if change.removed]
    assert removed.verdict.snapshot.key_hash == first.snapshot.key_hash
    assert removed.verdict.snapshot.key.target == "first"


def test_a_watch_does_not_hold_up_a_drain(start_policy: Start, connect: Connect, details_of: Any) -> None:
    policy = start_policy(drain_timeout_s=30)
    watching = Watching(connect(policy.address))
    time.sleep(0.3)
    started = time.monotonic()
    assert policy.stop() == 0
    assert time.monotonic() - started < 5
    watching.end()
    assert watching.error is not None
    assert watching.error.code() is grpc.StatusCode.UNAVAILABLE


def test_hints_move_to_another_service(start_policy: Start, connect: Connect, policy_lane: Any, tmp_path: Path) -> None:
    here = connect(start_policy().address)
    lane = declined(policy_lane, here)
    policy_lane(here, target="other").settle()
    key_hash = lane.snapshot.key_hash
    pin(here, key_hash, speculate=True)
    wanted = admin_pb2.VerdictFilter(verdict=policy_pb2.VERDICT_DECLINE)
    (hint,) = admin(here).ExportHints(admin_pb2.ExportHintsRequest(filter=wanted), timeout=10).hints
    assert len(admin(here).ExportHints(admin_pb2.ExportHintsRequest(), timeout=10).hints) == 2

    there_policy = start_policy(hint_dir=tmp_path / "there")
    there = connect(there_policy.address)
    open_there = policy_lane(there, round_ms=60.0, accepted=1)
    assert open_there.snapshot.state == policy_pb2.POLICY_STATE_PROFILING
    broken = json.dumps({**json.loads(hint), "version": 3})
    request = admin_pb2.ImportHintsRequest(hints=[hint, "{", broken, hint])
    results = admin(there).ImportHints(request, timeout=10).results
    assert [result.stored for result in results] == [True, False, False, False]
    assert results[0].key_hash == key_hash
    assert [result.why_not for result in results[1:]] == [
        "it is not JSON",
        "it has the old version 3; the pairing is re-profiled",
        "what is known already is as new or newer",
    ]
    # It rules the open lane at once, and is on the disk.
    view = verdict(there, key_hash)
    assert (view.snapshot.verdict, view.snapshot.from_hint) == (policy_pb2.VERDICT_DECLINE, True)
    assert view.snapshot.pin.speculate
    assert open_there.burst().reason == policy_pb2.GRANT_REASON_PINNED_ON
    there_policy.kill()
    assert verdict(connect(start_policy(hint_dir=tmp_path / "there").address), key_hash).snapshot.pin.speculate


def test_an_older_hint_is_only_taken_by_force(start_policy: Start, connect: Connect, policy_lane: Any) -> None:
    channel = connect(start_policy().address)
    lane = declined(policy_lane, channel)
    (older,) = admin(channel).ExportHints(admin_pb2.ExportHintsRequest(), timeout=10).hints
    reset = admin_pb2.ResetVerdictRequest(key_hash=lane.snapshot.key_hash)
    admin(channel).ResetVerdict(reset, timeout=10)

    def stored(*, overwrite: bool) -> Any:
        request = admin_pb2.ImportHintsRequest(hints=[older], overwrite=overwrite)
        return admin(channel).ImportHints(request, timeout=10).results[0].stored

    assert not stored(overwrite=False)
    assert stored(overwrite=True)
    assert verdict(channel, lane.snapshot.key_hash).snapshot.verdict == policy_pb2.VERDICT_DECLINE


def test_a_grant_is_explained_rule_by_rule(start_policy: Start, connect: Connect, policy_lane: Any) -> None:
    channel = connect(start_policy().address)
    lane = declined(policy_lane, channel)
    given = lane.burst()
    answer = admin(channel).ExplainGrant(admin_pb2.ExplainGrantRequest(lane_id=lane.lane_id), timeout=10)
    assert answer.grant == given
    assert [rule.rule for rule in answer.rules if rule.decided] == ["verdict"]
    assert all(rule.answer for rule in answer.rules)
    before = verdict(channel, lane.snapshot.key_hash)
    situation = policy_pb2.Situation(width=1, depth_tokens=64, eligible=False)
    request = admin_pb2.ExplainGrantRequest(lane_id=lane.lane_id, situation=situation)
    preview = admin(channel).ExplainGrant(request, timeout=10)
    assert preview.grant.mode == PLAIN
    assert preview.rules
    assert verdict(channel, lane.snapshot.key_hash) == before, "asking changed something"


def test_a_lane_without_a_grant_has_nothing_to_explain_but_a_situation(
    start_policy: Start, connect: Connect, policy_lane: Any, details_of: Any
) -> None:
    channel = connect(start_policy().address)
    lane = policy_lane(channel)
    with pytest.raises(grpc.RpcError) as caught:
        admin(channel).ExplainGrant(admin_pb2.ExplainGrantRequest(lane_id=lane.lane_id), timeout=10)
    assert details_of(caught.value)["ErrorInfo"].reason == "NO_GRANT_YET"
    situation = policy_pb2.Situation(width=1, eligible=True)
    request = admin_pb2.ExplainGrantRequest(lane_id=lane.lane_id, situation=situation)
    assert admin(channel).ExplainGrant(request, timeout=10).grant.max_steps > 0


def recorded(lane: Any, bursts: int) -> list[policy_pb2.BurstOutcome]:
    """The outcomes of a lane's bursts."""
    outcomes: list[policy_pb2.BurstOutcome] = []
    for _ in range(bursts):
        lane.burst()
        outcomes.extend(lane.request().outcomes)
    return outcomes


def test_a_trace_is_replayed_with_these_and_with_other_settings(
    start_policy: Start, connect: Connect, policy_lane: Any
) -> None:
    channel = connect(start_policy().address)
    lane = policy_lane(channel, round_ms=60.0, accepted=1)
    outcomes = recorded(lane, 30)
    steps = sum(len(outcome.steps) for outcome in outcomes)

    def replayed(**settings: str) -> Any:
        request = admin_pb2.ReplayTraceRequest(lane=lane.open_request, outcomes=outcomes, settings=settings)
        return admin(channel).ReplayTrace(request, timeout=20)

    same = replayed()
    assert len(same.steps) == steps
    assert same.recorded_ms == pytest.approx(sum(step.wall_ms for one in outcomes for step in one.steps))
    assert same.snapshot.verdict == policy_pb2.VERDICT_DECLINE
    assert replayed() == same, "a replay is not deterministic"
    forced = replayed(MTP_FORCE="on")
    assert {step.reason for step in forced.steps} == {policy_pb2.GRANT_REASON_FORCED_ON}
    assert forced.replayed_ms > same.replayed_ms, "rounds that lose were estimated to win"


def test_every_bad_admin_field_is_an_invalid_argument_that_names_it(
    start_policy: Start, connect: Connect, policy_lane: Any, details_of: Any
) -> None:
    channel = connect(start_policy().address)
    lane = policy_lane(channel)
    key_hash, ask = lane.snapshot.key_hash, admin(channel)
    long = "ж" * 129
    good_pin = {"key_hash": key_hash, "reason": "why", "author": "who"}

    def pinned(**fields: Any) -> Any:
        return lambda: ask.PinVerdict(admin_pb2.PinVerdictRequest(**{**good_pin, **fields}))

    def listed(**fields: Any) -> Any:
        return lambda: ask.ListVerdicts(admin_pb2.ListVerdictsRequest(**fields))

    def replayed(**fields: Any) -> Any:
        request = admin_pb2.ReplayTraceRequest(**{"lane": lane.open_request, **fields})
        return lambda: ask.ReplayTrace(request)

    step = policy_pb2.StepRecord(mode=PLAIN, draft_width=1, width=1)
    many = [policy_pb2.BurstOutcome(sequence=n + 1, steps=[step] * 1000) for n in range(11)]
    no_key = policy_pb2.OpenLaneRequest(capabilities=lane.open_request.capabilities)
    explain = admin_pb2.ExplainGrantRequest
    table: list[tuple[str, Any]] = [
        ("key_hash", lambda: ask.GetVerdict(admin_pb2.GetVerdictRequest())),
        ("key_hash", lambda: ask.UnpinVerdict(admin_pb2.UnpinVerdictRequest(key_hash=long))),
        ("key_hash", lambda: ask.ResetVerdict(admin_pb2.ResetVerdictRequest())),
        ("key_hash", pinned(key_hash="")),
        ("reason", pinned(reason=" ")),
        ("reason", pinned(reason="x" * 501)),
        ("author", pinned(author="")),
        ("author", pinned(author="x" * 101)),
        ("ttl", pinned(ttl=Duration(nanos=999_999_999))),
        ("ttl", pinned(ttl=Duration(seconds=-5))),
        ("ttl", pinned(ttl=Duration(seconds=10**10))),
        ("page_size", listed(page_size=-1)),
        ("page_size", listed(page_size=1001)),
        ("page_token", listed(page_token=long)),
        ("filter.target", listed(filter={"target": long})),
        ("filter.drafter", listed(filter={"drafter": long})),
        ("filter.hardware", listed(filter={"hardware": long})),
        ("filter.state", listed(filter={"state": 5})),
        ("filter.verdict", listed(filter={"verdict": -1})),
        ("filter.state", lambda: ask.ExportHints(admin_pb2.ExportHintsRequest(filter={"state": 9}))),
        ("filter.state", lambda: next(ask.WatchVerdicts(admin_pb2.WatchVerdictsRequest(filter={"state": 9})))),
        ("resume_token", lambda: next(ask.WatchVerdicts(admin_pb2.WatchVerdictsRequest(resume_token="x")))),
        ("resume_token", lambda: next(ask.WatchVerdicts(admin_pb2.WatchVerdictsRequest(resume_token=long)))),
        ("hints", lambda: ask.ImportHints(admin_pb2.ImportHintsRequest(hints=["{}"] * 1001))),
        ("hints[1]", lambda: ask.ImportHints(admin_pb2.ImportHintsRequest(hints=["{}", " " * 65_537]))),
        ("lane_id", lambda: ask.ExplainGrant(explain())),
        ("situation.width", lambda: ask.ExplainGrant(explain(lane_id=lane.lane_id, situation=policy_pb2.Situation()))),
        ("lane", lambda: ask.ReplayTrace(admin_pb2.ReplayTraceRequest())),
        ("lane.key", replayed(lane=no_key)),
        ("outcomes", replayed(outcomes=many)),
        ("outcomes[0].sequence", replayed(outcomes=[policy_pb2.BurstOutcome()])),
        ('settings["LOG_LEVEL"]', replayed(settings={"LOG_LEVEL": "debug"})),
        ('settings["gate_refresh_steps"]', replayed(settings={"gate_refresh_steps": "5"})),
        ('settings["GATE_REFRESH_STEPS"]', replayed(settings={"GATE_REFRESH_STEPS": "0"})),
        ('settings["MTP_FORCE"]', replayed(settings={"MTP_FORCE": "perhaps"})),
    ]
    for field, call in table:
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, (field, caught.value)
        details = details_of(caught.value)
        assert [violation.field for violation in details["BadRequest"].field_violations] == [field]
    assert verdict(channel, key_hash).snapshot == lane.snapshot


def test_a_question_about_what_does_not_exist_is_not_found(
    start_policy: Start, connect: Connect, details_of: Any
) -> None:
    ask = admin(connect(start_policy().address))
    unknown = "0" * 16
    for call, reason in (
        (lambda: ask.PinVerdict(admin_pb2.PinVerdictRequest(key_hash=unknown, reason="r", author="a")), "VERDICT"),
        (lambda: ask.UnpinVerdict(admin_pb2.UnpinVerdictRequest(key_hash=unknown)), "VERDICT"),
        (lambda: ask.ResetVerdict(admin_pb2.ResetVerdictRequest(key_hash=unknown)), "VERDICT"),
        (lambda: ask.ExplainGrant(admin_pb2.ExplainGrantRequest(lane_id="gone")), "LANE"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert details_of(caught.value)["ErrorInfo"].reason == f"UNKNOWN_{reason}"


def test_a_long_replay_keeps_no_grant_waiting(start_policy: Start, connect: Connect, policy_lane: Any) -> None:
    policy = start_policy()
    channel = connect(policy.address)
    lane = policy_lane(channel, target="asked")
    step = policy_pb2.StepRecord(
        mode=SPECULATIVE, draft_width=4, width=1, emitted=3, proposed=3, verify_ms=20, wall_ms=20
    )
    step.accepted_by_position.extend([1, 1])
    outcomes = [policy_pb2.BurstOutcome(sequence=n + 1, steps=[step] * 1000) for n in range(10)]
    request = admin_pb2.ReplayTraceRequest(lane=lane.open_request, outcomes=outcomes)
    replaying = admin(connect(policy.address)).ReplayTrace.future(request, timeout=60)
    slowest_s, asked = 0.0, 0
    while not replaying.done():
        started = time.perf_counter()
        lane.burst()
        slowest_s = max(slowest_s, time.perf_counter() - started)
        asked += 1
    assert len(replaying.result().steps) == 10_000
    assert asked > 10
    assert slowest_s < 0.25

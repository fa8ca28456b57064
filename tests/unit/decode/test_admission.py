"""Limits, deadlines and memory at the queue's door and within it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decode.waiting_rows import HIGH, LOW, admission, next_of, refused, row, submit

from burstgate_decode.engine.admission import Admission
from burstgate_decode.engine.cache_room import CacheRoom
from burstgate_decode.engine.row import Row
from burstgate_decode.models.cache_shape import CacheCost, CacheShape
from burstgate_runtime.faults import FaultKind

CHUNK_TOKENS = 128


def measured(chunk_ms: float = 100.0, step_ms: float = 20.0, now_ms: float = 0.0, active: int = 1) -> Admission[Row]:
    """Admission that knows how fast the machine is."""
    among = admission(active=active)
    for _ in range(4):
        among.pace.read(CHUNK_TOKENS, chunk_ms, now_ms)
        among.pace.stepped(step_ms, now_ms)
    return among


def with_room(limit_bytes: int, active: int = 8) -> Admission[Row]:
    """Admission with memory for so many bytes, one a token."""
    among = admission(active=active)
    among.room = CacheRoom(CacheCost(1, 0, shared=True), limit_bytes, overhang_tokens=0)
    return among


# --- limits


def test_a_full_queue_refuses_and_takes_all_answers_of_a_request_or_none() -> None:
    among = admission(active=2, queued=1)
    assert refused(among, *(row() for _ in range(4))).reason == "QUEUE_FULL"
    among.submit([row() for _ in range(3)], 0.0)
    fault = refused(among, row())
    assert (fault.kind, fault.reason) == (FaultKind.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert fault.retry_after_ms


def test_a_tenants_places_are_limited_and_the_others_go_to_other_tenants() -> None:
    among = admission(active=4, tenant_max_active_rows=2)
    mine, theirs = [row("a") for _ in range(5)], [row("b") for _ in range(1)]
    submit(among, *mine, *theirs)
    assert set(among.admit()) == {mine[0], mine[1], theirs[0]}
    among.release(mine[0])
    assert among.admit() == [mine[2]]


def test_a_tenants_queue_is_limited_and_the_refusal_names_tenant_and_limit() -> None:
    among = admission(active=4, tenant_max_active_rows=1, tenant_max_queued_rows=2)
    among.submit([row("a") for _ in range(3)], 0.0)
    fault = refused(among, row("a"))
    assert (fault.kind, fault.reason) == (FaultKind.RESOURCE_EXHAUSTED, "TENANT_QUEUE_FULL")
    assert fault.metadata == {"tenant": "a", "limit": "2"}
    assert "'a'" in fault.message
    assert "at most 2" in fault.message
    assert fault.retry_after_ms
    submit(among, row("b"))
    among.admit()
    assert refused(among, row("a")).reason == "TENANT_QUEUE_FULL"
    assert "name no tenant" in refused(among, *(row() for _ in range(5))).message


def test_rows_that_find_a_place_at_once_do_not_count_as_waiting() -> None:
    among = admission(active=4, tenant_max_queued_rows=1)
    among.submit([row("a") for _ in range(5)], 0.0)
    assert refused(among, row("a")).reason == "TENANT_QUEUE_FULL"
    # Before anybody of them runs, the places are as good as theirs.
    assert refused(among, *(row("b") for _ in range(2))).reason == "TENANT_QUEUE_FULL"
    submit(among, row("b"))


def test_cancelled_rows_leave_the_queue_and_its_limits() -> None:
    among = admission(active=1, queued=1, tenant_max_queued_rows=1)
    rows = [row("a"), row("a")]
    submit(among, *rows)
    rows[0].ticket.cancel()
    assert among.expire(0.0) == []
    assert among.waiting == 1
    submit(among, row("a"))
    assert among.admit() == [rows[1]]


def test_closing_returns_who_waited_and_leaves_nothing() -> None:
    among = admission()
    rows = [row("a"), row("b", HIGH), row("b", LOW)]
    submit(among, *rows)
    (running,) = among.admit()
    assert set(among.close()) == set(rows) - {running}
    assert (among.active, among.waiting) == (0, 0)


# --- deadlines


def test_nothing_is_turned_away_before_something_was_measured() -> None:
    among = admission()
    submit(among, row(prompt_tokens=90_000, tokens=90_001, time_left_ms=1.0))
    assert among.expire(0.5) == []


def test_a_deadline_that_has_passed_is_refused_even_then() -> None:
    fault = refused(admission(), row(time_left_ms=5.0), now_ms=5.0)
    assert (fault.kind, fault.reason) == (FaultKind.DEADLINE_EXCEEDED, "DEADLINE_UNREACHABLE")
    assert "passed" in fault.message


def test_a_deadline_that_the_fastest_machine_could_not_meet_is_refused_with_the_estimate() -> None:
    among = measured(chunk_ms=100.0, step_ms=20.0)
    # Ten whole chunks and a step at half of what they took: 510 ms.
    long = {"prompt_tokens": 10 * CHUNK_TOKENS + 100, "tokens": 2000}
    submit(among, row(time_left_ms=511.0, **long))
    fault = refused(among, row(time_left_ms=509.0, **long))
    assert (fault.kind, fault.reason) == (FaultKind.DEADLINE_EXCEEDED, "DEADLINE_UNREACHABLE")
    assert fault.metadata == {"estimate_ms": "510", "left_ms": "509"}
    assert "at least 510 ms" in fault.message
    submit(among, row(**long))


def test_what_a_prompt_can_reuse_is_not_counted_against_its_deadline() -> None:
    among = measured(chunk_ms=100.0, step_ms=20.0)
    among.reusable = lambda prompt: 8 * CHUNK_TOKENS
    long = {"prompt_tokens": 10 * CHUNK_TOKENS + 100, "tokens": 2000}
    submit(among, row(time_left_ms=111.0, **long))
    fault = refused(among, row(time_left_ms=109.0, **long))
    assert fault.metadata == {"estimate_ms": "110", "left_ms": "109"}


def test_rows_that_wait_are_given_up_when_their_deadline_cannot_be_met_any_more() -> None:
    among = measured()
    submit(among, row("runs"))
    among.admit()
    long = row(prompt_tokens=10 * CHUNK_TOKENS + 1, tokens=2000, time_left_ms=1000.0)
    short = row(prompt_tokens=1, time_left_ms=1000.0)
    patient = row()
    submit(among, long, short, patient)
    assert among.expire(489.0) == []
    assert [late for late, _ in among.expire(491.0)] == [long]
    assert among.waiting == 2
    assert [late for late, _ in among.expire(991.0)] == [short]
    assert among.expire(1e9) == []
    assert among.waiting == 1


def test_short_chunks_of_short_prompts_say_nothing_of_long_prompts() -> None:
    among = admission()
    for _ in range(64):
        among.pace.read(3, 100.0, 0.0)
        among.pace.stepped(20.0, 0.0)
    submit(among, row(prompt_tokens=3000, tokens=3001, time_left_ms=100.0))


def test_a_larger_chunk_counts_by_the_time_of_its_tokens() -> None:
    among = admission()
    for _ in range(4):
        among.pace.read(2 * CHUNK_TOKENS, 200.0, 0.0)
        among.pace.stepped(20.0, 0.0)
    ten_chunks = {"prompt_tokens": 10 * CHUNK_TOKENS + 1, "tokens": 2000}
    refused(among, row(time_left_ms=509.0, **ten_chunks))
    submit(among, row(time_left_ms=511.0, **ten_chunks))


def test_the_fastest_of_late_counts_so_that_a_slow_spell_turns_nobody_away() -> None:
    among = measured(chunk_ms=100.0)
    for _ in range(30):
        among.pace.read(CHUNK_TOKENS, 5000.0, 0.0)
    submit(among, row(prompt_tokens=10 * CHUNK_TOKENS + 1, tokens=2000, time_left_ms=520.0))


def test_what_was_measured_is_forgotten_after_a_minute() -> None:
    among = measured(now_ms=0.0)
    long = {"prompt_tokens": 10 * CHUNK_TOKENS + 1, "tokens": 2000}
    refused(among, row(time_left_ms=60_100.0, **long), now_ms=60_000.0)
    among.submit([row(time_left_ms=60_101.0, **long)], 60_001.0)


# --- memory


def test_a_request_that_can_never_fit_is_refused_with_what_it_needs() -> None:
    among = with_room(limit_bytes=1024)
    submit(among, row(tokens=1024))
    fault = refused(among, row(tokens=1025))
    assert (fault.kind, fault.reason) == (FaultKind.RESOURCE_EXHAUSTED, "CACHE_TOO_SMALL")
    assert fault.metadata == {"needed_bytes": "1280", "limit_bytes": "1024"}
    assert "1280" in fault.message
    assert "1024" in fault.message
    assert fault.retry_after_ms is None


def test_rows_share_the_longest_ones_length_and_a_power_of_two_of_slots() -> None:
    among = with_room(limit_bytes=4 * 512)
    submit(among, row(tokens=300), row(tokens=10), row(tokens=10), row(tokens=10), row(tokens=10))
    # Four slots of two blocks; a fifth row would need eight.
    assert len(among.admit()) == 4
    assert among.reserved_bytes == 2048


def test_what_the_caches_still_hold_counts_after_a_long_row_has_left() -> None:
    among = with_room(limit_bytes=4 * 512)
    submit(among, row(tokens=10), row(tokens=10), row(tokens=10))
    among.held = CacheShape(slots=2, tokens=1024)
    one, other = among.admit()
    assert among.reserved_bytes == 2048
    among.release(one)
    assert among.reserved_bytes == 2048
    among.held = CacheShape(slots=1, tokens=256)
    assert among.reserved_bytes == 256
    among.release(other)
    assert among.reserved_bytes == 0


def test_a_row_that_does_not_fit_yet_lets_others_pass_for_a_while_and_is_then_waited_for() -> None:
    among = with_room(limit_bytes=2048)
    running = row("a", tokens=1024)
    submit(among, running)
    among.admit()
    large = row("a", tokens=2048)
    submit(among, large)
    passed = 0
    while True:
        submit(among, small := row("b", tokens=1024))
        if not among.admit():
            break
        passed += 1024
        among.release(small)
    assert passed == 8 * 2048
    among.release(running)
    assert among.admit() == [large]


@given(
    st.lists(st.tuples(st.integers(2, 2048), st.sampled_from("ab")), min_size=1, max_size=40),
    st.integers(2048, 8192),
    st.integers(1, 6),
    st.data(),
)
def test_memory_is_never_promised_twice_and_everybody_is_served(
    asked: list[tuple[int, str]], limit_bytes: int, active: int, data: st.DataObject
) -> None:
    among = with_room(limit_bytes, active)
    rows = [row(tenant, tokens=tokens) for tokens, tenant in asked]
    submit(among, *rows)
    running: list[Row] = []
    served = 0
    while served < len(rows):
        running += among.admit()
        assert running, "somebody waits, and nobody runs"
        assert among.reserved_bytes <= limit_bytes
        among.release(running.pop(data.draw(st.integers(0, len(running) - 1))))
        served += 1
    assert (among.active, among.waiting, among.reserved_bytes) == (0, 0, 0)


@pytest.mark.parametrize("shared", [True, False])
def test_rows_with_caches_of_their_own_cost_their_own_blocks(shared: bool) -> None:
    room = CacheRoom(CacheCost(2, 7, shared), 10**9, overhang_tokens=8)
    held = CacheShape(0, 0)
    assert room.reserved([], held) == 0
    assert room.reserved([248, 249, 1], held) == (4 * 512 if shared else 256 + 512 + 256) * 2 + 21
    assert room.reserved([248], held) == 256 * 2 + 7


def test_the_next_of_two_equals_is_the_older() -> None:
    among = admission()
    first, second = row("a"), row("b")
    submit(among, first, second)
    assert [next_of(among), next_of(among)] == [first, second]

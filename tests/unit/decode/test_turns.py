"""Whose turn it is: fair by tokens among tenants, by priority, and nobody waits for ever."""

from collections import Counter
from itertools import count

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decode.waiting_rows import HIGH, LOW, NORMAL, admission, next_of, row, submit

from burstgate_decode.engine.request import Priority
from burstgate_decode.engine.row import Row
from burstgate_decode.engine.turns import tokens_of


def test_one_tenant_is_served_in_the_order_of_arrival() -> None:
    rows = [row("a", tokens=100 + place) for place in range(20)]
    among = admission()
    submit(among, *rows)
    assert [next_of(among) for _ in rows] == rows


def test_sixty_waiting_requests_of_a_tenant_do_not_hold_up_the_first_of_another() -> None:
    among = admission(active=8)
    submit(among, *(row("crowd") for _ in range(68)))
    running = among.admit()
    single = row("single")
    submit(among, single)
    among.release(running[3])
    assert among.admit() == [single]


def test_the_next_place_is_a_newcomers_even_if_there_is_only_one() -> None:
    among = admission()
    submit(among, *(row("crowd") for _ in range(60)))
    next_of(among), next_of(among)
    submit(among, single := row("single"))
    assert next_of(among) is single


def test_tenants_that_wait_take_turns_by_tokens_and_not_by_requests() -> None:
    among = admission()
    submit(among, *(row("large", tokens=1000) for _ in range(10)), *(row("small", tokens=100) for _ in range(100)))
    order = [next_of(among).claim.tenant for _ in range(55)]
    assert Counter(order) == {"large": 5, "small": 50}


def test_a_tenant_that_rested_has_saved_nothing_up() -> None:
    among = admission()
    submit(among, *(row("early") for _ in range(2)))
    next_of(among), next_of(among)
    submit(among, *(row("busy") for _ in range(60)))
    for _ in range(40):
        next_of(among)
    submit(among, *(row("early") for _ in range(60)))
    order = [next_of(among).claim.tenant for _ in range(20)]
    assert Counter(order) == {"early": 10, "busy": 10}


def test_a_tenant_held_back_by_its_own_limit_saves_nothing_up_either() -> None:
    among = admission(active=2, tenant_max_active_rows=1)
    held, blocker = row("held"), row("blocker", HIGH)
    submit(among, held, *(row("held") for _ in range(60)))
    assert among.admit() == [held]
    submit(among, *(row("busy") for _ in range(60)))
    for _ in range(40):
        next_of(among)
    among.release(held)
    submit(among, blocker)
    # The blocker keeps one place; the two tenants compete for the other.
    _, first = among.admit()
    among.release(first)
    order = Counter(next_of(among).claim.tenant for _ in range(20))
    assert order == {"held": 10, "busy": 10}


def test_a_newcomer_starts_level_with_those_that_compete_and_not_with_one_held_back() -> None:
    among = admission(active=2, tenant_max_active_rows=1)
    submit(among, *(row("held") for _ in range(60)))
    among.admit()
    submit(among, *(row("busy") for _ in range(60)))
    for _ in range(40):
        next_of(among)
    submit(among, *(row("new") for _ in range(60)))
    order = Counter(next_of(among).claim.tenant for _ in range(20))
    assert order == {"busy": 10, "new": 10}


def test_what_a_tenant_had_is_remembered_while_others_wait() -> None:
    among = admission()
    submit(among, *(row("crowd", tokens=100) for _ in range(60)), row("greedy", tokens=1000))
    while next_of(among).claim.tenant != "greedy":
        pass
    submit(among, again := row("greedy", tokens=1000))
    order = [next_of(among) for _ in range(11)]
    assert order.index(again) >= 9


def test_priorities_order_within_a_tenant_and_across_tenants() -> None:
    low, normal, high, other = row("a", LOW), row("a"), row("a", HIGH), row("b", HIGH)
    among = admission()
    submit(among, low, normal, high, other)
    assert [next_of(among) for _ in range(4)] == [high, other, normal, low]


def test_a_low_request_of_a_tenant_gets_a_share_beside_its_own_high_ones() -> None:
    among = admission()
    low = row("a", LOW, tokens=100)
    submit(among, low)
    overtaken = 0
    while True:
        submit(among, *(row("a", HIGH, tokens=1000) for _ in range(2)))
        if next_of(among) is low:
            break
        overtaken += 1
    # Twice 8,192 tokens, in whole requests; among equals the older one goes first.
    assert overtaken == 17


def test_rows_that_arrived_earlier_overtake_nobody() -> None:
    among = admission()
    early = [row(f"t{place}", tokens=8000) for place in range(30)]
    late = row("late", LOW, tokens=100)
    submit(among, *early, late)
    for _ in range(29):
        assert next_of(among) is not late
    high = row("t0", HIGH)
    submit(among, high)
    assert next_of(among) is high


def test_a_cancelled_head_takes_along_what_it_had_waited() -> None:
    among = admission()
    first, second = row("a", LOW), row("a", LOW)
    submit(among, first, second)
    for _ in range(16):
        submit(among, row("b", HIGH, tokens=1000))
        next_of(among)
    first.ticket.cancel()
    among.expire(0.0)
    for _ in range(16):
        submit(among, row("b", HIGH, tokens=1000))
        assert next_of(among) is not second


def test_tenants_without_rows_are_forgotten() -> None:
    among = admission()
    for place in range(200):
        submit(among, row(f"t{place}"))
        next_of(among)
    assert not among._turns._tenants
    submit(among, *(row("stays") for _ in range(400)))
    for place in range(200):
        submit(among, row(f"t{place}"))
        next_of(among), next_of(among)
    assert len(among._turns._tenants) < 10
    for waits in among._turns.rows():
        waits.ticket.cancel()
    among.expire(0.0)
    assert not among._turns._tenants


_TENANTS = st.sampled_from(["a", "b", "c", "d"])
_PRIORITIES = st.sampled_from(list(Priority))


@given(st.lists(st.lists(st.integers(2, 1000), min_size=30, max_size=30), min_size=2, max_size=4), st.data())
def test_tenants_that_always_wait_are_given_equal_shares_whatever_they_ask_for(
    sizes: list[list[int]], data: st.DataObject
) -> None:
    """No two are ever further apart than one of their requests, in whatever order places come free."""
    among = admission(active=3)
    for place in range(30):
        submit(among, *(row(str(tenant), tokens=asked[place]) for tenant, asked in enumerate(sizes)))
    given_tokens = Counter({str(tenant): 0 for tenant in range(len(sizes))})
    left = Counter({str(tenant): 30 for tenant in range(len(sizes))})
    active: list[Row] = []
    while min(left.values()) > 0:
        for given_row in among.admit():
            active.append(given_row)
            given_tokens[given_row.claim.tenant] += tokens_of(given_row)
            left[given_row.claim.tenant] -= 1
            if min(left.values()) > 0:
                assert max(given_tokens.values()) - min(given_tokens.values()) <= 1000
        among.release(active.pop(data.draw(st.integers(0, len(active) - 1))))


@given(
    st.integers(2, 3000),
    _TENANTS,
    _PRIORITIES,
    st.lists(st.tuples(_TENANTS, _PRIORITIES, st.integers(2, 3000)), min_size=1, max_size=12),
    st.integers(1, 4),
)
def test_nobody_starves_whatever_keeps_coming(
    tokens: int, tenant: str, priority: Priority, coming: list[tuple[str, Priority, int]], a_turn: int
) -> None:
    """A row at the head of its line is overtaken by a bounded amount of work, under any stream that fills the place."""
    among = admission(queued=100_000)
    waits = row(tenant, priority, tokens)
    submit(among, waits)
    patience = max(8 * tokens, 8192)
    # What may have risen as far itself, at one row for each line of the four tenants, comes on top.
    most = 3 * patience + 13 * 3000
    overtaken = 0
    stream = count()
    while True:
        submit(among, *(row(*coming[next(stream) % len(coming)]) for _ in range(a_turn)))
        given_row = next_of(among)
        if given_row is waits:
            break
        overtaken += tokens_of(given_row)
        assert overtaken <= most


@given(st.integers(2, 3000), st.integers(2, 3000))
def test_not_even_tenants_that_are_made_up_for_each_request_starve_another(tokens: int, theirs: int) -> None:
    among = admission(queued=100_000)
    submit(among, row("patient", NORMAL, 10))
    next_of(among)
    waits = row("patient", NORMAL, tokens)
    submit(among, waits)
    overtaken = 0
    for name in count():
        submit(among, row(f"made-up-{name}", NORMAL, theirs))
        if next_of(among) is waits:
            break
        overtaken += theirs
        assert overtaken <= max(8 * tokens, 8192) + theirs

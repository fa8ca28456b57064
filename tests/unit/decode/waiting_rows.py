"""Rows for admission alone: no model is near."""

from burstgate_decode.engine.admission import Admission
from burstgate_decode.engine.limits import EngineLimits
from burstgate_decode.engine.request import AnswerRequest, Claim, Priority
from burstgate_decode.engine.row import Row, Ticket
from burstgate_runtime.faults import Fault

LOW, NORMAL, HIGH = Priority.LOW, Priority.NORMAL, Priority.HIGH


def row(
    tenant: str = "",
    priority: Priority = NORMAL,
    tokens: int = 100,
    *,
    prompt_tokens: int = 1,
    time_left_ms: float | None = None,
) -> Row:
    """A row that comes to `tokens` tokens, and arrived at 0 ms."""
    request = AnswerRequest("test", 0, (0,) * prompt_tokens, tokens - prompt_tokens)
    return Row(request, Ticket(), lambda _events: None, lambda: 0.0, Claim(tenant, priority, time_left_ms))


def admission(*, active: int = 1, queued: int = 1000, **limits: int) -> Admission[Row]:
    return Admission(EngineLimits(max_active_rows=active, max_queued_rows=queued, **limits))


def submit(to: Admission[Row], *rows: Row) -> None:
    """Each as a request of its own."""
    for one in rows:
        to.submit([one], 0.0)


def next_of(among: Admission[Row]) -> Row:
    """Who is given the only place; it is given back for the next."""
    (given,) = among.admit()
    among.release(given)
    return given


def refused(to: Admission[Row], *rows: Row, now_ms: float = 0.0) -> Fault:
    """Why rows of one request are not let in."""
    before = to.waiting
    try:
        to.submit(rows, now_ms)
    except Fault as fault:
        assert to.waiting == before, "a part of the request waits"
        return fault
    raise AssertionError("the request was taken")

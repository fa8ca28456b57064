"""What a soak calls broken, and what its callers ask."""

from dataclasses import replace
from random import Random

import pytest

from burstgate_bench.soak_run import Sample, Soaked
from burstgate_bench.soak_traffic import Call, Manner, Tally, draw_call

HOUR_S = 3600.0
SAMPLE = Sample(at_s=0.0, resident_mib=800.0, threads=20, files=15, active=8, queued=8)


def soaked(**ended: int) -> Soaked:
    one = Soaked(HOUR_S, Tally(), samples=[SAMPLE] * 40)
    one.tally.ended.update(ended or {"finished": 3})
    return one


def greedy() -> Call:
    random = Random(1)
    return next(call for call in iter(lambda: draw_call(random), None) if call.repeatable is not None)


def test_a_soak_that_met_only_documented_ends_is_whole() -> None:
    assert soaked(finished=3, cancelled=2, QUEUE_FULL=1, DEADLINE_EXCEEDED=1).broken == []


@pytest.mark.parametrize("end", ["INTERNAL", "UNAVAILABLE", "CLIENT_STALLED", "INVALID_FIELD"])
def test_any_other_end_breaks_it(end: str) -> None:
    assert end in soaked(finished=3, **{end: 1}).broken[0]


def test_a_soak_in_which_nothing_finished_is_broken() -> None:
    assert soaked(QUEUE_FULL=9).broken == ["no answer was finished"]


def test_rows_that_stay_break_it() -> None:
    one = soaked()
    one.left = (1, 0)
    assert one.broken == ["1 rows and 0 queued answers were left"]


def test_a_service_that_ended_breaks_it() -> None:
    one = soaked()
    one.exit_code = -9
    assert one.broken == ["the decode service ended with -9"]


def test_memory_may_grow_in_the_warm_up_and_not_later() -> None:
    one = soaked()
    one.samples = [replace(SAMPLE, resident_mib=100.0)] * 10 + [SAMPLE] * 30
    assert one.growth_mib == 0.0
    one.samples = [SAMPLE] * 20 + [replace(SAMPLE, resident_mib=900.0)] * 20
    assert one.broken == ["memory grew by 100 MiB after the warm-up"]


def test_a_short_soak_is_all_warm_up() -> None:
    one = soaked()
    one.seconds = 60.0
    one.samples = [SAMPLE] * 20 + [replace(SAMPLE, resident_mib=900.0)] * 20
    assert one.broken == []


def test_answers_to_one_greedy_request_must_agree_as_far_as_both_go() -> None:
    one, call = soaked(), greedy()
    for tokens in ((1, 2), (1, 2, 3), (1,), (1, 2, 3, 4)):
        one.tally.compare(call, tokens)
    assert one.broken == []
    one.tally.compare(call, (1, 2, 5))
    assert one.broken == ["1 greedy answers differ from others to the same prompt"]


def test_answers_drawn_by_chance_are_not_compared() -> None:
    random, tally = Random(1), Tally()
    call = next(call for call in iter(lambda: draw_call(random), None) if call.repeatable is None)
    tally.compare(call, (1,))
    tally.compare(call, (2,))
    assert tally.differing == 0


def test_the_same_seed_asks_the_same() -> None:
    one, other = ([draw_call(random) for _ in range(50)] for random in (Random("1 7"), Random("1 7")))
    assert one == other
    assert {call.manner for call in one} == set(Manner)


def test_only_late_callers_have_a_deadline() -> None:
    random = Random(3)
    for call in (draw_call(random) for _ in range(200)):
        assert (call.options["timeout_s"] is not None) == (call.manner is Manner.IS_LATE)

"""What went wrong in gates elsewhere, each as a story with a bound in numbers that the default lane keeps.

A story's docstring says what happened there; its asserts say how much of it may happen here. Where the fault
lay in the text or in the drafter's state, the policy's half is told here and the docstring names the tests of
the other half. The later ones are in `test_simulated_weaknesses.py`.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from tests.unit.policy.driver import NOW, PLAIN_MS, Driver, Machine, plain_share, rate, rounds_share, situation

from burstgate_policy.config import PolicySettings
from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.regime import regime
from burstgate_policy.core.types import Grant, Mode, Reason, Situation
from burstgate_runtime.settings import SettingsError, load_settings

WIDTHS = [1, 2, 4, 8, 16, 32]
FAST = Machine(round_ms=lambda _, k: PLAIN_MS)
"""Rounds keep one draft for the price of a plain step: twice as fast."""
HOPELESS = Machine(kept=lambda _: 0)
"""Rounds keep nothing and cost half as much again."""


def by_width(plain_wins: Callable[[int], bool]) -> Callable[[Situation, int], float]:
    """Rounds of two tokens that cost three plain steps where plain wins, and one elsewhere."""
    return lambda at, _: PLAIN_MS * (3.0 if plain_wins(at.width) else 1.0)


def test_s01_a_whole_step_decides_not_its_parts() -> None:
    """A vote on verify time over decode time turned speculation off although whole steps were 18 % faster."""
    kept = (1, 2, 1, 2)  # 2.5 tokens for 2.12 plain steps
    winning = Driver(Machine(round_ms=lambda _, k: 2.12 * PLAIN_MS, kept=lambda n: kept[n % 4]), cap=3)
    assert rounds_share(winning.run(3000)) > 0.97
    assert rate(winning.ran) > 0.97 * 2.5 / (2.12 * PLAIN_MS / 1000.0)
    # The other way round: drafting and verifying look cheap, the rest of the step does not.
    losing = Driver(Machine(round_ms=lambda _, k: 3.0 * PLAIN_MS, kept=lambda n: kept[n % 4]), cap=3)
    losing.run(200)
    assert plain_share(losing.run(3000)) > 0.97
    assert rate(losing.ran[200:]) > 0.98 * 1000.0 / PLAIN_MS


def test_s02_a_short_first_request_latches_nothing() -> None:
    """The first request decided for ever: a short warm-up, and deep sessions then ran in its mode."""
    deep = situation(depth_tokens=6000)
    lane = Driver(
        Machine(
            plain_ms=lambda at: PLAIN_MS * (4.0 if at.depth_tokens > 1000 else 1.0),
            round_ms=lambda at, _: PLAIN_MS * (4.4 if at.depth_tokens > 1000 else 3.0),
        )
    )
    lane.run(200)
    assert not lane.speculates()
    lane.run(400, deep)
    assert lane.speculates(deep)
    assert rounds_share(lane.run(1000, deep)) > 0.97
    # And what was learned in short contexts still holds there.
    assert not lane.speculates()


@pytest.mark.parametrize("width", WIDTHS)
def test_s03_a_plain_step_is_worth_a_token_for_every_row(width: int) -> None:
    """Plain steps were charged one token at any width, so plain could not win in a batch."""
    lane, at = Driver(HOPELESS), situation(width)
    lane.run(80, at)
    assert not lane.speculates(at)
    assert lane.lane.plain_tokens_per_second == pytest.approx(width * 1000.0 / PLAIN_MS)


def test_s04_widths_are_never_measured_together() -> None:
    """A batch that grew in the middle of a window had its rate compared with that of one row."""
    lane = Driver(Machine(round_ms=by_width(lambda width: width > 1)))
    narrow, wide = situation(1), situation(8)
    for _ in range(12):  # windows of 16 are cut at 11
        lane.run(11, narrow)
        lane.run(11, wide)
    assert lane.speculates(narrow)
    assert not lane.speculates(wide)
    assert rounds_share(lane.run(200, narrow)) > 0.96
    assert plain_share(lane.run(200, wide)) > 0.98


def test_s05_one_lucky_plain_probe_does_not_switch() -> None:
    """One noisy plain window was counted as two losses and switched the gate."""
    lucky = False
    lane = Driver(
        Machine(round_ms=lambda _, k: PLAIN_MS, factor=lambda _, rounds: 0.4 if lucky and not rounds else 1.0)
    )
    lane.run(100)
    probes = 0
    while probes < 5:
        lane.until(Reason.GATE_PROBE_PLAIN, 600)
        lucky = True
        lane.run(4)
        lucky = False
        assert lane.speculates()
        assert rounds_share(lane.run(100)) > 0.95
        probes += 1


@pytest.mark.parametrize("width", WIDTHS)
def test_s06_plain_probes_do_not_grow_with_the_width(width: int) -> None:
    """Waits counted the tokens of the batch: at width 16 a third of all steps became plain."""
    lane = Driver(FAST)
    assert plain_share(lane.run(4000, situation(width))) < 0.015


def test_s07_no_single_step_stands_for_a_window() -> None:
    """Right after a change of regime a single step replaced an estimate."""
    slow: set[int] = set()
    lane = Driver(Machine(round_ms=lambda _, k: PLAIN_MS, factor=lambda n, _: 20.0 if n in slow else 1.0))
    lane.run(100, situation(1))
    for width in (4, 1, 8, 2):
        slow = {len(lane.ran), len(lane.ran) + 1}
        lane.run(64, situation(width))
        assert lane.speculates(situation(width))
        assert sum(not step.rounds for step in lane.ran[-64:]) <= 8


def test_s08_rows_that_join_do_not_spoil_a_window() -> None:
    """Joining rows start their drafters: their first rounds emitted one token and filled the first window."""
    joined: set[int] = set()
    lane = Driver(
        Machine(
            round_ms=lambda _, k: 1.2 * PLAIN_MS,
            kept=lambda n: 0 if n in joined else 1,
            factor=lambda n, rounds: 2.0 if rounds and n in joined else 1.0,
        )
    )
    lane.run(100, situation(4))
    for width in [8, 4] * 40:
        joined.add(len(lane.ran))
        lane.run(12, situation(width))
    assert rounds_share(lane.ran) > 0.95


def test_s09_what_plain_cost_in_another_context_takes_no_mode() -> None:
    """After the context had grown, the plain rate of the short one won against rounds of the long one."""
    lane = Driver(
        Machine(
            plain_ms=lambda at: 25.0 if at.depth_tokens < 512 else 100.0,
            round_ms=lambda at, _: 40.0 if at.depth_tokens < 512 else 110.0,
        )
    )
    lane.run(300)
    assert plain_share(lane.run(600, situation(depth_tokens=2000))) < 0.015


def test_s10_no_word_of_an_answer_hangs_on_the_stopwatch() -> None:
    """The same program gave other answers on another day: the mode, and with it the text, hung on time.

    Here no mode changes a token: `tests/parity/test_equality.py`, and step by step
    `test_changing_the_mode_at_every_step_changes_no_token` in `tests/unit/decode/test_rounds.py`. The policy's
    half: it neither sees text nor says anything of it, and whatever its clock read, a grant stays inside what
    the situation allows.
    """
    assert {field.name for field in dataclasses.fields(Grant)} == {
        "mode",
        "draft_width",
        "max_steps",
        "reason",
        "explanation",
    }
    seen = set()
    for seed in range(3):
        noise = np.random.default_rng(seed).uniform(0.2, 5.0, 600)
        lane = Driver(Machine(round_ms=lambda _, k: 2.0 * PLAIN_MS), cap=8)
        lane.machine.factor = lambda n, _, noise=noise: float(noise[n])  # type: ignore[misc]
        lane.run(600, situation(cap=5))
        assert all(step.draft_width in ({2, 3, 4, 5} if step.rounds else {1}) for step in lane.ran)
        seen.add(tuple(step.rounds for step in lane.ran))
    assert len(seen) > 1  # The clock does move the modes.


def test_s11_a_pinned_opening_is_a_round_whatever_the_gate_wants_and_freezes_nothing() -> None:
    """Answers flipped in their first tokens when a plain step decided them; and with a row in its opening at all
    times the whole batch ran pinned and the gate learned nothing."""
    config = dataclasses.replace(CoreConfig(), entry_pin_tokens=8)
    lane = Driver(HOPELESS, config=config)
    lane.run(100)
    assert not lane.speculates()
    for emitted in range(8):
        grant = lane.lane.preview(dataclasses.replace(situation(), min_emitted_tokens=emitted), NOW)
        assert (grant.mode, grant.max_steps) == (Mode.PINNED, 8 - emitted)
    assert lane.lane.preview(dataclasses.replace(situation(), min_emitted_tokens=8), NOW).mode is Mode.PLAIN
    # A new answer every six steps, and drafts are kept again: the pinned rounds show it.
    lane.machine.kept = lambda _: 3
    for _ in range(30):
        lane.run(5, dataclasses.replace(situation(), min_emitted_tokens=0))
        lane.run(1, situation())
    lane.run(40)
    assert lane.speculates()
    # Without the pin, the default, no opening is forced: no text depends on the mode.
    unpinned = Driver(HOPELESS)
    unpinned.run(100)
    opening = unpinned.run(400, dataclasses.replace(situation(), min_emitted_tokens=0))
    assert all(step.mode is not Mode.PINNED for step in opening)


def test_s12_the_first_step_after_a_change_of_width_is_not_judged() -> None:
    """A second row crashed a model whose drafter state was ahead of the text.

    `test_changing_the_mode_at_every_step_changes_no_token` and `test_a_round_that_raises_leaves_the_cache_as_committed`
    in `tests/unit/decode/test_rounds.py` hold the drafter's half. The policy's half: whatever the first round
    after a change has to put right, it costs speculation nothing in the account.
    """
    dear: set[int] = set()
    lane = Driver(
        Machine(
            round_ms=lambda _, k: 1.4 * PLAIN_MS,
            kept=lambda n: 0 if n in dear else 1,
            factor=lambda n, rounds: 3.0 if rounds and n in dear else 1.0,
        )
    )
    lane.run(100)
    for width in [2, 1] * 30:
        dear.add(len(lane.ran))
        lane.run(10, situation(width))
    assert rounds_share(lane.ran) > 0.95


def test_s13_the_first_round_after_a_plain_stretch_is_not_judged() -> None:
    """Plain stretches left drafters without context, so that speculation looked worse after each of them.

    Here drafters catch up (`test_the_drafter_follows_plain_stretches` in `tests/unit/decode/test_rounds.py`).
    The policy's half: even where the first round after a plain stretch keeps nothing and costs five times as
    much, speculation that pays is entered, and as soon as where it does not.
    """

    def entered_after(first_round_is_bad: bool) -> int:
        lane = Driver(HOPELESS)
        lane.run(200)
        lane.machine = Machine(round_ms=lambda _, k: 1.2 * PLAIN_MS, kept=lambda n: 0 if bad(n) else 3)
        lane.machine.factor = lambda n, rounds: 5.0 if rounds and bad(n) else 1.0

        def bad(number: int) -> bool:
            return first_round_is_bad and number > 0 and not lane.ran[number - 1].rounds

        steps = 0
        while not lane.speculates():
            lane.run(4)
            steps += 4
            assert steps < 2000
        return steps

    good, bad = entered_after(False), entered_after(True)
    assert good <= 640
    assert bad <= good + 16


def test_s14_wide_batches_share_no_regime() -> None:
    """All widths from 16 on were one bucket, and minutes-old samples of one steered another."""
    assert len({regime(width, 100) for width in (1, 2, 4, 8, 16, 17, 33, 65)}) == 8
    assert regime(9, 100) == regime(16, 100)
    lane = Driver(Machine(round_ms=by_width(lambda width: width > 16)))
    for width in [16, 32] * 4:
        lane.run(100, situation(width))
    for width in [16, 32] * 5:
        assert lane.speculates(situation(width)) is (width == 16)
        ran = lane.run(100, situation(width))
        assert (rounds_share(ran) if width == 16 else plain_share(ran)) > 0.9


@pytest.mark.parametrize("name", ["BURSTGATE_MTP_ADAPTIVE", "BURSTGATE_MTP_FORCE"])
@pytest.mark.parametrize(
    ("value", "means"), [("0", False), ("1", True), ("off", False), ("on", True), ("false", False), ("true", True)]
)
def test_s15_a_switch_that_is_set_to_off_is_off(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, means: bool
) -> None:
    """A helper took any value that was set for on, so that 0 turned a thing on."""
    monkeypatch.setenv(name, value)
    settings = load_settings(PolicySettings)
    assert (settings.mtp_adaptive if name.endswith("ADAPTIVE") else settings.mtp_force) is means


@pytest.mark.parametrize("name", ["BURSTGATE_MTP_ADAPTIVE", "BURSTGATE_MTP_FORCE"])
def test_s15_a_switch_that_says_neither_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As above: what is no answer is not taken for one."""
    monkeypatch.setenv(name, "maybe")
    with pytest.raises(SettingsError, match=name):
        load_settings(PolicySettings)


@pytest.mark.parametrize("table", [True, False], ids=["table", "no table"])
def test_s16_a_first_sample_that_holds_compilation_prices_nothing(table: bool) -> None:
    """The first round at a new width captured a graph, 900 ms for 60; priced from it, 62 % of the steps ran plain."""
    compiled: set[tuple[int, int]] = set()
    at = situation(8)
    lane = Driver(Machine(round_ms=lambda _, k: 1.2 * PLAIN_MS), table=table)

    def factor(number: int, rounds: bool) -> float:
        kind = at.width, lane.ran[number].draft_width if number < len(lane.ran) else -rounds
        first, _ = kind not in compiled, compiled.add(kind)
        return 15.0 if first else 1.0

    lane.machine.factor = factor
    lane.run(64, at)
    assert rounds_share(lane.run(400, at)) > 0.97
    assert lane.lane._depth.step_ms(regime(8, 100), 2) == pytest.approx(1.2 * PLAIN_MS, rel=0.1)


@pytest.mark.parametrize("width", WIDTHS)
def test_s17_a_batch_comes_back_to_speculation_as_soon_as_one_row(width: int) -> None:
    """Coming back was counted in the tokens of each stream: a batch of 16 stayed plain."""
    lane, at = Driver(HOPELESS), situation(width)
    lane.run(2000, at)  # What the start cost is forgiven by then.
    assert not lane.speculates(at)
    lane.machine.kept = lambda _: 3
    steps = 0
    while not lane.speculates(at):
        lane.run(8, at)
        steps += 8
        assert steps <= 576


@pytest.mark.parametrize("offset", range(0, 40, 3))
def test_s18_a_single_stall_flips_nothing(offset: int) -> None:
    """One stalled step changed the mode. Here one of a minute does not, wherever in a window or a probe it falls."""
    stalled = 100 + offset
    for machine, share in ((Machine(round_ms=lambda _, k: 1.7 * PLAIN_MS), rounds_share), (HOPELESS, plain_share)):
        lane = Driver(dataclasses.replace(machine, factor=lambda n, _: 600.0 if n == stalled else 1.0))
        lane.run(100)
        before = lane.speculates()
        assert share(lane.run(200)) > 0.9
        assert lane.speculates() is before

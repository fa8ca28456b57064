"""Lets a policy drive a world burst by burst, as the decode service lets it drive a batch.

A grant holds for its steps, or until the batch's width bucket, its depth regime, its eligibility or its room
for drafts changes, or every row has ended. The policy is told of what ran whenever it is asked.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from burstgate_bench.gate.batch import Batch
from burstgate_bench.gate.machine import Floats, bucket
from burstgate_bench.gate.world import World
from burstgate_policy.core.types import BurstOutcome, Grant, Mode, Reason, Situation, StepRecord

START_S = 1_800_000_000.0
# Contexts below this are one depth regime; above, a regime ends where the depth has doubled.
_DEPTH_FLOOR_TOKENS = 512
WRONG_BELOW = 0.95
"""A mode is wrong where its expected rate is below this share of the best mode's."""


class Policy(Protocol):
    """Whatever decides bursts; a lane of the decision core is one."""

    def decide(self, situation: Situation, now_s: float) -> Grant:
        """The next burst."""
        ...

    def observe(self, outcome: BurstOutcome, now_s: float) -> None:
        """Takes what a burst measured."""
        ...


@dataclass(frozen=True, slots=True)
class Played:
    """What a policy did to a world, step by step; all arrays have one element a step."""

    tokens: NDArray[np.int64]
    """Emitted after the step, over all rows and from the start."""
    busy_ms: Floats
    """Time after the step."""
    probes: NDArray[np.bool_]
    wrong: NDArray[np.bool_]
    """Whether the mode was wrong for what was decoded; a step that nobody chose is not."""
    chosen: NDArray[np.bool_]
    """False where a row could not speculate, so that there was nothing to choose."""
    switched: NDArray[np.bool_]
    """Whether the policy changed between plain steps and rounds here, probes and pinned steps aside."""


def play(world: World, policy: Policy, *, ahead: bool = True) -> Played:
    """Decodes a whole world under a policy.

    `ahead`: ask for the next grant before the last step of the running one, as the decode service does, which
    hides the time that asking takes: the policy answers without having seen that step, and for a batch that
    the step may still change.
    """
    game = _Game(world, policy, ahead=ahead)
    while game.batch.rows:
        game.burst()
    game.report()
    return game.log.played()


class _Game:
    """One policy on one world."""

    def __init__(self, world: World, policy: Policy, *, ahead: bool) -> None:
        self.batch = Batch(world)
        self.log = _Log()
        self._machine = world.machine.fresh()
        self._judge = _Judge(world)
        self._policy = policy
        self._ahead = ahead
        self._cap = world.cap
        self._unreported: list[StepRecord] = []
        self._sequence = 0
        self._upcoming: Grant | None = None

    def burst(self) -> None:
        """Runs a grant to its end, or until the batch is another one."""
        batch, machine, log = self.batch, self._machine, self.log
        start = batch.situation()
        grant = self._upcoming or self._ask(start)
        self._upcoming = None
        speculates = grant.mode.speculates and start.eligible
        most = min(grant.draft_width, self._cap) if speculates else 1
        pinned = grant.mode is Mode.PINNED or not start.eligible
        regime = _Regime(start)
        wrong = self._judge.wrong(batch, start, machine.rows_factor())
        steps = max(grant.max_steps, 1)
        for step in range(steps):
            if self._ahead and step == steps - 1:
                self._upcoming = self._ask(replace(batch.situation(), steps_in_flight=1))
            width, depth_tokens = batch.width, batch.depth_tokens
            draft_width = min(most, batch.most_room)
            # A row without room for a draft takes a plain step, so the step measures neither mode.
            excluded = pinned or (speculates and batch.least_room < 2)
            draft_ms, verify_ms, overhead_ms = machine.step(width, draft_width, depth_tokens)
            if draft_width > 1:
                emitted, proposed, by_position = batch.round(draft_width)
            else:
                emitted, proposed, by_position = batch.plain(), 0, ()
            self._unreported.append(
                StepRecord(
                    mode=grant.mode,
                    draft_width=grant.draft_width,
                    width=width,
                    depth_tokens=depth_tokens,
                    emitted=emitted,
                    proposed=proposed,
                    accepted_by_position=by_position,
                    draft_ms=draft_ms,
                    verify_ms=verify_ms,
                    overhead_ms=overhead_ms,
                    wall_ms=draft_ms + verify_ms + overhead_ms,
                    excluded=excluded,
                )
            )
            log.tokens.append(batch.emitted)
            log.busy_ms.append(machine.busy_ms)
            if batch.idled:
                self._upcoming = None
                break
            if regime.left(batch):
                break
        log.burst(start, grant, step + 1, wrong=wrong[min(most, start.max_draft_width)])

    def report(self) -> None:
        """Tells the policy of the steps it does not know yet."""
        if self._unreported:
            self._sequence += 1
            outcome = BurstOutcome("", self._sequence, tuple(self._unreported), 0)
            self._policy.observe(outcome, self._now_s())
            self._unreported = []

    def _ask(self, situation: Situation) -> Grant:
        self.report()
        return self._policy.decide(situation, self._now_s())

    def _now_s(self) -> float:
        return START_S + self._machine.busy_ms / 1000.0


class _Log:
    """Writes down a game: two numbers a step, the rest a burst."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.busy_ms: list[float] = []
        self._bursts: list[tuple[int, bool, bool, bool]] = []
        """Of each burst its steps and whether it probed, was wrong and was chosen."""
        self._switches: list[int] = []
        self._speculates: bool | None = None

    def burst(self, start: Situation, grant: Grant, steps: int, *, wrong: bool) -> None:
        chosen = start.eligible and grant.reason is not Reason.INELIGIBLE and start.max_draft_width > 1
        if chosen and grant.mode in (Mode.PLAIN, Mode.SPECULATIVE):
            if self._speculates not in (None, grant.mode.speculates):
                self._switches.append(len(self.tokens) - steps)
            self._speculates = grant.mode.speculates
        self._bursts.append((steps, grant.mode.probes, chosen and wrong, chosen))

    def played(self) -> Played:
        steps = [burst[0] for burst in self._bursts]
        probes, wrong, chosen = (np.repeat([burst[at] for burst in self._bursts], steps) for at in (1, 2, 3))
        switched = np.zeros(len(self.tokens), bool)
        switched[self._switches] = True
        return Played(np.array(self.tokens), np.array(self.busy_ms), probes, wrong, chosen, switched)


class _Judge:
    """Knows which modes are wrong for a batch, because it knows the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[tuple[tuple[int, ...], int, int], list[bool]] = {}

    def wrong(self, batch: Batch, situation: Situation, rows_factor: float) -> list[bool]:
        """By K, whether it is wrong; the state of the machine counts in twentieths, the depth in octaves."""
        kinds, slow, octave = batch.kinds, round(rows_factor * 20.0), situation.depth_tokens.bit_length()
        known = self._known.get((kinds, octave, slow))
        if known is None:
            rates = self._world.rates(kinds, (3 << octave) >> 2, slow / 20.0)
            known = self._known[kinds, octave, slow] = (rates < WRONG_BELOW * rates.max()).tolist()
        return known


class _Regime:
    """The batch that a grant was for. A grant ends with it."""

    __slots__ = ("_deeper", "_eligible", "_roomy", "_shallower", "_width", "_width_bucket")

    def __init__(self, start: Situation) -> None:
        depth = max(start.depth_tokens, _DEPTH_FLOOR_TOKENS)
        self._deeper = 2 * depth
        self._shallower = depth // 2 if depth >= 2 * _DEPTH_FLOOR_TOKENS else 0
        self._width = start.width
        self._width_bucket = bucket(start.width)
        self._eligible = start.eligible
        self._roomy = start.max_draft_width > 1

    def left(self, batch: Batch) -> bool:
        """Whether the batch is another one now."""
        return (
            not self._shallower < batch.depth_tokens < self._deeper
            or (batch.width != self._width and bucket(batch.width) != self._width_bucket)
            or batch.eligible is not self._eligible
            or (batch.most_room > 1) is not self._roomy
        )

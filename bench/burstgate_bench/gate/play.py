"""Lets a policy drive a world burst by burst, as the decode service lets it drive a batch.

A grant holds for its steps, or until the batch's width bucket, its depth regime, its eligibility or its room
for drafts changes, or nothing is left to decode. The policy is told of every step before it is asked again.
"""

from dataclasses import dataclass
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


def play(world: World, policy: Policy) -> Played:
    """Decodes a whole world under a policy."""
    batch, machine, judge, log = Batch(world), world.machine.fresh(), _Judge(world), _Log()
    sequence = 0
    while batch.rows:
        start = batch.situation()
        grant = policy.decide(start, START_S + machine.busy_ms / 1000.0)
        speculates = grant.mode.speculates and start.eligible
        wrong = judge.wrong(batch, start, machine.rows_factor())
        steps: list[StepRecord] = []
        for _ in range(max(grant.max_steps, 1)):
            width, depth_tokens = batch.width, batch.depth_tokens
            draft_width = min(grant.draft_width, batch.max_draft_width) if speculates else 1
            excluded = grant.mode is Mode.PINNED or not start.eligible or (speculates and not batch.exact)
            draft_ms, verify_ms, overhead_ms = machine.step(width, draft_width, depth_tokens)
            if draft_width > 1:
                emitted, proposed, by_position = batch.round(draft_width)
            else:
                emitted, proposed, by_position = batch.plain(), 0, ()
            steps.append(
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
            if not batch.rows or not _same_regime(start, batch):
                break
        draft_width = min(grant.draft_width, start.max_draft_width) if speculates else 1
        log.burst(start, grant, len(steps), wrong=wrong[draft_width])
        sequence += 1
        policy.observe(BurstOutcome("", sequence, tuple(steps), 0), START_S + machine.busy_ms / 1000.0)
    return log.played()


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


def _same_regime(old: Situation, batch: Batch) -> bool:
    deep, start = max(_DEPTH_FLOOR_TOKENS, batch.depth_tokens), max(_DEPTH_FLOOR_TOKENS, old.depth_tokens)
    return (
        deep < 2 * start
        and start < 2 * deep
        and (old.width == batch.width or bucket(old.width) == bucket(batch.width))
        and old.eligible == batch.eligible
        and (old.max_draft_width > 1) == (batch.max_draft_width > 1)
    )

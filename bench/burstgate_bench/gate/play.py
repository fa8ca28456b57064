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
    batch, machine = Batch(world), world.machine.fresh()
    judge = _Judge(world)
    tokens: list[int] = []
    busy_ms: list[float] = []
    probes: list[bool] = []
    wrong: list[bool] = []
    chosen: list[bool] = []
    switched: list[bool] = []
    base: bool | None = None
    sequence = 0
    while batch.rows:
        start = batch.situation()
        grant = policy.decide(start, START_S + machine.busy_ms / 1000.0)
        speculates = grant.mode.speculates and start.eligible
        verdict = judge.wrong(batch, start, machine.rows_factor())
        mine = start.eligible and grant.reason is not Reason.INELIGIBLE and start.max_draft_width > 1
        changes = False
        if mine and grant.mode in (Mode.PLAIN, Mode.SPECULATIVE):
            changes, base = base is not None and base is not speculates, speculates
        steps: list[StepRecord] = []
        now = start
        for _ in range(max(grant.max_steps, 1)):
            draft_width = min(grant.draft_width, now.max_draft_width) if speculates else 1
            excluded = grant.mode is Mode.PINNED or not start.eligible or (speculates and not batch.exact)
            draft_ms, verify_ms, overhead_ms = machine.step(now.width, draft_width, now.depth_tokens)
            if draft_width > 1:
                emitted, proposed, by_position = batch.round(draft_width)
            else:
                emitted, proposed, by_position = batch.plain(), 0, ()
            steps.append(
                StepRecord(
                    mode=grant.mode,
                    draft_width=grant.draft_width,
                    width=now.width,
                    depth_tokens=now.depth_tokens,
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
            tokens.append(batch.emitted)
            busy_ms.append(machine.busy_ms)
            probes.append(grant.mode.probes)
            wrong.append(mine and bool(verdict[draft_width]))
            chosen.append(mine)
            switched.append(changes and len(steps) == 1)
            if not batch.rows:
                break
            now = batch.situation()
            if not _same_regime(start, now):
                break
        sequence += 1
        policy.observe(BurstOutcome("", sequence, tuple(steps), 0), START_S + machine.busy_ms / 1000.0)
    return Played(
        np.array(tokens), np.array(busy_ms), np.array(probes), np.array(wrong), np.array(chosen), np.array(switched)
    )


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


def _same_regime(old: Situation, new: Situation) -> bool:
    deep, start = max(_DEPTH_FLOOR_TOKENS, new.depth_tokens), max(_DEPTH_FLOOR_TOKENS, old.depth_tokens)
    return (
        bucket(old.width) == bucket(new.width)
        and deep < 2 * start
        and start < 2 * deep
        and old.eligible == new.eligible
        and (old.max_draft_width > 1) == (new.max_draft_width > 1)
    )

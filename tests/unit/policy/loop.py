"""A decode loop around one lane, so that a story can be told in bursts."""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator

from burstgate_policy.core.controller import Lane
from burstgate_policy.core.types import BurstOutcome, Grant, Mode, Reason, Situation, StepRecord

MakeStep = Callable[..., StepRecord]
NOW = 1_800_000_000.0
MIDWAY = Situation(width=1, depth_tokens=100, min_emitted_tokens=50, eligible=True, max_draft_width=0)


class Loop:
    """Runs each grant and reports it; time passes as the steps take it."""

    def __init__(self, lane: Lane, make_step: MakeStep, *, round_ms: float, accepted: int, seed: int = 0) -> None:
        self.lane = lane
        self.make_step = make_step
        self.round_ms = round_ms
        self.accepted = accepted
        self.noise = 0.0
        """Relative standard deviation of every step's time; drafts are then kept by chance as well."""
        self.random = random.Random(seed)
        self.sequence: Iterator[int] = itertools.count(1)
        self.now_s = NOW

    def report(self, *steps: StepRecord) -> None:
        self.lane.observe(BurstOutcome("", next(self.sequence), steps, 0), self.now_s)

    def burst(self, situation: Situation = MIDWAY) -> Grant:
        grant = self.lane.decide(situation, self.now_s)
        steps = [self.step(grant, situation) for _ in range(grant.max_steps)]
        self.now_s += sum(step.wall_ms for step in steps) / 1000.0
        self.report(*steps)
        return grant

    def step(self, grant: Grant, situation: Situation) -> StepRecord:
        accepted = self.accepted
        if self.noise:
            accepted = max(0, accepted + self.random.choice((-1, 0, 0, 1)))
        step = self.make_step(
            grant.mode,
            draft_width=grant.draft_width,
            accepted=min(accepted, grant.draft_width - 1),
            draft_ms=0.0,
            verify_ms=self.round_ms,
            overhead_ms=0.0,
            width=situation.width,
            depth_tokens=situation.depth_tokens,
            excluded=grant.mode is Mode.PINNED or not situation.eligible,
        )
        slow = max(1.0 + self.random.gauss(0.0, self.noise), 0.1) if self.noise else 1.0
        verify_ms = step.verify_ms * slow
        return dataclasses.replace(step, verify_ms=verify_ms, wall_ms=step.wall_ms * slow)

    def until(self, reason: Reason, limit: int = 500) -> Grant:
        for _ in range(limit):
            grant = self.burst()
            if grant.reason is reason:
                return grant
        raise AssertionError(f"{reason.name} never came")

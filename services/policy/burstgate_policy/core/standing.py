"""The grant that stands: what was decided holds for the steps it was decided for, however often a lane is asked.

A client may run a grant to its end, or ask before every step. What a lane learns from the first steps of a
grant must not change the rest of it for the one and not for the other, so a question that comes early gets
what is left of the grant. It falls when its steps are over, and at once when the batch is another one, when
something else ran, or when a person pins the pairing. Decides nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from burstgate_policy.core.regime import Regime, regime
from burstgate_policy.core.types import Grant, Pin, Situation, StepRecord


class Premises(NamedTuple):
    """What a grant rests on; where one of them changes, it falls. A tuple, because one is made for every question."""

    at: Regime
    eligible: bool
    max_draft_width: int
    opening: bool
    """Whether the entry pin covers a row."""
    pin: Pin | None

    @classmethod
    def of(cls, situation: Situation, *, pin_tokens: int, pin: Pin | None) -> "Premises":
        """The premises of a situation."""
        return cls(
            at=regime(situation.width, situation.depth_tokens),
            eligible=situation.eligible,
            max_draft_width=situation.max_draft_width,
            opening=situation.min_emitted_tokens < pin_tokens,
            pin=pin,
        )


class StandingGrant(NamedTuple):
    """A grant, what it rests on, and the numbers of the lane's steps that it is for."""

    grant: Grant
    premises: Premises
    since: int
    until: int
    """The first step after it."""

    def rest(self, premises: Premises, step: int) -> Grant | None:
        """What is left of it for the step of this number; None if it fell."""
        left = min(self.until - step, self.grant.max_steps)
        if left < 1 or premises != self.premises:
            return None
        return self.grant if left == self.grant.max_steps else replace(self.grant, max_steps=left)

    def followed(self, steps: Sequence[StepRecord], first: int) -> bool:
        """Whether steps, numbered from `first` on, ran as it says; steps before it do not count."""
        return all(step.mode is self.grant.mode for step in steps[max(self.since - first, 0) :])

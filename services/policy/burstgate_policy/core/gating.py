"""What a lane asks of a gate: to take every step, and to say what should run next."""

import enum
from dataclasses import dataclass
from typing import Protocol

from burstgate_policy.core.types import Situation, StepRecord


class Because(enum.Enum):
    """What a gate's mode rests on."""

    MEASURED = "measured"
    PROMISED = "promised by costs and acceptance"
    TOLD = "told by the verdict"
    HELD = "held because exploring has cost too much"


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a gate wants to run next."""

    speculates: bool
    probing: bool
    """Whether it runs only to be measured."""
    steps: int
    """Steps that may run before the gate can want something else, at least 1: never too many while the
    regime of the steps stays the same."""
    because: Because


class Gate(Protocol):
    """Arbitrates between plain decoding and speculation on one lane."""

    @property
    def plain_tps(self) -> float | None:
        """Tokens per second of plain decoding where the lane runs now; None before it was measured."""
        ...

    @property
    def speculative_tps(self) -> float | None:
        """Tokens per second of speculation where the lane runs now; None before it was measured."""
        ...

    def observe(self, step: StepRecord) -> None:
        """Takes a step that ran."""
        ...

    def outlook(self, situation: Situation) -> Outlook:
        """What to run next; asking again before a step ran gives the same answer."""
        ...

    @property
    def overrules(self) -> bool:
        """Whether it may speculate where a verdict declines."""
        ...

    def lean(self, situation: Situation, *, speculates: bool, doubtful: bool) -> None:
        """Takes the verdict for a regime in which nothing was measured; a doubtful one is checked soon."""
        ...

    def hold(self, *, speculates: bool | None) -> None:
        """Holds a mode and stops exploring; None lets go."""
        ...

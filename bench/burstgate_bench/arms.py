"""The arms of the benchmark and the order they run in. Pure.

The order is a palindrome, repeated: whatever drifts steadily while it runs (heat, a neighbour on the
machine) costs every arm the same.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

_Arm = TypeVar("_Arm")
_Kind = TypeVar("_Kind")


class ArmKind(enum.Enum):
    """Who decodes, and who decides how. The values name the parts of the result."""

    MLX_LM = "mlx_lm"
    MLX_LM_ON_OPENBLAS = "mlx_lm_on_openblas"
    CLASSIC = "classic"
    FIXED = "fixed"
    STOPPING = "stopping"
    """Rounds up to the widest verify, each as wide as the drafter's own probabilities make worth it."""
    AUTO = "auto"
    AUTO_AFTER_CHANGE = "auto_after_change"
    """AUTO's first answer to a kind after one of another kind: the policy still follows the old text."""


@dataclass(frozen=True)
class Arm:
    """One way to decode."""

    kind: ArmKind
    draft_width: int = 0
    """Rows of every verify of a fixed arm; 0 for the others."""

    @property
    def label(self) -> str:
        """As a person reads it."""
        match self.kind:
            case ArmKind.FIXED:
                return f"K={self.draft_width}"
            case ArmKind.STOPPING:
                return "stops early"
            case ArmKind.MLX_LM_ON_OPENBLAS:
                return "mlx_lm, OpenBLAS"
            case ArmKind.AUTO:
                return "AUTO"
            case ArmKind.AUTO_AFTER_CHANGE:
                return "AUTO, kind changed"
            case _:
                return str(self.kind.value)


def all_arms(widest: int, *, openblas: bool) -> list[Arm]:
    """Every arm of a pairing whose widest verify has `widest` rows."""
    return [
        *([Arm(ArmKind.MLX_LM_ON_OPENBLAS)] if openblas else []),
        Arm(ArmKind.MLX_LM),
        Arm(ArmKind.CLASSIC),
        Arm(ArmKind.AUTO),
        *(Arm(ArmKind.FIXED, width) for width in range(2, widest + 1)),
    ]


def fixed_arm(place: int, widest: int) -> Arm:
    """The fixed arm of a prompt: widths from 2 to the widest take turns."""
    return Arm(ArmKind.FIXED, 2 + place % (widest - 1))


def abba(arms: Sequence[_Arm], kinds: Sequence[_Kind], blocks: int) -> list[tuple[_Arm, _Kind]]:
    """All arms of one kind after another, kind by kind, then all of it backwards; `blocks` times."""
    forwards = [(arm, kind) for kind in kinds for arm in arms]
    return [*forwards, *reversed(forwards)] * blocks


def by_arm(rates: Mapping[Arm, Mapping[str, float]]) -> dict[str, Any]:
    """Tokens per second by arm and kind as the result line has them: fixed arms lie under their K."""
    line: dict[str, Any] = {}
    for arm, by_kind in rates.items():
        rounded = {kind: round(rate, 2) for kind, rate in by_kind.items()}
        if arm.kind is ArmKind.FIXED:
            line.setdefault(arm.kind.value, {})[str(arm.draft_width)] = rounded
        else:
            line[arm.kind.value] = rounded
    return line

"""What a step costs without noise: one model for each shape of machine that is known.

A model gives draft, verify and overhead time by batch width and K (rows of the verify for each sequence), and
what each token of the context adds. Times are milliseconds. Knows nothing of noise, drift or acceptance.
"""

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Curve = Callable[[int, int], float]
"""From batch width and K to a time or a factor."""

WIDEST_VERIFY = 8


@dataclass(frozen=True)
class WidthCosts:
    """Costs at one batch width; element K of each tuple is K rows a sequence, element 0 is unused."""

    draft_ms: tuple[float, ...]
    verify_ms: tuple[float, ...]
    overhead_ms: float
    depth_ms: tuple[float, ...]
    """What each token of the deepest context adds to the verify."""

    @cached_property
    def fixed_ms(self) -> NDArray[np.float64]:
        """All that does not depend on the depth."""
        fixed: NDArray[np.float64] = np.array(self.draft_ms) + np.array(self.verify_ms) + self.overhead_ms
        return fixed

    @cached_property
    def slope_ms(self) -> NDArray[np.float64]:
        """`depth_ms` as an array."""
        return np.array(self.depth_ms)


class StepCosts:
    """A step-cost model."""

    def __init__(
        self,
        name: str,
        *,
        verify: Curve,
        draft_ms: float,
        unit_ms: float = 1.0,
        overhead_ms: float = 1.0,
        depth_ms: float = 0.0,
    ) -> None:
        """`verify`: time in units; `unit_ms` scales it and all other times. `draft_ms`: of one draft at width 1.

        `depth_ms`: what a context token adds to a plain step of one row; more rows read the same cache once
        for each sequence, so it grows with the batch width and hardly with K.
        """
        self.name = name
        self._verify = verify
        self._draft = draft_ms * unit_ms
        self._unit = unit_ms
        self._overhead = overhead_ms * unit_ms
        self._depth = depth_ms * unit_ms
        self._widths: dict[int, WidthCosts] = {}

    def at(self, width: int) -> WidthCosts:
        """The costs at a batch width."""
        costs = self._widths.get(width)
        if costs is None:
            ks = range(1, WIDEST_VERIFY + 1)
            rows = 1.0 + 0.1 * (width - 1)
            costs = self._widths[width] = WidthCosts(
                draft_ms=(0.0, *((k - 1) * self._draft * rows for k in ks)),
                verify_ms=(0.0, *(self._unit * self._verify(width, k) for k in ks)),
                overhead_ms=self._overhead,
                depth_ms=(0.0, *(self._depth * rows * (1.0 + 0.05 * (k - 1)) for k in ks)),
            )
        return costs

    def step_ms(self, width: int, draft_width: int, depth_tokens: float) -> float:
        """A step without noise."""
        costs = self.at(width)
        return float(costs.fixed_ms[draft_width] + costs.slope_ms[draft_width] * depth_tokens)


def constant(ratio: float, **times: float) -> StepCosts:
    """A round costs `ratio` plain steps whatever K is: a verify that memory bandwidth alone decides."""
    return StepCosts(
        "constant",
        verify=lambda width, k: 50.0 * (ratio if k > 1 else 1.0) * (1.0 + 0.03 * (width - 1)),
        draft_ms=0.0,
        **times,
    )


def linear(slope: float, **times: float) -> StepCosts:
    """Each row of the batch adds `slope` plain steps."""
    return StepCosts("linear", verify=lambda width, k: 60.0 * (1.0 + slope * (width * k - 1)), draft_ms=2.0, **times)


def reference_blas(**times: float) -> StepCosts:
    """A verify of K rows costs K steps, and a batch of B sequences B steps."""
    return StepCosts("reference BLAS", verify=lambda width, k: 140.0 * width * k, draft_ms=7.0, **times)


def openblas(**times: float) -> StepCosts:
    """The default target on OpenBLAS and two cores, measured; between its widths and Ks read by straight lines."""
    return StepCosts("OpenBLAS", verify=_measured(_OPENBLAS), draft_ms=3.5, overhead_ms=2.0, **times)


def nvidia_4bit(share: float, steepness: float, **times: float) -> StepCosts:
    """Quantised products on NVIDIA: dear from 2 to 7 rows, another kernel and cheap from 8 on.

    `share`: the part of a plain step that such products take; `steepness`: what each row up to 7 adds to
    them (0.17 at 4096x4096, 0.46 at 14336x4096).
    """

    def verify(width: int, k: int) -> float:
        rows = width * k
        products = 1.0 + steepness * (rows - 1) if rows < 8 else 1.3 + 0.012 * (rows - 8)
        return 20.0 * (1.0 - share + share * products) * (1.0 + 0.004 * (rows - 1))

    return StepCosts("NVIDIA 4-bit", verify=verify, draft_ms=1.0, overhead_ms=0.5, **times)


def apple(fit: str, **times: float) -> StepCosts:
    """Apple GPUs, by published fits of a whole round's cost in plain steps against its rows: one of `APPLE_FITS`.

    From generation 15 on (M3) all rows go in one pass; before, they go one after another.
    """
    base, slope = APPLE_FITS[fit]

    def verify(width: int, k: int) -> float:
        rows = width * k
        return 30.0 * (base + slope * rows if rows > 1 else 1.0)

    return StepCosts(f"Apple, {fit}", verify=verify, draft_ms=0.0, overhead_ms=0.0, **times)


def qwen_gb10(**times: float) -> StepCosts:
    """A published fixture of a 27B model: verify plus draft at 1, 4 and 8 streams, K from 1 to 4."""
    return StepCosts("27B fixture", verify=_measured(_QWEN), draft_ms=0.0, overhead_ms=0.0, **times)


def glm_single(**times: float) -> StepCosts:
    """A published fixture of one stream with a block drafter, K from 1 to 8; a batch is read as a wider verify."""
    return StepCosts(
        "block-drafter fixture",
        verify=lambda width, k: _GLM[k - 1] * (1.0 + 0.08 * (width - 1)),
        draft_ms=0.0,
        overhead_ms=0.0,
        **times,
    )


def equal_modes(best: int, tokens: Sequence[float], **times: float) -> StepCosts:
    """K=`best` costs exactly as much for each token as a plain step; every other K a tenth more or worse.

    `tokens`: what a round delivers to a row; element K-1 is a round of K rows.
    """

    def verify(width: int, k: int) -> float:
        plain = 60.0 * (1.0 + 0.05 * (width - 1))
        if k == 1:
            return plain
        return plain * tokens[k - 1] * (1.0 if k == best else 1.1 + 0.02 * abs(k - best))

    return StepCosts("equal", verify=verify, draft_ms=0.0, overhead_ms=0.0, **times)


APPLE_FITS = {
    "12B on M3 Ultra": (1.14, 0.090),
    "31B on M3 Ultra": (0.83, 0.170),
    "12B on M1 Ultra": (1.35, 0.346),
    "Qwen on M1 Ultra": (0.46, 0.771),
}
"""Cost of a round without rows and of each row, in plain steps."""
_OPENBLAS: dict[int, dict[int, float]] = {
    1: {1: 68.0, 2: 74.0, 4: 78.0, 6: 95.0, 8: 84.0},
    2: {1: 69.0, 2: 84.0, 4: 83.0, 6: 118.0, 8: 136.0},
    4: {1: 72.0, 2: 83.0, 4: 132.0, 6: 123.0, 8: 149.0},
    8: {1: 76.0, 2: 105.0, 4: 181.0, 6: 223.0, 8: 275.0},
    16: {1: 116.0, 2: 163.0, 4: 254.0, 6: 333.0, 8: 414.0},
}
_QWEN: dict[int, dict[int, float]] = {
    1: {1: 80.0, 2: 89.3, 3: 96.3, 4: 100.6},
    4: {1: 85.1, 2: 93.6, 3: 129.6, 4: 135.5},
    8: {1: 100.0, 2: 130.5, 3: 163.6, 4: 174.1},
}
_GLM = (28.65, 44.15, 50.5, 56.85, 63.2, 67.7, 72.3, 76.8)


def _measured(table: dict[int, dict[int, float]]) -> Curve:
    """Reads a measured table: straight lines between Ks and between widths, the last line carried on."""

    def verify(width: int, k: int) -> float:
        return _line({at: _line(row, k) for at, row in table.items()}, width)

    return verify


def _line(points: dict[int, float], at: int) -> float:
    places = sorted(points)
    index = min(max(bisect.bisect_left(places, at), 1), len(places) - 1)
    left, right = places[index - 1], places[index]
    slope = (points[right] - points[left]) / (right - left)
    value = points[left] + slope * (at - left)
    return value if math.isfinite(value) and value > 0.0 else points[left]

"""The arithmetic of a verdict: from profiled means to a speed-up, a zone and an answer.

Pure functions of numbers. An input that no real measurement can produce (not finite, zero or
negative where that is impossible) gives no estimate, never a number that looks like one.
"""

import enum
import math

from burstgate_policy.core.types import Verdict


class Zone(enum.Enum):
    """Where an estimated speed-up lies."""

    ENABLE = "enable"
    BETWEEN = "between"
    DECLINE = "decline"
    NO_ESTIMATE = "no estimate"


def measured_speedup(accepted_len: float, plain_step_ms: float, round_cost_ms: float) -> float | None:
    """Tokens of a round times what each would have cost plainly, over what the round cost."""
    if not (_positive(plain_step_ms) and _positive(round_cost_ms) and _not_negative(accepted_len)):
        return None
    return _usable((accepted_len + 1.0) * plain_step_ms / round_cost_ms)


def closed_form_speedup(accepted_len: float, draft_ms: float, verify_ms: float) -> float | None:
    """The speed-up if a verify of any width cost one plain step: an upper bound, used without probes."""
    if not (_positive(verify_ms) and _not_negative(draft_ms) and _not_negative(accepted_len)):
        return None
    return _usable((accepted_len + 1.0) / (1.0 + draft_ms / verify_ms))


def classify(speedup: float | None, *, enable_at: float, decline_at: float) -> Zone:
    """The zone of a speed-up; both thresholds belong to their verdicts."""
    if speedup is None or not math.isfinite(speedup):
        return Zone.NO_ESTIMATE
    if speedup >= enable_at:
        return Zone.ENABLE
    if speedup <= decline_at:
        return Zone.DECLINE
    return Zone.BETWEEN


def resolve(zone: Zone, *, static_default: bool) -> Verdict:
    """The verdict of a zone; where the measurement does not decide, the static gate does."""
    match zone:
        case Zone.ENABLE:
            return Verdict.ENABLE
        case Zone.DECLINE:
            return Verdict.DECLINE
        case Zone.BETWEEN | Zone.NO_ESTIMATE:
            return Verdict.ENABLE if static_default else Verdict.DECLINE


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0.0


def _not_negative(value: float) -> bool:
    return math.isfinite(value) and value >= 0.0


def _usable(speedup: float) -> float | None:
    # Zero is what underflow leaves of it.
    return speedup if _positive(speedup) else None

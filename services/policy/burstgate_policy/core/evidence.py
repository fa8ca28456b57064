"""Weighs a profile: its speed-up, how sure that is, and how varied the traffic was.

The speed-up is a ratio of sums over bursts, so its error comes from leaving out one burst at a time
(the delete-one jackknife) on the logarithm, where a factor two up and a factor two down weigh the same:

    variance = (n-1)/n * sum((log S without burst i - their mean)^2) + (1.2533 * s / (p * sqrt(m)))^2

The second term is the error of the plain step p, a median of m means, with s = 1.4826 times their
median absolute deviation (which one compiling first burst cannot inflate). The interval is
S * exp(+-t * sqrt(variance)), t being Student's at 90 % for n-1 degrees of freedom. Knows no verdicts.
"""

import math
import statistics
import sys
from dataclasses import dataclass

from burstgate_policy.core import estimate
from burstgate_policy.core.profile import Profile
from burstgate_policy.core.types import Evidence
from burstgate_policy.core.verdict_config import VerdictConfig

CONFIDENCE = 0.9

# Student's t for a two-sided 90 % interval, by degrees of freedom from 1; beyond, the last one serves.
_T90 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753)
# One burst cannot disagree with itself: a factor of four either way stands for not knowing.
_UNKNOWN = math.log(4.0)
# An interval wider than this either way says nothing more; exp of it is still a number.
_WIDEST = math.log(1000.0)


@dataclass(frozen=True, slots=True)
class Weighed:
    """A profile's speed-up and what it rests on."""

    speedup: float | None
    """None when the times gave no estimate."""
    measured: bool
    """Against measured plain steps; if not, the closed form stands in and the speed-up is an upper bound."""
    evidence: Evidence


def weigh(profile: Profile, config: VerdictConfig) -> Weighed:
    """What a profile with at least one burst says."""
    profile = profile.tamed(config.stall_factor)
    speedup, measured = _speedup(profile)
    low = high = spread = 0.0
    if speedup is not None:
        half_width = min(_half_width(profile, measured=measured), _WIDEST)
        low = speedup * math.exp(-half_width)
        high = min(speedup * math.exp(half_width), sys.float_info.max)
        spread = _spread(profile)
    return Weighed(
        speedup=speedup,
        measured=measured,
        evidence=Evidence(
            rounds=profile.rounds,
            plain_steps=profile.plain_steps,
            traffic_kinds=traffic_kinds(profile, config),
            speedup=speedup or 0.0,
            speedup_low=low,
            speedup_high=high,
            confidence=CONFIDENCE,
            spread=spread,
            first_seen_at=profile.first_seen_s or 0.0,
            last_seen_at=profile.last_seen_s or 0.0,
            round_ms=_number(profile.round_cost_ms),
            plain_step_ms=_number(profile.plain_step_ms or 0.0),
        ),
    )


def traffic_kinds(profile: Profile, config: VerdictConfig) -> int:
    """Distinguishable kinds of traffic: all that the core sees of a text is how well it drafts, and its depth.

    Bursts whose depths lie in different doublings are of different kinds. Within one doubling, sorted by the
    share of kept drafts among those looked at, a new kind starts where that share is more than a band above
    the lowest of its kind; so bursts on both sides of some fixed line are not told apart by the line. Drafts
    behind the first that a row refused were not looked at: counting them would make one text drafted at two
    widths look like two.
    """
    kinds = 0
    by_depth: dict[int, list[float]] = {}
    for burst in profile.bursts:
        rate = min(burst.accepted / burst.tried, 1.0) if burst.tried > 0 else 0.0
        by_depth.setdefault(depth_bucket(burst.depth_tokens, config), []).append(rate)
    for rates in by_depth.values():
        lowest = -math.inf
        for rate in sorted(rates):
            if rate > lowest + config.kind_band:
                kinds, lowest = kinds + 1, rate
    return kinds


def depth_bucket(depth_tokens: int, config: VerdictConfig) -> int:
    """The doubling of the context length that a depth lies in; 0 up to the floor."""
    return max(depth_tokens // config.kind_depth_floor_tokens, 0).bit_length()


def _speedup(profile: Profile) -> tuple[float | None, bool]:
    plain_ms = profile.plain_step_ms
    if plain_ms is not None:
        speedup = estimate.measured_speedup(profile.accepted_len, plain_ms, profile.round_cost_ms)
        if speedup is not None:
            return speedup, True
    return estimate.closed_form_speedup(profile.accepted_len, profile.mean_draft_ms, profile.mean_verify_ms), False


def _half_width(profile: Profile, *, measured: bool) -> float:
    bursts = profile.samples
    if bursts < 2:
        return _UNKNOWN
    logs = [_log_speedup(profile.without_burst(index)) for index in range(bursts)]
    known = [log for log in logs if log is not None]
    if len(known) < bursts:
        return _WIDEST
    variance = (bursts - 1) / bursts * sum((log - statistics.fmean(known)) ** 2 for log in known)
    if measured:
        variance += _plain_error(profile.plain_means_ms) ** 2
    return _T90[min(bursts - 1, len(_T90)) - 1] * math.sqrt(variance)


def _log_speedup(profile: Profile) -> float | None:
    speedup, _ = _speedup(profile)
    return math.log(speedup) if speedup else None


def _plain_error(means_ms: tuple[float, ...]) -> float:
    """Relative error of the median of the plain means; a single mean has none that could be seen."""
    median = statistics.median(means_ms)
    deviation = 1.4826 * statistics.median(abs(mean - median) for mean in means_ms)
    error = 1.2533 * deviation / median / math.sqrt(len(means_ms))
    return error if math.isfinite(error) else _WIDEST


def _spread(profile: Profile) -> float:
    if profile.samples < 2:
        return 0.0
    speedups = [_speedup(profile.only((burst,)))[0] for burst in profile.bursts]
    known = [speedup for speedup in speedups if speedup is not None]
    try:
        return _number(statistics.stdev(known)) if len(known) >= 2 else 0.0
    except OverflowError:
        return sys.float_info.max


def _number(value: float) -> float:
    return value if math.isfinite(value) and value > 0.0 else 0.0

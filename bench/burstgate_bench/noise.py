"""Whether the machine was quiet enough for its figures to be believed. Pure but for two readings of the system."""

import os
from collections.abc import Mapping

# One process that computes all the time on a small machine already shifts every figure.
_QUIET_LOAD_PER_CORE = 0.25
# The measurement's own threads keep every core busy; more than this was somebody else.
_OWN_LOAD_PER_CORE = 1.25
SPREAD_LIMIT = 0.10
"""Beyond this, samples of one arm are not of one machine state."""


def usable_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_average() -> float:
    """Runnable processes, averaged over the last minute."""
    return os.getloadavg()[0]


def noise_warnings(load_before: float, load_after: float, cores: int, spreads: Mapping[str, float]) -> list[str]:
    """Sentences about what makes the figures doubtful; none on a quiet machine. `spreads` by name of the cell."""
    warnings = []
    if load_before > _QUIET_LOAD_PER_CORE * cores:
        warnings.append(f"the machine was busy before the start: load {load_before:.2f} on {cores} cores")
    if load_after > _OWN_LOAD_PER_CORE * cores:
        warnings.append(f"something else ran at the same time: load {load_after:.2f} on {cores} cores at the end")
    wide = [name for name, spread in spreads.items() if spread > SPREAD_LIMIT]
    if wide:
        worst = max(wide, key=lambda name: spreads[name])
        warnings.append(
            f"{len(wide)} of {len(spreads)} cells spread by more than {SPREAD_LIMIT:.0%}"
            f" (most: {worst}, {spreads[worst]:.0%})"
        )
    return warnings

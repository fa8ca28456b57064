"""What the caches of a pairing cost in memory, and how much memory there is for them.

Costs are read off the target's own cache after a forward of one token, whose arrays have their final heads, sizes
and types. A layer that keeps a window only is counted as if it kept everything: that may refuse too early, never
too late.
"""

import os
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from burstgate_decode.drafters.base import Drafter
from burstgate_decode.models.cache_shape import CacheCost
from burstgate_decode.models.sequence_cache import layers_of
from burstgate_decode.models.target import Target

# Of the memory that is free. The rest is for activations, and for the copy that is made when a cache grows.
_SHARE = 0.5
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def cache_cost(target: Target, drafter: Drafter | None) -> CacheCost:
    """Measures a pairing's caches."""
    cache = target.make_cache()
    target.advance(mx.array([[0]]), cache)
    token_bytes = drafter.cache_token_bytes if drafter is not None else 0
    row_bytes = 0
    for layer in layers_of(cache):
        if hasattr(layer, "keys"):
            # Room for some tokens, on the third axis; quantised ones have several arrays of each.
            parts = [part for _, part in tree_flatten([layer.keys, layer.values])]
            token_bytes += sum(part.nbytes // part.shape[2] for part in parts)
        else:
            row_bytes += layer.nbytes
    return CacheCost(token_bytes, row_bytes, target.shares_forwards)


def default_cache_bytes() -> int:
    """What caches may take when no setting says so. Call it once the models are loaded."""
    return int(_SHARE * free_memory_bytes())


def free_memory_bytes() -> int:
    """Memory that arrays may still take on MLX's device."""
    if mx.default_device() == mx.Device(mx.cpu):
        return _free_host_bytes()
    # What Metal recommends to stay within; elsewhere MLX's own limit, which follows from the device's memory.
    limit = int(mx.device_info().get("max_recommended_working_set_size", mx.get_memory_limit()))
    return max(0, limit - mx.get_active_memory())


def _free_host_bytes() -> int:
    free = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    if _MEMINFO.exists():
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        free.append(int(fields["MemAvailable"].split()[0]) * 1024)
    limit = _CGROUP / "memory.max"
    # A container may have less than its host.
    if limit.exists() and (most := limit.read_text().strip()) != "max":
        free.append(max(0, int(most) - int((_CGROUP / "memory.current").read_text())))
    return min(free)

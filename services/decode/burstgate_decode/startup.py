"""Loads everything the engine runs, in order, on the engine's thread: models, exactness, costs, lane.

Each stage is logged with what it found. Nothing here serves requests.
"""

import importlib.metadata
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from burstgate_decode.config import DEFAULT_TARGET, NONE, DecodeSettings
from burstgate_decode.drafters.base import Drafter
from burstgate_decode.drafters.loading import find_drafter
from burstgate_decode.engine.engine import Pairing
from burstgate_decode.engine.grants import GrantSource, StaticGrants
from burstgate_decode.engine.stepper import GuardMargins
from burstgate_decode.engine.stopping import Stopping
from burstgate_decode.models.blas import BlasReport
from burstgate_decode.models.blas_check import verify_active
from burstgate_decode.models.calibration import CalibrationBench
from burstgate_decode.models.calibration_plan import make_plan
from burstgate_decode.models.cost_files import CostFiles, CostKey
from burstgate_decode.models.cost_table import Costs, measure_costs, obtain_costs
from burstgate_decode.models.default_pair import default_models_cache, prepare_default_pair
from burstgate_decode.models.exactness import Exactness, probe_exactness
from burstgate_decode.models.fused_kernels import use_native_kernels
from burstgate_decode.models.hardware import Hardware, detect_hardware
from burstgate_decode.models.loading import load_target
from burstgate_decode.models.target import Target
from burstgate_decode.policy_client import PolicyClientConfig, PolicyGrants
from burstgate_decode.serving import LinkState, Serving
from burstgate_policy.core.types import CostCell, LaneCapabilities, PolicyKey, Reason

_log = structlog.get_logger(__name__)


def clock_ms() -> float:
    """The service's clock: monotonic, in milliseconds."""
    return time.perf_counter() * 1e3


@dataclass(frozen=True)
class Loaded:
    """What the engine runs and what the servicer tells of it."""

    pairing: Pairing
    serving: Serving
    close: Callable[[], None]


@dataclass(frozen=True)
class LoadedModels:
    """The models of a pairing, and how they may be used together."""

    target: Target
    drafter: Drafter | None
    because: str
    """Why there is no drafter, as the end of a sentence; empty with one."""
    reason: Reason
    draft_width: int
    """Rows of the widest verify; 1 without a drafter."""
    blas: BlasReport
    exactness: Exactness
    hardware: Hardware
    mlx_version: str


def load_everything(settings: DecodeSettings, blas: BlasReport) -> Loaded:
    """Loads and measures. Raises `ModelError` when the target or drafter cannot be served."""
    models = load_models(settings, blas)
    target, drafter, width = models.target, models.drafter, models.draft_width
    costs = cost_table(settings, models).table
    serving = _serving(models, costs)
    if drafter is None:
        grants: GrantSource = StaticGrants(_capabilities(serving, settings), costs, width)
        close: Callable[[], None] = _nothing
    else:
        grants, link, close = _open_lane(serving, settings, policy_key(models, drafter))
        serving = replace(serving, link=link)
    margins = GuardMargins()
    if settings.exactness == "guarded":
        margins = GuardMargins(verify=models.exactness.guard_margin, batch=models.exactness.batch_margin)
    stopping = None
    if settings.draft_stopping and drafter is not None:
        stopping = Stopping(costs, width, apart=target.packs_rows)
    pairing = Pairing(
        target, drafter, width, margins, grants, models.reason, models.because, stopping, models.exactness.any_cut
    )
    return Loaded(pairing, serving, close)


def load_models(settings: DecodeSettings, blas: BlasReport) -> LoadedModels:
    """Loads target and drafter and makes verifies exact. Raises `ModelError`."""
    blas = verify_active(blas)
    blas.set_exact_rows(blas.active)
    if note := use_native_kernels(_cache(settings) / "kernels"):
        _log.warning("kernels_not_native", note=f"MLX's fused kernels stay slow: {note}")
    target_ref, drafter_ref = _references(settings)
    load_drafter = find_drafter(drafter_ref) if drafter_ref is not None else None
    target = load_target(target_ref)
    _log.info("target_loaded", target=target.name, fingerprint=target.fingerprint, dtype=target.dtype)
    drafter = load_drafter(target) if load_drafter is not None else None
    because, reason = ("" if drafter is not None else "the server has no drafter"), Reason.NO_DRAFTER
    width = min(settings.draft_width, drafter.max_draft_width) if drafter is not None else 1
    exactness = probe_exactness(target, width, settings.max_active_rows, settings.engine_limits.longest_chunk_tokens)
    _log.info(
        "exactness_probed", bit_equal=exactness.bit_equal, any_cut=exactness.any_cut, finding=exactness.explanation
    )
    if settings.exactness == "strict" and exactness.batch_margin > 0.0:
        target = replace(target, shares_forwards=False)
        _log.warning("batching_declined", why=exactness.explanation)
    if drafter is not None and not exactness.bit_equal and settings.exactness == "strict":
        drafter, width, reason = None, 1, Reason.INEXACT
        because = f"strict exactness declines it: {exactness.explanation}"
        _log.warning("speculation_declined", why=because)
    hardware, mlx_version = detect_hardware(), importlib.metadata.version("mlx")
    return LoadedModels(target, drafter, because, reason, width, blas, exactness, hardware, mlx_version)


def cost_table(settings: DecodeSettings, models: LoadedModels, *, fresh: bool = False) -> Costs:
    """What steps of the pairing cost here. `fresh` measures it whatever is stored."""
    bench = CalibrationBench(models.target, models.drafter, clock_ms)
    plan = make_plan(
        models.draft_width, settings.max_active_rows, models.target.context_length, fillable=bench.fillable
    )
    if models.drafter is None:
        return measure_costs(plan, bench.run, clock_ms)
    cache = _cache(settings)
    key = CostKey(
        policy_key(models, models.drafter),
        max_width=settings.max_active_rows,
        shares_forwards=models.target.shares_forwards,
        blas_threads=models.blas.threads(),
    )
    return obtain_costs(plan, bench.run, clock_ms, CostFiles(cache / "costs"), key, fresh=fresh)


def policy_key(models: LoadedModels, drafter: Drafter) -> PolicyKey:
    """What the pairing's verdict is kept under."""
    return PolicyKey(
        target=models.target.name,
        drafter=drafter.name,
        hardware=models.hardware.label,
        draft_width=models.draft_width,
        target_fingerprint=models.target.fingerprint,
        drafter_fingerprint=drafter.fingerprint,
        dtype=models.target.dtype,
        backend=models.hardware.backend,
        blas=models.blas.name,
        mlx_version=models.mlx_version,
    )


def _references(settings: DecodeSettings) -> tuple[str, str | None]:
    drafter = None if settings.drafter == NONE else settings.drafter
    if settings.target != DEFAULT_TARGET:
        return settings.target, drafter
    pair = prepare_default_pair(
        _cache(settings) / "models", report=lambda stage, _share: _log.debug("preparing", stage=stage)
    )
    return str(pair.target), str(pair.drafter) if settings.drafter is None else drafter


def _cache(settings: DecodeSettings) -> Path:
    return settings.cache_dir or default_models_cache(os.environ).parent


def _serving(models: LoadedModels, costs: tuple[CostCell, ...]) -> Serving:
    return Serving(
        target=models.target,
        drafter=models.drafter,
        no_drafter_because=models.because,
        draft_width=models.draft_width,
        hardware=models.hardware,
        blas=models.blas,
        mlx_version=models.mlx_version,
        exactness=models.exactness,
        costs=costs,
        link=_no_link,
    )


def _open_lane(
    serving: Serving, settings: DecodeSettings, key: PolicyKey
) -> tuple[GrantSource, Callable[[], LinkState | None], Callable[[], None]]:
    capabilities = _capabilities(serving, settings)
    if settings.policy_address is None:
        return StaticGrants(capabilities, serving.costs, serving.draft_width), _no_link, _nothing
    grants = PolicyGrants(
        settings.policy_address.target,
        key,
        capabilities,
        serving.costs,
        f"{socket.gethostname()}:{os.getpid()}",
        clock_ms,
        PolicyClientConfig(deadline_ms=settings.policy_deadline_ms),
    )
    grants.wait_open()
    return grants, grants.link, grants.close


def _capabilities(serving: Serving, settings: DecodeSettings) -> LaneCapabilities:
    return LaneCapabilities(
        batchable=True,
        max_width=settings.max_active_rows,
        drafter_kind=serving.drafter.kind if serving.drafter is not None else "",
        apple_gpu_generation=serving.hardware.apple_gpu_generation,
    )


def _no_link() -> LinkState | None:
    return None


def _nothing() -> None:
    pass

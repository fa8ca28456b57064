"""Loads everything the engine runs, in order, on the engine's thread: models, exactness, costs, lane.

Each stage is logged with what it found. Nothing here serves requests.
"""

import importlib.metadata
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from burstgate_decode.config import DEFAULT_TARGET, NONE, DecodeSettings
from burstgate_decode.drafters.base import Drafter
from burstgate_decode.drafters.loading import load_drafter
from burstgate_decode.engine.engine import Pairing
from burstgate_decode.engine.grants import GrantSource, StaticGrants
from burstgate_decode.engine.stopping import Stopping
from burstgate_decode.models.blas import BlasReport
from burstgate_decode.models.calibration import measure_costs
from burstgate_decode.models.default_pair import default_models_cache, prepare_default_pair
from burstgate_decode.models.exactness import Exactness, exact_without_verify, probe_exactness
from burstgate_decode.models.hardware import detect_hardware
from burstgate_decode.models.loading import load_target
from burstgate_decode.models.row_padding import make_rows_exact, verify_active
from burstgate_decode.models.target import Target, linear_shapes
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


def load_everything(settings: DecodeSettings, blas: BlasReport) -> Loaded:
    """Loads and measures. Raises `ModelError` when the target or drafter cannot be served."""
    blas = verify_active(blas)
    target_ref, drafter_ref = _references(settings)
    target = load_target(target_ref)
    _log.info("target_loaded", target=target.name, fingerprint=target.fingerprint, dtype=target.dtype)
    drafter = load_drafter(drafter_ref, target) if drafter_ref is not None else None
    because, reason = ("" if drafter is not None else "the server has no drafter"), Reason.NO_DRAFTER
    width = min(settings.draft_width, drafter.max_draft_width) if drafter is not None else 1
    exactness = _secure_exactness(target, drafter, blas, width) if drafter is not None else exact_without_verify()
    _log.info("exactness_probed", bit_equal=exactness.bit_equal, finding=exactness.explanation)
    if drafter is not None and not exactness.bit_equal and settings.exactness == "strict":
        drafter, width, reason = None, 1, Reason.INEXACT
        because = f"strict exactness declines it: {exactness.explanation}"
        _log.warning("speculation_declined", why=because)
    costs = measure_costs(target, drafter, width, clock_ms)
    _log.info("costs_measured", step_ms={cell.draft_width: round(cell.verify_ms, 1) for cell in costs})
    serving = _serving(target, drafter, because, width, blas, exactness, costs)
    if drafter is None:
        grants: GrantSource = StaticGrants(_capabilities(serving, settings), costs, width)
        close: Callable[[], None] = _nothing
    else:
        grants, link, close = _open_lane(serving, settings, drafter)
        serving = replace(serving, link=link)
    margin = exactness.guard_margin if settings.exactness == "guarded" else 0.0
    stopping = Stopping(costs, width) if settings.draft_stopping and drafter is not None else None
    return Loaded(Pairing(target, drafter, width, margin, grants, reason, because, stopping), serving, close)


def _references(settings: DecodeSettings) -> tuple[str, str | None]:
    drafter = None if settings.drafter == NONE else settings.drafter
    if settings.target != DEFAULT_TARGET:
        return settings.target, drafter
    cache = settings.cache_dir / "models" if settings.cache_dir is not None else default_models_cache(os.environ)
    pair = prepare_default_pair(cache, report=lambda stage, _share: _log.debug("preparing", stage=stage))
    return str(pair.target), str(pair.drafter) if settings.drafter is None else drafter


def _secure_exactness(target: Target, drafter: Drafter, blas: BlasReport, draft_width: int) -> Exactness:
    """Probes exactness, after padding small products so that a row does not depend on its neighbours."""
    if blas.active:
        table = make_rows_exact(blas, linear_shapes(target.model), draft_width)
        # Drafting need not be exact: what it proposes is verified.
        table |= {shape: 1 for shape in drafter.product_shapes if shape not in table}
        blas.set_row_padding(table, draft_width)
        _log.info("rows_padded", products={f"{n}x{k}": rows for (n, k), rows in table.items()})
    return probe_exactness(target, draft_width)


def _serving(
    target: Target,
    drafter: Drafter | None,
    no_drafter_because: str,
    draft_width: int,
    blas: BlasReport,
    exactness: Exactness,
    costs: tuple[CostCell, ...],
) -> Serving:
    return Serving(
        target=target,
        drafter=drafter,
        no_drafter_because=no_drafter_because,
        draft_width=draft_width,
        hardware=detect_hardware(),
        blas=blas,
        mlx_version=importlib.metadata.version("mlx"),
        exactness=exactness,
        costs=costs,
        link=_no_link,
    )


def _open_lane(
    serving: Serving, settings: DecodeSettings, drafter: Drafter
) -> tuple[GrantSource, Callable[[], LinkState | None], Callable[[], None]]:
    capabilities = _capabilities(serving, settings)
    if settings.policy_address is None:
        return StaticGrants(capabilities, serving.costs, serving.draft_width), _no_link, _nothing
    key = PolicyKey(
        target=serving.target.name,
        drafter=drafter.name,
        hardware=serving.hardware.label,
        draft_width=serving.draft_width,
        target_fingerprint=serving.target.fingerprint,
        drafter_fingerprint=drafter.fingerprint,
        dtype=serving.target.dtype,
        backend=serving.hardware.backend,
        blas=serving.blas.name,
        mlx_version=serving.mlx_version,
    )
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

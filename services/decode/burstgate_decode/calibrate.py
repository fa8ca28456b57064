"""Obtains a pairing's cost table without serving it, for `burstgate models calibrate`.

The same settings, models and cache folder as the service's, so both share one stored table. The BLAS is put
in place before anything imports mlx, so the rest is imported late.
"""

from dataclasses import dataclass

from burstgate_decode.config import NONE, DecodeSettings
from burstgate_decode.models.blas import install_blas
from burstgate_decode.models.errors import ModelError
from burstgate_policy.core.types import CostCell, PolicyKey
from burstgate_runtime.logs import configure_logs
from burstgate_runtime.settings import SettingsError, load_settings

__all__ = ["Calibration", "SettingsError", "calibrate", "read_settings"]


@dataclass(frozen=True)
class Calibration:
    """A pairing and what its steps cost here."""

    key: PolicyKey
    table: tuple[CostCell, ...]
    stored: bool
    """Whether the table was read and still held; otherwise it was measured just now."""
    measured_at: float
    """Seconds since the epoch."""


def read_settings(
    *, target: str, drafter: str | None, draft_width: int | None, max_active_rows: int | None
) -> DecodeSettings:
    """The service's settings with these in place of its variables; None leaves the variable or the default.

    Raises `SettingsError` for a value out of its limits.
    """
    return load_settings(
        DecodeSettings, target=target, drafter=drafter, draft_width=draft_width, max_active_rows=max_active_rows
    )


def calibrate(settings: DecodeSettings, *, fresh: bool) -> Calibration:
    """Loads the pairing and reads or measures its table; `fresh` measures whatever is stored.

    Must run before the process imports mlx. Warnings of the service's log go to stderr. Raises `ModelError`
    for a pairing that cannot be loaded, or that has no rounds to measure.
    """
    configure_logs("warning", "console")
    if settings.drafter == NONE:
        raise _no_rounds("the server has no drafter")
    blas = install_blas(settings.blas, settings.cache_dir / "blas" if settings.cache_dir else None)

    from burstgate_decode.startup import cost_table, load_models, policy_key

    models = load_models(settings, blas)
    if models.drafter is None:
        raise _no_rounds(models.because)
    costs = cost_table(settings, models, fresh=fresh)
    return Calibration(policy_key(models, models.drafter), costs.table, costs.stored, costs.measured_at)


def _no_rounds(because: str) -> ModelError:
    return ModelError(
        "CALIBRATION_NEEDS_DRAFTER",
        f"there are no rounds to measure, because {because}; name a drafter with --drafter",
    )

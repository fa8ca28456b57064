"""Finds out whether MLX's products reach the BLAS that was put in place.

It imports mlx, which must not be done before the BLAS is chosen.
"""

from dataclasses import replace

import mlx.core as mx

from burstgate_decode.models.blas import BlasReport


def verify_active(report: BlasReport) -> BlasReport:
    """Return the report corrected by a real product: a BLAS that MLX does not reach is not active.

    Models on a GPU reach none at all.
    """
    if mx.default_device() != mx.Device(mx.cpu):
        return BlasReport(name="", active=False)
    if not report.active:
        return report
    before = report.calls()
    a = mx.ones((2, 3), dtype=mx.float32)
    mx.eval(mx.matmul(a, a.T, stream=mx.cpu))
    if report.calls() > before:
        return report
    note = (
        f"{report.name} is loaded, but this build of MLX brings a BLAS of its own and does not use it. "
        "Install mlx[cpu] from PyPI, or accept the speed of that BLAS."
    )
    return replace(report, name="reference", active=False, note=note)

"""What a measurement ran on, in words that a reader can compare with theirs."""

import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import dataclass

from burstgate_bench.noise import usable_cores
from burstgate_decode.serving import Serving


@dataclass(frozen=True)
class Machine:
    """Hardware and software of a measurement."""

    hardware: str
    cores: int
    blas: str
    exact_rows: bool
    """Whether the BLAS shim computes products, for every arm of the process alike."""
    rows: str
    """What is known of a verify's rows: bit-equal to single steps or not."""
    versions: Mapping[str, str]


def describe(serving: Serving) -> Machine:
    """This machine, running this pairing."""
    packages = {name: importlib.metadata.version(name) for name in ("burstgate", "mlx", "mlx-lm")}
    return Machine(
        hardware=serving.hardware.label,
        cores=usable_cores(),
        blas=serving.blas.name or serving.hardware.backend,
        exact_rows=serving.blas.exact_rows,
        rows=serving.exactness.explanation,
        versions={**packages, "python": platform.python_version()},
    )

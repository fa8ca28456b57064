"""Finds how few rows of padding make a product's rows independent of each other's number.

OpenBLAS takes another kernel for small products, so a token verified among others may see other bits than
the same token alone. Which sizes are touched depends on the processor and the build, hence an experiment at
start. It must not know models: a weight is its [N, K] shape.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import mlx.core as mx

from burstgate_decode.models.blas import BlasReport

_DRAWS: Final = 3  # one draw can agree by chance where few values are rounded
_LARGER_ROWS: Final = (
    9,
    12,
    16,
    24,
    33,
    64,
)  # batches verify more rows; odd sizes reach the kernels' remainders
_SEED: Final = 11


def make_rows_exact(
    report: BlasReport,
    shapes: Iterable[tuple[int, int]],
    max_rows: int = 8,
    free: Iterable[tuple[int, int]] = (),
) -> dict[tuple[int, int], int]:
    """Probe the weights of [N, K] `shapes`, set the padding they need, and return it. `free` ones need none.

    Where one weight is computed by the shim itself, all are: OpenBLAS's threads spin for a while after each of its
    products, which would slow the shim's.
    """
    report.set_row_padding({}, 1)
    table = probe_row_padding(shapes, max_rows)
    unaided = 0 in table.values()
    table |= {shape: 0 if unaided else 1 for shape in free if shape not in table}
    report.set_row_padding(table, 0 if unaided else max_rows)
    return table


def probe_row_padding(shapes: Iterable[tuple[int, int]], max_rows: int = 8) -> dict[tuple[int, int], int]:
    """Return for each weight shape the fewest rows from which on products agree in every bit.

    A shape that needs more than `max_rows` gets 0: it is to be computed by the shim itself. Must run while no
    padding is set.
    """
    return {shape: _fewest_rows(*shape, max_rows) for shape in dict.fromkeys(shapes)}


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


def _fewest_rows(n: int, k: int, max_rows: int) -> int:
    counts = [*range(1, max_rows + 1), *(rows for rows in _LARGER_ROWS if rows > max_rows)]
    key = mx.random.key(_SEED)
    weight = mx.random.uniform(-1, 1, (n, k), key=key, stream=mx.cpu)
    agreeing = set(counts)
    for draw in range(_DRAWS):
        x = mx.random.normal((counts[-1], k), key=mx.random.key(_SEED + 1 + draw), stream=mx.cpu)
        expected = _product(x, weight, counts[-1])
        for rows in sorted(agreeing):
            if not bool(mx.array_equal(_product(x, weight, rows), expected[:rows], stream=mx.cpu)):
                agreeing.discard(rows)
    fewest = max((rows for rows in counts if rows not in agreeing), default=0) + 1
    return fewest if fewest <= max_rows else 0


def _product(x: mx.array, weight: mx.array, rows: int) -> mx.array:
    """The first rows of `x` [M, K] by `weight` [N, K], multiplied as one product of so many rows."""
    product = mx.matmul(x[:rows], weight.T, stream=mx.cpu)
    mx.eval(product)
    return product

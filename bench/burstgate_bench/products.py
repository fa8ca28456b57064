"""Measures products by a weight, the BLAS shim's own beside OpenBLAS's: `python -m burstgate_bench.products`.

The last line of the output is one JSON object, how many times as fast the shim's are by weight and number of rows.
Exit code 2 means that nothing could be measured. The BLAS is put in place before anything imports mlx.
"""

import json
import operator
import statistics
import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from burstgate_bench.command import NothingToMeasureError, prepared
from burstgate_bench.noise import load_average, noise_warnings, usable_cores
from burstgate_decode.models.blas import BlasReport

# Of the default target, and how many of each: attention and output, keys and values, the MLP's two, the vocabulary.
_WEIGHTS = {(576, 576): 60, (192, 576): 60, (1536, 576): 60, (576, 1536): 30, (49152, 576): 1}
_ROWS = (1, 2, 4, 8, 16, 24, 32, 64, 128, 256)
# As the layers of a model do, so that weights come from memory and not from a cache, however large.
_COPIES_OF_VALUES = 1 << 27
# OpenBLAS's threads look for more work a tenth of a second or more after a product, at the cost of whoever multiplies.
_SETTLE_S = 0.3
_SHIM, _OPENBLAS = "shim", "openblas"


def main(
    blocks: Annotated[int, typer.Option(min=1, max=1000, help="ABBA blocks; each gives two samples a cell.")] = 3,
) -> None:
    """Times each weight of the default target with 1 to 256 rows, in float32."""
    console = Console()
    with prepared("products") as blas:
        if not blas.active:
            raise NothingToMeasureError(blas.note or "there is one BLAS only on this platform")
        load_before = load_average()
        weights = (f"{n} x {k}" for n, k in _WEIGHTS)
        table = Table("rows", *weights, "all of a forward", title=f"shim, {blas.name}: ms (times as fast)")
        ratios: dict[int, list[float]] = {}
        for rows in _ROWS:
            cells = [_medians_ms(blas, weight, rows, blocks) for weight in _WEIGHTS]
            ratios[rows] = [openblas / shim for shim, openblas in cells]
            table.add_row(str(rows), *map(_shown, cells), _shown(_of_a_forward(cells)))
        console.print(table)
        console.print(f"{blas.threads()} threads", markup=False)
        for warning in noise_warnings(load_before, load_average(), usable_cores(), {}):
            console.print(f"[yellow]warning:[/] {warning}", soft_wrap=True)
    names = [f"{n}x{k}" for n, k in _WEIGHTS]
    print(json.dumps({rows: dict(zip(names, map(_rounded, of), strict=True)) for rows, of in ratios.items()}))


def _medians_ms(blas: BlasReport, weight: tuple[int, int], rows: int, blocks: int) -> tuple[float, float]:
    """Of one product: the shim's and OpenBLAS's."""
    import mlx.core as mx

    n, k = weight
    copies = max(1, _COPIES_OF_VALUES // (n * k))
    weights = [mx.random.uniform(-1, 1, (n, k), stream=mx.cpu) for _ in range(copies)]
    x = mx.random.normal((rows, k), stream=mx.cpu)
    mx.eval(x, weights)
    times_ms: dict[str, list[float]] = {_SHIM: [], _OPENBLAS: []}
    # Once before anything counts, for the threads and the buffers of both.
    for turn, arm in enumerate((_SHIM, _OPENBLAS) + (_SHIM, _OPENBLAS, _OPENBLAS, _SHIM) * blocks):
        blas.set_exact_rows(arm == _SHIM)
        time.sleep(_SETTLE_S)
        products = [mx.matmul(x, each.T, stream=mx.cpu) for each in weights]
        start_s = time.perf_counter()
        mx.eval(products)
        if turn > 1:
            times_ms[arm].append((time.perf_counter() - start_s) * 1e3 / copies)
    blas.set_exact_rows(False)
    return statistics.median(times_ms[_SHIM]), statistics.median(times_ms[_OPENBLAS])


def _of_a_forward(cells: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """What all products of a forward of the default target take, by the shim and by OpenBLAS."""
    shim, openblas = (sum(map(operator.mul, times_ms, _WEIGHTS.values())) for times_ms in zip(*cells, strict=True))
    return shim, openblas


def _shown(cell: tuple[float, float]) -> str:
    shim, openblas = cell
    return f"{shim:.3f}, {openblas:.3f} ({openblas / shim:.2f})"


def _rounded(ratio: float) -> float:
    return round(ratio, 2)


if __name__ == "__main__":
    typer.run(main)

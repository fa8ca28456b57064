"""A row's bits do not depend on how many rows were multiplied; and the results stay right."""

from collections.abc import Callable

import pytest

RunScript = Callable[..., str]

START = """
from burstgate_decode.models.blas import install_blas
report = install_blas("openblas")
import mlx.core as mx, numpy as np
report.set_exact_rows(True)

def rows_that_differ(x, b):
    '''Numbers of rows for which a product differs from its rows taken one at a time.'''
    single = mx.concatenate([x[i:i + 1] @ b for i in range(x.shape[0])])
    counts = [m for m in (*range(1, 13), 16, 19, 24, 33, 40, 63, 64) if m <= x.shape[0]]
    return [m for m in counts if not mx.array_equal(x[:m] @ b, single[:m]).item()]

def close(x, b):
    return np.allclose(np.array(x @ b), np.array(x).astype(float) @ np.array(b).astype(float), atol=2e-3)
"""
DEFAULT_TARGET_SHAPES = "[(576, 576), (192, 576), (1536, 576), (576, 1536), (49152, 576)]"


@pytest.mark.parametrize("threads", [1, 2])
def test_one_row_products_of_the_default_target_equal_rows_of_up_to_64(run_script: RunScript, threads: int) -> None:
    printed = run_script(
        START
        + f"""
for n, k in {DEFAULT_TARGET_SHAPES}:
    w = mx.random.uniform(-1, 1, (n, k))
    x = mx.random.normal((64 if n < 40000 else 9, k))
    assert not rows_that_differ(x, w.T), (n, k)
    assert close(x[:3], w.T), (n, k)
print("same")
""",
        {"OPENBLAS_NUM_THREADS": str(threads)},
    )
    assert printed == "same"


EXACT_PRODUCTS = (
    START
    + """
import hashlib
shapes = [(576, 576), (192, 576), (1536, 576), (576, 1536), (33, 300), (5, 1000), (1, 257), (49, 2049), (6, 259)]
digest = hashlib.sha256()
for n, k in shapes:
    mx.random.seed(n)
    w, x = mx.random.uniform(-1, 1, (n, k)), mx.random.normal((256, k))
    assert not rows_that_differ(x[:64], w.T), (n, k)
    whole = x @ w.T
    for first, last in ((0, 256), (1, 200), (93, 94), (100, 221)):
        assert mx.array_equal(x[first:last] @ w.T, whole[first:last]).item(), (n, k, first, last)
    assert close(x, w.T), (n, k)
    digest.update(np.array(whole).tobytes())
for head in (64, 80, 72):
    weights, values = mx.random.uniform(0, 1, (24, 300)), mx.random.normal((300, head))
    assert not rows_that_differ(weights, values), head
    digest.update(np.array(weights @ values).tobytes())
print(digest.hexdigest())
"""
)


def test_products_are_exact_at_any_number_of_rows_and_threads(run_script: RunScript) -> None:
    printed = {run_script(EXACT_PRODUCTS, {"OPENBLAS_NUM_THREADS": str(threads)}) for threads in (1, 2, 5)}
    assert len(printed) == 1


def test_small_weights_are_exact_too(run_script: RunScript) -> None:
    printed = run_script(
        START
        + """
for n, k in [(64, 48), (48, 64), (300, 48), (48, 48), (7, 300)]:
    w, x = mx.random.normal((n, k)), mx.random.normal((64, k))
    assert not rows_that_differ(x, w.T), (n, k)
    # The weight the other way round, as attention's values are.
    assert not rows_that_differ(mx.random.normal((64, n)), w), (n, k)
    assert close(x, w.T), (n, k)
print("same")
"""
    )
    assert printed == "same"


def test_attention_does_not_see_the_number_of_rows_nor_masked_keys(run_script: RunScript) -> None:
    printed = run_script(
        START
        + """
for head in (32, 64, 80, 128):
    for context in (1, 2, 31, 64, 457, 1100):
        keys, values = mx.random.normal((context, head)), mx.random.normal((context, head))
        queries, weights = mx.random.normal((20, head)), mx.random.uniform(0, 1, (20, context))
        assert not rows_that_differ(queries, keys.T), (head, context)
        assert not rows_that_differ(weights, values), (head, context)
        assert close(queries, keys.T) and close(weights, values), (head, context)
        for before, behind in ((7, 0), (0, 9), (33, 5)):
            around = mx.pad(values, ((before, behind), (0, 0)), constant_values=3.5)
            masked = mx.pad(weights, ((0, 0), (before, behind)))
            assert mx.array_equal(masked @ around, weights @ values).item(), (head, context, before, behind)
            assert mx.array_equal((queries @ around.T)[:, before:before + context], queries @ values.T).item()
print("same")
"""
    )
    assert printed == "same"


def test_products_that_are_not_plain_keep_their_meaning(run_script: RunScript) -> None:
    printed = run_script(
        START
        + """
def results():
    mx.random.seed(3)
    x, w, c = mx.random.normal((3, 340)), mx.random.normal((300, 340)), mx.random.normal((3, 300))
    wide = mx.random.normal((6, 400))
    batch = mx.random.normal((2, 3, 3, 340))
    return [mx.addmm(c, x, w.T, alpha=0.5, beta=2.0), mx.addmm(c, x, w.T, alpha=0.5, beta=0.0), x.T @ c,
            batch @ w.T, wide[::2, :300] @ w, wide[:3, 20:360] @ w.T, wide[::2, 20:360] @ w[3:290].T,
            batch @ batch.swapaxes(-1, -2)]

exact = [np.array(value) for value in results()]
report.set_exact_rows(False)
for one, other in zip(exact, results(), strict=True):
    assert np.allclose(one, np.array(other), atol=1e-4)
print("same")
"""
    )
    assert printed == "same"


def test_exact_rows_may_be_switched_while_other_threads_multiply(run_script: RunScript) -> None:
    printed = run_script(
        START
        + """
import ctypes, threading
product = report.library.cblas_sgemm
integers, real, pointer = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
product.argtypes = [integers] * 6 + [real, pointer, integers, pointer, integers, real, pointer, integers]
random = np.random.default_rng(5)
wrong = []
stop = threading.Event()

def multiply(m, n, k):
    a, b = random.standard_normal((m, k), dtype=np.float32), random.standard_normal((n, k), dtype=np.float32)
    expected = a.astype(float) @ b.T.astype(float)
    c = np.empty((m, n), np.float32)
    while not stop.is_set():
        c.fill(np.nan)
        product(101, 111, 112, m, n, k, 1.0, a.ctypes.data, k, b.ctypes.data, k, 0.0, c.ctypes.data, n)
        if not np.allclose(c, expected, atol=1e-3):
            wrong.append((m, n, k))

sizes = [(1, 300, 400), (3, 300, 400), (2, 70, 64), (7, 500, 300)]
threads = [threading.Thread(target=multiply, args=size) for size in sizes]
for thread in threads:
    thread.start()
turn = 0
# As many products and as many switches as it takes: how they share the cores is the scheduler's affair.
while (report.calls() < 2000 or turn < 200) and not wrong:
    report.set_exact_rows(turn % 2 == 0)
    turn += 1
stop.set()
for thread in threads:
    thread.join()
print(wrong)
"""
    )
    assert printed == "[]"


def test_exact_rows_can_be_switched_off_again(run_script: RunScript) -> None:
    printed = run_script(
        START
        + """
report.set_exact_rows(False)
w, x = mx.random.normal((192, 576)), mx.random.normal((8, 576))
before = np.array(x[:1] @ w.T)
report.set_exact_rows(True)
exact = np.array(x[:1] @ w.T)
assert (exact == np.array(x @ w.T)[:1]).all() and report.exact_rows
report.set_exact_rows(False)
print((np.array(x[:1] @ w.T) == before).all(), (exact == before).all(), report.exact_rows)
"""
    )
    assert printed == "True False False"

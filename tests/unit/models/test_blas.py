"""What stands under MLX on Linux CPUs, and what is said when the fast one cannot. Real compilers, real products."""

from collections.abc import Callable
from pathlib import Path

import pytest

RunScript = Callable[..., str]

INSTALL = """
from pathlib import Path
from burstgate_decode.models.blas import install_blas
from burstgate_decode.models.errors import BlasError
report = install_blas({arguments})
"""


def installing(arguments: str = "") -> str:
    return INSTALL.format(arguments=arguments)


def test_mlx_products_go_through_openblas_and_are_right(run_script: RunScript) -> None:
    printed = run_script(
        installing()
        + """
import mlx.core as mx, numpy as np
from burstgate_decode.models.blas_check import verify_active
a, b = mx.random.normal((5, 33)), mx.random.normal((70, 33))
before = report.calls()
product = np.array(a @ b.T)
assert report.calls() == before + 1
assert np.allclose(product, np.array(a).astype(float) @ np.array(b).T.astype(float), atol=1e-4)
assert verify_active(report) is report
print(report.name, report.active, report.note)
"""
    )
    assert printed.startswith("openblas-0.3.")
    assert printed.endswith("True None")


def test_the_build_is_kept_and_used_again(run_script: RunScript, tmp_path: Path) -> None:
    script = installing(f"cache=Path({str(tmp_path)!r})") + "print(report.active, report.note)"
    assert run_script(script) == "True None"
    (build,) = tmp_path.iterdir()
    written = build.stat().st_mtime_ns
    assert run_script(script, {"CC": "/no/compiler/is/needed/now"}) == "True None"
    assert build.stat().st_mtime_ns == written
    assert list(tmp_path.iterdir()) == [build]


def test_a_damaged_build_is_made_anew(run_script: RunScript, tmp_path: Path) -> None:
    script = installing(f"cache=Path({str(tmp_path)!r})") + "print(report.active, report.note)"
    run_script(script)
    (build,) = tmp_path.iterdir()
    build.write_bytes(b"not a library")
    assert run_script(script) == "True None"
    assert build.stat().st_size > 1000


def test_the_cache_folder_follows_the_environment(run_script: RunScript, tmp_path: Path) -> None:
    run_script(installing(), {"XDG_CACHE_HOME": str(tmp_path)})
    assert list((tmp_path / "burstgate" / "blas").glob("libburstgate_blas-*.so"))


def test_an_unusable_cache_still_gives_openblas_and_says_where_it_was_built(
    run_script: RunScript, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / "file" / "cache")
    printed = run_script(
        installing(f"cache=Path({folder!r})")
        + "import mlx.core as mx; mx.eval(mx.ones((2, 2)) @ mx.ones((2, 2)))\nprint(report.calls(), report.note)"
    )
    assert printed.startswith("1 ")
    assert folder in printed
    assert "temporary folder" in printed


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"PATH": "/nowhere", "CC": ""}, "no C compiler"),
        ({"CC": "no-such-compiler"}, "no-such-compiler"),
        ({"CC": "false"}, "false could not build"),
    ],
)
def test_without_a_working_compiler_the_note_says_what_it_costs_and_what_to_do(
    run_script: RunScript, tmp_path: Path, environ: dict[str, str], named: str
) -> None:
    script = installing(f"cache=Path({str(tmp_path)!r})") + "print(report.name, report.active, report.note)"
    printed = run_script(script, environ)
    assert printed.startswith("reference False")
    assert named in printed
    assert "several times slower" in printed
    assert "speculation cannot pay" in printed
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_the_note_names_it(run_script: RunScript) -> None:
    script = "import sys; sys.modules['scipy_openblas32'] = None" + installing() + "print(report.name, report.note)"
    printed = run_script(script)
    assert printed.startswith("reference The package scipy-openblas32 is missing; install it")


def test_openblas_that_was_asked_for_and_cannot_be_had_is_an_error(run_script: RunScript, tmp_path: Path) -> None:
    printed = run_script(
        f"""
from pathlib import Path
from burstgate_decode.models.blas import install_blas
from burstgate_decode.models.errors import BlasError
try:
    install_blas("openblas", Path({str(tmp_path)!r}))
except BlasError as error:
    print(error.reason, error)
""",
        {"CC": "no-such-compiler"},
    )
    assert printed.startswith("BLAS_UNAVAILABLE")
    assert "no-such-compiler" in printed


def test_reference_leaves_mlx_as_it_is(run_script: RunScript) -> None:
    printed = run_script(
        installing("'reference'")
        + """
import mlx.core as mx
mx.eval(mx.ones((2, 2)) @ mx.ones((2, 2)))
report.set_exact_rows(True)
print(report.name, report.active, report.calls(), report.exact_rows)
"""
    )
    assert printed == "reference False 0 False"


def test_a_choice_after_mlx_was_imported_is_an_error_unless_it_was_made_before(run_script: RunScript) -> None:
    printed = run_script(
        """
from burstgate_decode.models.blas import install_blas
from burstgate_decode.models.errors import BlasError
import mlx.core
try:
    install_blas()
except BlasError as error:
    print(error.reason)
"""
    )
    assert printed == "BLAS_TOO_LATE"
    again = installing() + "import mlx.core\nprint(install_blas() is report, install_blas('openblas') is report)"
    assert run_script(again) == "True True"


def test_an_active_openblas_cannot_be_taken_back(run_script: RunScript) -> None:
    printed = run_script(
        installing()
        + """
try:
    install_blas("reference")
except BlasError as error:
    print(error.reason)
"""
    )
    assert printed == "BLAS_ALREADY_ACTIVE"


def test_a_blas_that_was_there_first_is_reported_instead_of_ours(run_script: RunScript) -> None:
    printed = run_script(
        """
import ctypes, importlib.util
from pathlib import Path
packages = Path(importlib.util.find_spec("mlx").submodule_search_locations[0]).parent
for name in ("libquadmath", "libgfortran", "libblas"):
    (library,) = (packages / "mlx_cpu.libs").glob(name + "-*")
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
"""
        + installing()
        + """
from burstgate_decode.models.blas_check import verify_active
checked = verify_active(report)
print(report.active, checked.name, checked.active, checked.note)
"""
    )
    assert printed.startswith("True reference False openblas-")
    assert "does not use it" in printed


def test_there_is_nothing_to_choose_outside_linux(run_script: RunScript) -> None:
    printed = run_script("import sys; sys.platform = 'darwin'" + installing() + "print(report)")
    assert printed == "BlasReport(name='', active=False, note=None)"

"""When figures are called doubtful."""

from burstgate_bench.noise import noise_warnings


def test_a_quiet_machine_gets_no_warning() -> None:
    assert noise_warnings(0.3, 2.1, 2, {"K=2 on prose": 0.03}) == []


def test_load_before_the_start_is_named_with_the_cores() -> None:
    (warning,) = noise_warnings(1.5, 2.0, 2, {})
    assert "before the start: load 1.50 on 2 cores" in warning


def test_load_beyond_what_the_measurement_makes_itself_is_named() -> None:
    (warning,) = noise_warnings(0.0, 4.0, 2, {})
    assert "load 4.00 on 2 cores at the end" in warning


def test_a_wide_spread_names_the_worst_cell() -> None:
    (warning,) = noise_warnings(0.0, 0.0, 2, {"AUTO on code": 0.12, "K=3 on prose": 0.4, "classic on code": 0.05})
    assert warning.startswith("2 of 3 cells")
    assert "K=3 on prose, 40%" in warning

"""Two models of one name must never share a verdict, and one model must always find its own."""

from pathlib import Path

import mlx.core as mx
import pytest

from burstgate_decode.models.errors import ModelError
from burstgate_decode.models.fingerprint import fingerprint


def write_model(folder: Path, *, seed: int = 1, rows: int = 64, config: str = "{}") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config)
    weights = {"weight": mx.random.normal((rows, 64), key=mx.random.key(seed))}
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


def test_a_copy_elsewhere_has_the_same_fingerprint(tmp_path: Path) -> None:
    first = fingerprint(write_model(tmp_path / "a" / "model"))
    assert first == fingerprint(write_model(tmp_path / "b" / "renamed"))
    assert len(first) == 16
    assert set(first) <= set("0123456789abcdef")


def test_other_weights_under_the_same_name_have_another_fingerprint(tmp_path: Path) -> None:
    one = fingerprint(write_model(tmp_path / "a" / "model", seed=1))
    assert one != fingerprint(write_model(tmp_path / "b" / "model", seed=2))


def test_another_configuration_of_the_same_weights_has_another_fingerprint(tmp_path: Path) -> None:
    one = fingerprint(write_model(tmp_path / "a", config='{"rope_theta": 1}'))
    assert one != fingerprint(write_model(tmp_path / "b", config='{"rope_theta": 2}'))


def test_weights_moved_to_another_file_name_have_another_fingerprint(tmp_path: Path) -> None:
    before = fingerprint(write_model(tmp_path / "a"))
    (tmp_path / "a" / "model.safetensors").rename(tmp_path / "a" / "other.safetensors")
    assert fingerprint(tmp_path / "a") != before


def test_files_beside_the_weights_do_not_matter(tmp_path: Path) -> None:
    before = fingerprint(write_model(tmp_path / "a"))
    (tmp_path / "a" / "README.md").write_text("notes")
    assert fingerprint(tmp_path / "a") == before


@pytest.mark.parametrize("position", [0, 9, 200, 9_000, -1])
def test_one_changed_byte_of_a_small_file_is_seen_wherever_it_is(tmp_path: Path, position: int) -> None:
    folder = write_model(tmp_path / "a")
    before = fingerprint(folder)
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[position] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    assert fingerprint(folder) != before


def test_a_file_of_many_gigabytes_costs_a_few_megabytes_of_reading(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "a")
    small = fingerprint(folder)
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(30 << 30)  # sparse: hashing all of it would run into the suite's time limit
    assert fingerprint(folder) not in ("", small)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_folder_without_a_model_is_refused_by_name(tmp_path: Path, missing: str) -> None:
    folder = write_model(tmp_path / "a")
    (folder / missing).unlink()
    with pytest.raises(ModelError, match=str(folder)) as refused:
        fingerprint(folder)
    assert refused.value.reason == "MODEL_UNREADABLE"

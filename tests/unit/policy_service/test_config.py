"""Settings of the policy service and what they make of the core's constants."""

from pathlib import Path

import pytest

from burstgate_policy.config import PolicySettings, default_hint_dir
from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.gate_config import GateConfig
from burstgate_runtime.settings import load_settings, variable_names


@pytest.mark.parametrize(
    ("environ", "platform", "folder"),
    [
        ({"HOME": "/h"}, "linux", "/h/.cache/burstgate/hints"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "linux", "/x/burstgate/hints"),
        ({"HOME": "/h", "XDG_CACHE_HOME": ""}, "linux", "/h/.cache/burstgate/hints"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "relative"}, "linux", "/h/.cache/burstgate/hints"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "darwin", "/h/Library/Caches/burstgate/hints"),
    ],
)
def test_hints_go_to_the_cache_folder_of_the_platform(environ: dict[str, str], platform: str, folder: str) -> None:
    assert default_hint_dir(environ, platform) == Path(folder)


def test_every_variable_of_the_manual_exists() -> None:
    manual = (Path(__file__).parents[3] / "services" / "policy" / "README.md").read_text()
    missing = [name for name in variable_names(PolicySettings) if f"`{name}`" not in manual]
    assert missing == []


def test_by_default_the_core_runs_on_its_own_constants() -> None:
    assert load_settings(PolicySettings).core_config() == CoreConfig()


def test_settings_reach_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURSTGATE_GATE_REPROBE_STEPS", "50")
    monkeypatch.setenv("BURSTGATE_GATE_REFRESH_STEPS", "100")
    monkeypatch.setenv("BURSTGATE_GATE_REGRET_CEILING", "0.1")
    monkeypatch.setenv("BURSTGATE_GATE_OBJECTIVE", "latency")
    monkeypatch.setenv("BURSTGATE_ENTRY_PIN_TOKENS", "8")
    config = load_settings(PolicySettings).core_config()
    gate = config.gate
    assert isinstance(gate, GateConfig)
    assert (gate.reprobe_steps, gate.refresh_steps, gate.regret_ceiling) == (50, 100, 0.1)
    assert config.depth.objective == "latency"
    assert config.entry_pin_tokens == 8

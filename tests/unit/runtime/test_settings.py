"""Settings: a mistake names the variable, the value and what is allowed; a default never hides one."""

from typing import Literal

import pydantic
import pytest

from burstgate_runtime.settings import (
    ListenAddress,
    ServiceSettings,
    SettingsError,
    load_settings,
    unknown_variables,
    variable_names,
)


class Settings(ServiceSettings):
    listen: ListenAddress = pydantic.Field(
        "127.0.0.1:1", validation_alias="BURSTGATE_TEST_LISTEN", validate_default=True
    )
    ratio: float = pydantic.Field(0.5, gt=0, lt=1)
    flavour: Literal["sweet", "sour"] = "sweet"
    force: bool | None = None


def test_defaults_need_no_environment() -> None:
    settings = load_settings(Settings)
    assert (settings.log_level, settings.log_format, settings.metrics_listen) == ("info", "json", None)
    assert settings.listen.bind == "127.0.0.1:1"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("BURSTGATE_LOG_LEVEL", "loud", "must be one of debug, info, warning, error"),
        ("BURSTGATE_MAX_CONCURRENT_RPCS", "many", "must be a whole number from 1 to 1000000"),
        ("BURSTGATE_MAX_CONCURRENT_RPCS", "0", "must be a whole number from 1 to 1000000"),
        ("BURSTGATE_MAX_CONCURRENT_RPCS", "1.5", "must be a whole number from 1 to 1000000"),
        ("BURSTGATE_DRAIN_TIMEOUT_S", "nan", "must be a number from 0 to 3600"),
        ("BURSTGATE_RATIO", "1", "must be a number above 0 below 1"),
        ("BURSTGATE_FLAVOUR", "Sweet", "must be one of sweet, sour"),
        ("BURSTGATE_FORCE", "maybe", "must be on or off"),
        ("BURSTGATE_FORCE", "", "is set but empty; unset it to get the default"),
        ("BURSTGATE_LOG_LEVEL", " ", "is set but empty; unset it to get the default"),
        ("BURSTGATE_METRICS_LISTEN", "", "is set but empty; unset it to get the default"),
        ("BURSTGATE_METRICS_LISTEN", "unix:/x", "must be host:port; a Unix socket cannot be scraped"),
        ("BURSTGATE_TEST_LISTEN", "50051", "must be host:port"),
    ],
)
def test_a_bad_value_names_the_variable_the_value_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as caught:
        load_settings(Settings)
    assert str(caught.value).startswith(f"{variable}={value}: {message}")


def test_every_mistake_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURSTGATE_RATIO", "7")
    monkeypatch.setenv("BURSTGATE_FLAVOUR", "bitter")
    with pytest.raises(SettingsError, match=r"BURSTGATE_RATIO=7.*BURSTGATE_FLAVOUR=bitter"):
        load_settings(Settings)


def test_an_override_wins_over_the_environment_and_is_named_as_a_flag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BURSTGATE_TEST_LISTEN", "127.0.0.1:1")
    assert load_settings(Settings, listen="unix:/tmp/x", force=None).listen.bind == "unix:/tmp/x"
    with pytest.raises(SettingsError, match=r"^--listen=nowhere: must be host:port"):
        load_settings(Settings, listen="nowhere")


def test_an_override_hides_a_bad_variable_of_the_same_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURSTGATE_RATIO", "7")
    assert load_settings(Settings, ratio=0.25).ratio == 0.25


@pytest.mark.parametrize(("text", "value"), [("on", True), ("off", False), ("1", True), ("0", False)])
def test_switches_read_on_and_off(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv("BURSTGATE_FORCE", text)
    assert load_settings(Settings).force is value


def test_unknown_variables_are_ours_by_prefix_and_known_to_nobody() -> None:
    known = variable_names(Settings)
    assert "BURSTGATE_TEST_LISTEN" in known
    assert "BURSTGATE_LOG_LEVEL" in known
    environ = dict.fromkeys(["BURSTGATE_LOG_LEVEL", "BURSTGATE_LOG_LEVLE", "PATH", "BURSTGATE_B"], "")
    assert unknown_variables(known, environ) == ["BURSTGATE_B", "BURSTGATE_LOG_LEVLE"]


def test_a_mistake_in_a_url_does_not_show_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURSTGATE_TEST_LISTEN", "redis://user:secret@host:1/0")
    with pytest.raises(SettingsError) as caught:
        load_settings(Settings)
    assert "secret" not in str(caught.value)
    assert "BURSTGATE_TEST_LISTEN=redis://***@host:1/0: must be host:port" in str(caught.value)

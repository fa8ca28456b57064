"""Settings of the policy service and what the decision core makes of them."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from redis.connection import parse_url

from burstgate_policy.core.config import CoreConfig, DepthConfig
from burstgate_policy.core.gate_config import GateConfig
from burstgate_runtime.listen import parse_listen
from burstgate_runtime.settings import ListenAddress, ServiceSettings, SettingsError

_DEFAULT_LISTEN = parse_listen("127.0.0.1:50052")


def default_hint_dir(environ: Mapping[str, str], platform: str) -> Path:
    """Where verdicts are remembered when nobody says where: the user's cache folder of the platform."""
    home = Path(environ.get("HOME") or Path.home())
    if platform == "darwin":
        caches = home / "Library" / "Caches"
    else:
        # The XDG rules ask to ignore relative paths.
        named = Path(environ.get("XDG_CACHE_HOME", ""))
        caches = named if named.is_absolute() else home / ".cache"
    return caches / "burstgate" / "hints"


def _default_hint_dir() -> Path:
    return default_hint_dir(os.environ, sys.platform)


def _known_store(value: str) -> str:
    if value == "files":
        return value
    try:
        parse_url(value)  # type: ignore[no-untyped-call]
    except ValueError:
        raise SettingsError("must be files, or a URL: redis://host:6379/0, rediss:// or unix:///path?db=0") from None
    return value


class PolicySettings(ServiceSettings):
    """What an operator can tell the policy service."""

    listen: Annotated[ListenAddress, pydantic.Field(validation_alias="BURSTGATE_POLICY_LISTEN")] = _DEFAULT_LISTEN
    """Where the service is reached: host:port or unix:/path."""
    hint_dir: Path = pydantic.Field(default_factory=_default_hint_dir)
    """Folder of the stored verdicts; made when the first one is stored."""
    hint_store: Annotated[str, pydantic.AfterValidator(_known_store)] = "files"
    """Where verdicts are kept: files (in hint_dir), or the URL of a Redis that a fleet shares."""
    hint_refresh_s: float = pydantic.Field(default=5.0, ge=0.05, le=3600, allow_inf_nan=False)
    """How long after another replica stored a verdict it is known here at the latest, in seconds."""
    mtp_force: bool | None = None
    """Forces speculation on or off for every pairing: nothing is profiled, read or stored."""
    mtp_adaptive: bool = True
    """Off: nothing is profiled; the static gate alone decides."""
    gate_reprobe_steps: int = pydantic.Field(default=GateConfig().reprobe_steps, ge=1, le=1_000_000_000)
    """Plain steps between two measurements of speculation."""
    gate_refresh_steps: int = pydantic.Field(default=GateConfig().refresh_steps, ge=1, le=1_000_000_000)
    """Rounds between two measurements of plain decoding."""
    gate_regret_ceiling: float = pydantic.Field(
        default=GateConfig().regret_ceiling, ge=0.0, le=1.0, allow_inf_nan=False
    )
    """Share of time lost against the best single mode beyond which nothing is explored."""
    gate_objective: Literal["throughput", "latency"] = "throughput"
    """What a draft width is chosen by: the tokens of all rows, or those of the slowest one."""
    entry_pin_tokens: int = pydantic.Field(default=CoreConfig().entry_pin_tokens, ge=0, le=1_000_000)
    """Tokens at the start of an answer that a verify decides while plain runs; 0 for none."""
    lane_ttl_s: float = pydantic.Field(default=900.0, gt=0, le=86_400 * 365, allow_inf_nan=False)
    """A lane that was not used for so long is closed, in seconds."""
    max_lanes: int = pydantic.Field(default=256, ge=1, le=65_536)
    """Most lanes open at once."""
    grant_fresh_ms: int = pydantic.Field(default=2000, ge=0, le=3_600_000)
    """How long a decode instance may go on with its last grant when the service stops answering."""

    def core_config(self) -> CoreConfig:
        """The constants of the decision core under these settings."""
        gate = GateConfig(
            reprobe_steps=self.gate_reprobe_steps,
            refresh_steps=self.gate_refresh_steps,
            regret_ceiling=self.gate_regret_ceiling,
        )
        depth = DepthConfig(objective=self.gate_objective)
        return CoreConfig(gate=gate, depth=depth, entry_pin_tokens=self.entry_pin_tokens)

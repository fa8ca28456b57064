"""What a scrape reads of the accounts."""

import itertools

import prometheus_client
import pytest

from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.regret import Regret
from burstgate_policy.core.types import LaneCapabilities, PolicyKey
from burstgate_policy.lanes import LaneEntry, LaneTable, PairingAccount
from burstgate_policy.regret_metrics import RegretCollector


def open_lane(table: LaneTable, target: str = "t") -> LaneEntry:
    key = PolicyKey(target, "d", "h", 4, "", "", "float32", "cpu", "", "1")
    policy = MtpPolicy.start(
        key, force=None, adaptive=True, static_default=False, hint=None, config=CoreConfig(), now_s=0.0
    )
    capabilities = LaneCapabilities(True, 1, "mtp_head", 0)
    return table.open(policy, "instance", lambda policy: Lane(policy, capabilities, (), CoreConfig()))


@pytest.fixture
def registry() -> prometheus_client.CollectorRegistry:
    return prometheus_client.CollectorRegistry(auto_describe=True)


def test_each_pairings_account_is_read_in_seconds(registry: prometheus_client.CollectorRegistry) -> None:
    accounts = {
        "losing": PairingAccount(Regret((4000.0, 3000.0, 5000.0), (1000.0, 900.0, 1000.0))),
        "winning": PairingAccount(Regret((4000.0, 5000.0, 5000.0), (0.0, 0.0, 0.0))),
    }
    registry.register(RegretCollector(lambda: accounts))

    def read(name: str, key_hash: str) -> float | None:
        return registry.get_sample_value(f"burstgate_policy_{name}", {"key_hash": key_hash})

    assert read("run_seconds_total", "losing") == 4.0
    assert read("lost_seconds", "losing") == 1.0
    assert read("lost_share", "losing") == 0.25
    assert read("recent_lost_share", "losing") == pytest.approx(0.1)
    assert read("holding_lanes", "losing") == 0.0
    assert (read("lost_seconds", "winning"), read("recent_lost_share", "winning")) == (-1.0, 0.0)
    assert read("lost_seconds", "unknown") is None


def test_registering_reads_no_account(registry: prometheus_client.CollectorRegistry) -> None:
    def never() -> dict[str, PairingAccount]:
        raise AssertionError("an account was read")

    registry.register(RegretCollector(never))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(RegretCollector(never))


def test_lanes_that_hold_are_counted(registry: prometheus_client.CollectorRegistry) -> None:
    ids = itertools.count(1)
    table = LaneTable(clock=lambda: 0.0, new_id=lambda: f"lane-{next(ids)}", max_lanes=3, ttl_s=60.0)
    entries = [open_lane(table) for _ in range(3)]
    for entry in entries[:2]:
        entry.lane.regret = Regret((10.0, 5.0), (10.0, 5.0), holding=True)
    registry.register(RegretCollector(table.accounts))
    labels = {"key_hash": entries[0].lane.policy.key.hash}
    assert registry.get_sample_value("burstgate_policy_holding_lanes", labels) == 2.0

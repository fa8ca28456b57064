"""What deciding costs each pairing, as Prometheus reads it.

Nothing is counted while grants are given: lanes keep their accounts anyway, and those are read and added up
when somebody scrapes, on the thread that answers. There are as many series as known pairings, which the lane
table bounds.
"""

from collections.abc import Callable, Iterator, Mapping

import prometheus_client.core
import prometheus_client.registry

from burstgate_policy.lanes import PairingAccount


class RegretCollector(prometheus_client.registry.Collector):
    """The metrics of every pairing's account; `accounts` is called from the scraping thread."""

    def __init__(self, accounts: Callable[[], Mapping[str, PairingAccount]]) -> None:
        self._accounts = accounts

    def describe(self) -> Iterator[prometheus_client.core.Metric]:
        """The metrics without a value."""
        return _metrics({})

    def collect(self) -> Iterator[prometheus_client.core.Metric]:
        """The metrics as they are now."""
        return _metrics(self._accounts())


def _metrics(accounts: Mapping[str, PairingAccount]) -> Iterator[prometheus_client.core.Metric]:
    ran = prometheus_client.core.CounterMetricFamily(
        "burstgate_policy_run_seconds", "Time of the steps that could be priced.", labels=("key_hash",)
    )
    lost = prometheus_client.core.GaugeMetricFamily(
        "burstgate_policy_lost_seconds", "Time lost against the best single mode.", labels=("key_hash",)
    )
    share = prometheus_client.core.GaugeMetricFamily(
        "burstgate_policy_lost_share", "Time lost over time that ran.", labels=("key_hash",)
    )
    recent_share = prometheus_client.core.GaugeMetricFamily(
        "burstgate_policy_recent_lost_share", "Share of the recent time that was lost.", labels=("key_hash",)
    )
    holding = prometheus_client.core.GaugeMetricFamily(
        "burstgate_policy_holding_lanes", "Lanes that explore nothing, as too much was lost.", labels=("key_hash",)
    )
    for key_hash, account in accounts.items():
        regret = account.regret
        ran.add_metric((key_hash,), regret.actual_ms / 1e3)
        lost.add_metric((key_hash,), regret.lost_ms / 1e3)
        share.add_metric((key_hash,), regret.share)
        recent_share.add_metric((key_hash,), regret.recent_share)
        holding.add_metric((key_hash,), account.holding_lanes)
    yield from (ran, lost, share, recent_share, holding)

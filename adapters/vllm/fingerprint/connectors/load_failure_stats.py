"""Reports failed loads through vLLM's interfaces for connectors: step statistics and a Prometheus counter.

The harness needs the number: if a failed load ends its request, there may be as many errors as failed loads.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from coldproof.adapters.server.vllm_metrics import FAILED_LOADS_COUNTER
from coldproof.adapters.vllm.kv_tiers import FAILED_LOADS


class LoadFailureStats(KVConnectorStats):
    """The number of failed loads in a step."""

    data: dict[str, Any]

    @classmethod
    def of(cls, count: int) -> LoadFailureStats:
        """Return statistics with this number of failed loads."""
        return cls(data={FAILED_LOADS: count})

    @property
    def count(self) -> int:
        """Return the number of failed loads."""
        return int(self.data.get(FAILED_LOADS, 0))

    def reset(self) -> None:
        """Set the number to zero."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> LoadFailureStats:
        """Return the sum of both."""
        return LoadFailureStats.of(self.count + int(other.data.get(FAILED_LOADS, 0)))

    def reduce(self) -> dict[str, int | float]:
        """Return the values for vLLM's log."""
        return {FAILED_LOADS: self.count}

    def is_empty(self) -> bool:
        """Return whether no load failed."""
        return not self.count


class LoadFailureMetric(KVConnectorPromMetrics):
    """The server's Prometheus counter of failed loads."""

    def __init__(
        self, vllm_config: Any, metric_types: Any, labelnames: list[str], labels: dict[int, list[Any]]
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, labels)
        family = metric_types[Counter](
            name=FAILED_LOADS_COUNTER, documentation="Loads from the second KV tier that failed.", labelnames=labelnames
        )
        self.counters = {engine: family.labels(*values) for engine, values in labels.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add the failed loads of one step."""
        self.counters[engine_idx].inc(int(transfer_stats_data.get(FAILED_LOADS, 0)))

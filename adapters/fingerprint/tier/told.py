"""How many loads failed, on vLLM's own ways for what a connector tells: statistics of a step, and a counter.

The harness has to know: where a failed load ends its request, an error is an answer only as often as a load failed.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from adapters.tiers import FAILED_LOADS, FAILED_LOADS_COUNTER


class FailedLoads(KVConnectorStats):
    """A number of failed loads."""

    data: dict[str, Any]

    @classmethod
    def of(cls, count: int) -> FailedLoads:
        """So many."""
        return cls(data={FAILED_LOADS: count})

    @property
    def count(self) -> int:
        """How many."""
        return int(self.data.get(FAILED_LOADS, 0))

    def reset(self) -> None:
        """Start over."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> FailedLoads:
        """Both together."""
        return FailedLoads.of(self.count + int(other.data.get(FAILED_LOADS, 0)))

    def reduce(self) -> dict[str, int | float]:
        """For the log."""
        return {FAILED_LOADS: self.count}

    def is_empty(self) -> bool:
        """Whether there were none."""
        return not self.count


class FailedLoadsMetric(KVConnectorPromMetrics):
    """The server's counter of them."""

    def __init__(
        self, vllm_config: Any, metric_types: Any, labelnames: list[str], labels: dict[int, list[Any]]
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, labels)
        family = metric_types[Counter](
            name=FAILED_LOADS_COUNTER, documentation="Loads from the second KV tier that failed.", labelnames=labelnames
        )
        self.counters = {engine: family.labels(*values) for engine, values in labels.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """One step's."""
        self.counters[engine_idx].inc(int(transfer_stats_data.get(FAILED_LOADS, 0)))

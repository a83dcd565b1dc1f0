"""Workloads of the feature lora, as its suites draw them."""

from __future__ import annotations

from coldproof.harness.features.lora.workloads import (
    AdapterLifecycle,
    adapter_churn,
    adapter_lifecycles,
    adapter_switches,
    coexisting_adapters,
    mixed_bursts,
)

USUAL = {
    "lives": lambda on: adapter_lifecycles(on, AdapterLifecycle()),
    "lives under traffic": lambda on: adapter_lifecycles(
        on, AdapterLifecycle(under_traffic=True, goes_back=True, most_names=1)
    ),
    "neighbours": coexisting_adapters,
    "switches": adapter_switches,
    "churn": adapter_churn,
    "ground": lambda on: mixed_bursts(on, unique_salts=False),
}

"""Workloads of the feature endpoints, as its suites draw them."""

from __future__ import annotations

from coldproof.harness.features.endpoints.workloads import at_every_endpoint, impossible_priorities

USUAL = {
    "endpoints": lambda on: at_every_endpoint(on, with_adapter=True),
    "impossible priorities": impossible_priorities,
}

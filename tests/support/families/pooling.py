"""Workloads of the feature pooling, as its suites draw them."""

from __future__ import annotations

from coldproof.harness.features.pooling.workloads import pooled_neighbours, pooled_traffic

USUAL = {
    "vectors": lambda on: pooled_neighbours(on, with_adapter=True),
    "vectors of each token": lambda on: pooled_neighbours(on, with_adapter=True, each_token=True),
    "traffic for vectors": lambda on: pooled_traffic(on, with_adapter=True),
    "traffic for vectors of each token": lambda on: pooled_traffic(on, with_adapter=True, each_token=True),
}

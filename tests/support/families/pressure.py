"""Workloads of the feature pressure, as its suites draw them."""

from __future__ import annotations

from coldproof.harness.features.pressure.shared_workloads import pressed
from coldproof.harness.features.pressure.workloads import (
    aborts_then_full_pool,
    identical_prompts,
    never_fitting,
    partly_evicted,
    prefix_sharers,
    queued_for_blocks,
    working_sets,
)

USUAL = {
    "working sets": working_sets,
    "sharers": prefix_sharers,
    "who waits for room": queued_for_blocks,
    "partly evicted": partly_evicted,
    "identical crowds": identical_prompts,
    "never fitting": never_fitting,
    "storms": aborts_then_full_pool,
}
RARE = {
    "pressure": pressed,
    "pressure with disconnects": lambda on: pressed(on, disconnects=True),
}

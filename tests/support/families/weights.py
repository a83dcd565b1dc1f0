"""Workloads of the feature weights, as its suites draw them."""

from __future__ import annotations

from coldproof.harness.features.weights.workloads import paused, quiet_updates, updates_in_flight, updates_with_adapters

USUAL = {
    "quiet updates": quiet_updates,
    "updates with adapters": updates_with_adapters,
    "pauses": lambda on: paused(on, updates=False),
    "updates during pauses": lambda on: paused(on, updates=True),
    "updates in flight": updates_in_flight,
}

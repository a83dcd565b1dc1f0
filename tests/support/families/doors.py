"""Workloads of the feature doors, as its suites draw them."""

from __future__ import annotations

from coldproof.harness.features.doors.workloads import at_two_doors, impossible_priorities

USUAL = {
    "doors": lambda on: at_two_doors(on, with_adapter=True),
    "impossible priorities": impossible_priorities,
}

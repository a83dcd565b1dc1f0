"""Workloads of the feature preemption, as its suites draw them."""

from __future__ import annotations

from coldproof.harness.features.preemption.workloads import outgrowing_requests

USUAL = {
    "crowds": lambda on: outgrowing_requests(on, afterwards=False),
    "crowds and after": lambda on: outgrowing_requests(on, afterwards=True),
}

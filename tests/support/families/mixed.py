"""Workloads of the feature mixed, as its suites draw them."""

from __future__ import annotations

from coldproof.harness.features.mixed.workloads import mixed

USUAL = {
    "mixed": mixed,
}

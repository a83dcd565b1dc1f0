"""Draws first what a trial has not shown yet: what a requirement names is in each run, not in those that are lucky."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import Workload

Workloads = st.SearchStrategy[Workload]


def led(limits: WorkloadLimits, usual: Workloads, own: Mapping[str, Workloads]) -> Workloads:
    """Return the usual workloads and, as long as a trial lacks evidence, those that show it.

    `own`: by the name of the evidence, the workloads that alone show it.
    """
    return lead(limits, tuple(own)).flatmap(lambda name: own.get(name, usual))


def lead(limits: WorkloadLimits, names: Sequence[str]) -> st.SearchStrategy[str]:
    """Return which of these names of evidence an example is drawn for; "" for none.

    Hypothesis needs draws that do not depend on what has run before, and which evidence is missing does. So an example
    draws a number, and the first one with this number decides for all others with it.
    """
    if limits.leads is None or not names:
        return st.just("")
    leads, among = limits.leads, tuple(names)
    return st.integers(0, 2**32 - 1).map(lambda number: leads.choose(among, number))

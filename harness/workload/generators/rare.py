"""Adds workloads of rare states to those that a requirement usually draws."""

from __future__ import annotations

from hypothesis import strategies as st

from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import Workload


def with_rare(
    limits: WorkloadLimits, usual: st.SearchStrategy[Workload], *rare: st.SearchStrategy[Workload], every: int = 2
) -> st.SearchStrategy[Workload]:
    """Return the usual workloads and, as one of `every`, one of the rare ones, if this run draws them.

    The usual ones come first: they are simpler, and show the evidence that the requirement needs. A slow model has time
    for them alone.
    """
    if not limits.rare or limits.slow or not rare:
        return usual
    kinds = st.sampled_from((*[False] * (every - 1), True))
    return kinds.flatmap(lambda is_rare: st.one_of(rare) if is_rare else usual)

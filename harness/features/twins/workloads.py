"""Workloads that run twice: with another implementation of one part of the engine, and with the one under test."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.preemption.workloads import outgrowing_requests
from coldproof.harness.features.pressure.workloads import working_sets
from coldproof.harness.features.resets.workloads import resets
from coldproof.harness.workload.generators.chats import conversations
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.generators.reuse import returns, traffic
from coldproof.harness.workload.halves import twice
from coldproof.harness.workload.steps import Request, Workload
from coldproof.harness.workload.transform import change_requests


@st.composite
def run_twice(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw prompts that return, conversations, traffic, resets, and requests that fill a small pool; each runs twice.

    No guidance and no leads: they vary workloads that run once. No priorities: only one of two queues has them.
    """
    kinds = [returns(limits), conversations(limits, chat=False), traffic(limits)]
    kinds += [resets(limits)] if Capability.CACHE_RESET in limits.can else []
    if limits.pool is not None:
        kinds += [working_sets(limits), *3 * [outgrowing_requests(limits, afterwards=True)]]  # few of these preempt
    return twice(change_requests(draw(draw(st.sampled_from(kinds))), of_equal_priority))


def of_equal_priority(request: Request) -> Request:
    """Return a request with the priority that all have by default."""
    return msgspec.structs.replace(request, priority=0)

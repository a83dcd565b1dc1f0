"""Workloads to minimise."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from coldproof.harness.features.lora.workloads import (
    AdapterLifecycle,
    adapter_churn,
    adapter_lifecycles,
    coexisting_adapters,
)
from coldproof.harness.workload.generators.prompts import ADAPTERS_TOGETHER, BASE_WITH_ADAPTER, WorkloadLimits
from coldproof.harness.workload.steps import Burst, SetAdapter, Step, Workload

ON = WorkloadLimits(
    block=16, slots=4, contents=("A", "B", "C"), mixtures=frozenset({ADAPTERS_TOGETHER, BASE_WITH_ADAPTER})
)
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)


def marked(workload: Workload) -> Workload:
    """Return the workload with a different salt for every request, so that equal requests can be distinguished."""
    numbers = iter(range(1000))
    steps: list[Step] = []
    for step in workload.steps:
        if isinstance(step, Burst):
            requests = tuple(msgspec.structs.replace(r, salt=str(next(numbers))) for r in step.requests)
            step = msgspec.structs.replace(step, requests=requests)
        steps.append(step)
    return Workload(tuple(steps))


some = settings(max_examples=40, deadline=None, database=None, suppress_health_check=SLOW)

WORKLOADS = st.one_of(
    adapter_lifecycles(ON, AdapterLifecycle()),
    adapter_lifecycles(ON, AdapterLifecycle(goes_back=True, under_traffic=True, most_names=1, base_traffic=False)),
    coexisting_adapters(ON),
    adapter_churn(ON),
).map(marked)


def runs(workload: Workload) -> bool:
    """Return whether every name is loaded when it is used and every turn follows an earlier step's answer."""
    there: set[str | None] = {None}
    steps = [step for _, step, _ in workload.requests()]
    for _, at, request in workload.requests():
        if request.prompt.continues is not None and steps[request.prompt.continues] >= at:
            return False
    for step in workload.steps:
        if isinstance(step, SetAdapter):
            there.add(step.name)
        elif isinstance(step, Burst):
            change = {step.meanwhile.change.name} if step.meanwhile else set()
            if not step.requests or not {r.adapter for r in step.requests} | change <= there:
                return False
    return True

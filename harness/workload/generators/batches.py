"""Bursts for GROUND-1: any mixture of base-model and adapter requests, which must not change a cold engine's
answers.
"""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.workload.generators.lora import NAMES
from coldproof.harness.workload.generators.prompts import WorkloadLimits, related_prompts, stems
from coldproof.harness.workload.steps import Burst, Request, Route, SetAdapter, Step, Workload


@st.composite
def mixed_bursts(draw: st.DrawFn, limits: WorkloadLimits, *, unique_salts: bool) -> Workload:
    """Draw one to three bursts.

    `unique_salts` gives each request its own salt, where caching cannot be switched off. All requests of a burst use
    the base model, or one adapter, where the engine does not run different ones concurrently.
    """
    # Use every slot: then a base-model row that reads the last one gives a wrong answer.
    slots = limits.slots if Capability.ADAPTER_CHOICE in limits.can else 0
    names = [*NAMES, *(f"more{i}" for i in range(limits.slots))][:slots]
    mixed = Capability.MIXED_ADAPTERS in limits.can
    steps: list[Step] = [
        SetAdapter(name=name, content=content, path=f"files-{content}", route=Route.LOAD)
        for name, content in zip(names, itertools.cycle(limits.contents), strict=False)
    ]
    stem = draw(stems(limits))
    count = 0
    for _ in range(draw(st.integers(1, 3))):
        requests = []
        models = (None, *names) if mixed else (draw(st.sampled_from((None, *names))),)
        for _ in range(draw(st.integers(2, 6))):
            count += 1
            requests.append(
                Request(
                    prompt=draw(related_prompts(limits, stem, None)),
                    adapter=draw(st.sampled_from(models)),
                    salt=f"alone-{count}" if unique_salts else None,
                    max_tokens=draw(st.sampled_from((24, 8, 48))),  # long enough to decode concurrently for a while
                )
            )
        steps.append(Burst(requests=tuple(requests)))
    return Workload(tuple(steps))

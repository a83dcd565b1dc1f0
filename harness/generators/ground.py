"""Bursts for the ground rule: any mixture of base and adapter requests, which a cold engine must not care about."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

from adapters.base import Capability
from harness.generators.adapters import NAMES
from harness.generators.prompts import Grounds, related_prompts, stems
from harness.workload import Burst, Request, Route, SetAdapter, Step, Workload


@st.composite
def mixed_bursts(draw: st.DrawFn, grounds: Grounds, *, unique_salts: bool) -> Workload:
    """One to three bursts. `unique_salts`: a salt of its own for each request, where caching cannot be switched off.
    All of a burst ask the base model, or one adapter, where the engine does not run them side by side anyway.
    """
    # Every slot in use: a base-model row that reads the last one then shows.
    slots = grounds.slots if Capability.ADAPTER_CHOICE in grounds.can else 0
    names = [*NAMES, *(f"more{i}" for i in range(grounds.slots))][:slots]
    mixed = Capability.MIXED_ADAPTERS in grounds.can
    steps: list[Step] = [
        SetAdapter(name=name, content=content, path=f"files-{content}", route=Route.LOAD)
        for name, content in zip(names, itertools.cycle(grounds.contents), strict=False)
    ]
    stem = draw(stems(grounds))
    count = 0
    for _ in range(draw(st.integers(1, 3))):
        requests = []
        models = (None, *names) if mixed else (draw(st.sampled_from((None, *names))),)
        for _ in range(draw(st.integers(2, 6))):
            count += 1
            requests.append(
                Request(
                    prompt=draw(related_prompts(grounds, stem, None)),
                    adapter=draw(st.sampled_from(models)),
                    salt=f"alone-{count}" if unique_salts else None,
                    max_tokens=draw(st.sampled_from((24, 8, 48))),  # long enough to decode side by side for a while
                )
            )
        steps.append(Burst(requests=tuple(requests)))
    return Workload(tuple(steps))

"""Workloads of equal prompts under salts that are unequal, nearly equal, or spelled like an adapter's name."""

from __future__ import annotations

from hypothesis import strategies as st

from harness.generators.prompts import BASE_WITH_ADAPTER, Grounds, Talk, related_prompts, stems
from harness.workload import Burst, Prompt, Request, Route, SetAdapter, Step, Workload

# None beside salts; case, a longer and a shorter one, blanks, separators, and the adapter's own name (vllm#44701).
SALTS = (None, "red", "Red", "red2", "re", " red", "red-tenant", "tenant", "files-A")


@st.composite
def salted(draw: st.DrawFn, grounds: Grounds, *, with_adapter: bool) -> Workload:
    """The same prompts under two to four salts, in bursts, each asked again."""
    steps: list[Step] = []
    models: list[str | None] = [None]
    if with_adapter and draw(st.booleans()):
        steps.append(SetAdapter(name="tenant", content=grounds.contents[0], path="files-A", route=Route.LOAD))
        models.append("tenant")
    stem, talk = draw(stems(grounds)), Talk()
    salts = draw(st.lists(st.sampled_from(SALTS), min_size=2, max_size=4, unique=True))
    for salt in salts:
        request = Request(prompt=Prompt((stem,)), adapter=draw(st.sampled_from(models)), salt=salt)
        steps.append(Burst(requests=(talk.add(request),)))
    again = Request(prompt=Prompt((stem,)), salt=draw(st.sampled_from(salts)))
    steps.append(Burst(requests=(talk.add(again),)))
    for _ in range(draw(st.integers(0, 3))):
        model = draw(st.sampled_from(models))
        beside = models if grounds.may_mix(BASE_WITH_ADAPTER) else [model]
        requests = [
            talk.add(
                Request(
                    prompt=draw(related_prompts(grounds, stem, None)),
                    adapter=draw(st.sampled_from(beside)),
                    salt=draw(st.sampled_from(salts)),
                )
            )
            for _ in range(draw(st.sampled_from((1, 2, 3))))
        ]
        steps.append(Burst(requests=tuple(requests)))
    return Workload(tuple(steps))

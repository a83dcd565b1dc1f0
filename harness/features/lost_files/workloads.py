"""Workloads in which files of a tier are lost between a prompt and the next one that needs them."""

from __future__ import annotations

from hypothesis import strategies as st

from coldproof.adapters.protocol.lost_files import Loss
from coldproof.harness.features.lost_files.steps import LoseFiles
from coldproof.harness.features.tiers.workloads import pushed_out
from coldproof.harness.workload.generators.guidance import guided
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import Burst, Idle, Prompt, Request, Segment, Step, Workload


@guided
@st.composite
def lost_between(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt that is then in files alone, perhaps read from there once, a loss of the files, and the prompt
    again: alone, beside the same or another one, or with more tokens. Then it is sent twice more.
    """
    blocks, tail = draw(st.sampled_from((4, 2, 8))), draw(st.sampled_from((5, 1, limits.unit)))
    stem, end = Segment("stem", blocks * limits.unit), Segment("tail", tail)
    ask, longer = (Request(prompt=Prompt(parts), max_tokens=4) for parts in ((stem,), (stem, end)))
    other = Request(prompt=Prompt((Segment("other", blocks * limits.unit),)), max_tokens=4)
    steps: list[Step] = [Burst(requests=(ask,)), Burst(requests=(other,))]
    for _ in range(draw(st.sampled_from((1, 2)))):
        steps += pushed_out(draw, limits)
        if draw(st.booleans()):
            steps += [Burst(requests=(ask,)), *pushed_out(draw, limits)]
        steps.append(LoseFiles(draw(st.sampled_from(tuple(Loss)))))
        together = draw(st.sampled_from(((ask,), (ask, ask), (ask, other), (longer, ask), (longer, other, ask))))
        steps += [Burst(requests=together), Burst(requests=(ask,)), Burst(requests=(longer,)), Idle(20)]
    return Workload(tuple(steps))

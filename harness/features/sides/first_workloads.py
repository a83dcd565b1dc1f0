"""Prefill and decode apart: changes that reach one side first, as when an operator updates the engines in turn."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from coldproof.adapters.protocol.sides import ENGINES
from coldproof.harness.features.lora.workloads import reload_routes
from coldproof.harness.workload.generators.prompts import WorkloadLimits, stems
from coldproof.harness.workload.steps import (
    START_WEIGHTS,
    Burst,
    Change,
    Meanwhile,
    Prompt,
    Request,
    Reset,
    Route,
    Segment,
    SetAdapter,
    Step,
    UpdateWeights,
    Workload,
)

GAP_MS, BETWEEN_MS = 3000, 1000  # between both sides, and from the burst's start to the requests between them
TENANT = "tenant"


@st.composite
def adapters_one_side_first(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw another content for an adapter, which reaches one side before the other, with requests between both."""
    route = draw(st.sampled_from(reload_routes(limits)))
    first, second = draw(st.permutations(limits.contents))[:2]
    stem = draw(stems(limits))
    load = SetAdapter(name=TENANT, content=first, path=f"files-{first}", route=Route.LOAD)
    change = SetAdapter(name=TENANT, content=second, path=f"files-{second}", route=route)
    prompts = prompts_of(limits, stem)
    steps: list[Step] = [load, *alone(prompts[:1], TENANT), draw(apart(limits, prompts, change, TENANT))]
    return Workload((*steps, *alone(prompts, TENANT), *alone(prompts[:1], None)))


@st.composite
def weights_one_side_first(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw new weights, which reach one side before the other, and a reset of both afterwards; some go back."""
    prompts = prompts_of(limits, draw(stems(limits)))
    steps: list[Step] = [*alone(prompts[:1], None)]
    back = draw(st.sampled_from(((), (START_WEIGHTS,))))
    for version in (draw(st.sampled_from(limits.versions)), *back):
        steps += [draw(apart(limits, prompts, UpdateWeights(version=version), None)), Reset(), *alone(prompts, None)]
    return Workload(tuple(steps))


@st.composite
def resets_one_side_first(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw resets of one side before the other."""
    prompts = prompts_of(limits, draw(stems(limits)))
    return Workload(
        (*alone(prompts[:1], None), draw(apart(limits, prompts, Reset(), None)), *alone((*prompts, prompts[0]), None))
    )


def prompts_of(limits: WorkloadLimits, stem: Segment) -> tuple[Prompt, Prompt]:
    """Return the stem, and a longer prompt whose end is sent only after the first half of a change."""
    return Prompt((stem,)), Prompt((stem, Segment("between", limits.unit + 3)))


def alone(prompts: Sequence[Prompt], adapter: str | None) -> list[Burst]:
    """Return these prompts one after the other."""
    return [Burst(requests=(Request(prompt=prompt, adapter=adapter),)) for prompt in prompts]


@st.composite
def apart(
    draw: st.DrawFn, limits: WorkloadLimits, prompts: Sequence[Prompt], change: Change, adapter: str | None
) -> Burst:
    """Draw a burst in which a change reaches one side before the other, and these prompts are sent between both."""
    before = Request(prompt=Prompt((Segment("before", limits.unit + 3),)), adapter=adapter)
    between = [Request(prompt=prompt, adapter=adapter, offset_ms=BETWEEN_MS) for prompt in prompts]
    first = draw(st.sampled_from(ENGINES))
    return Burst(
        requests=(before, *between),
        meanwhile=Meanwhile(change=change, after_tokens=0, gap_ms=GAP_MS, first=first),
    )

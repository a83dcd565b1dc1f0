"""Cache resets that cover more than the prefix cache: running requests, and a second tier."""

from __future__ import annotations

from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.features.resets.workloads import under_load, without_last_block
from coldproof.harness.features.tiers.workloads import pool_filler
from coldproof.harness.workload.generators.guidance import guided
from coldproof.harness.workload.generators.prompts import WorkloadLimits, stems
from coldproof.harness.workload.steps import Burst, Idle, Meanwhile, Prompt, Request, Reset, Segment, Step, Workload

RUNNING, TIER = (ResetScope.RUNNING,), (ResetScope.SECOND_TIER,)
BOTH = (ResetScope.RUNNING, ResetScope.SECOND_TIER)


def ask(*segments: Segment, tokens: int = 8) -> Burst:
    """Return a burst of one request."""
    return Burst(requests=(Request(prompt=Prompt(segments), max_tokens=tokens),))


@guided
@st.composite
def resets_of_running_requests(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw resets that cover the requests that decode at that time. All prompts are sent again, and one continues.

    `unused` is a prompt that no request uses at a reset: nothing of it can be hit afterwards.
    """
    stem = draw(stems(limits))
    unused = Segment("aside", stem.length)
    steps: list[Step] = [ask(stem), ask(unused)]
    for i in range(draw(st.sampled_from((1, 2)))):
        first = sum(len(step.requests) for step in steps)
        steps += [*under_load(draw, limits, stem, RUNNING), *without_last_block(draw, limits, stem)]
        turn = Request(prompt=Prompt((Segment(f"turn {i}", 5),), continues=first), max_tokens=8)
        steps += [ask(unused), ask(stem), Burst(requests=(turn,))]
        if draw(st.booleans()):
            steps += [Reset(RUNNING), ask(stem)]
    return Workload((*steps, Idle(20)))


@guided
@st.composite
def resets_of_the_second_tier(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt that is loaded from the second tier after the pool was emptied, and not after the tier was reset.

    Then perhaps more of both kinds, also under load.
    """
    stem = draw(stems(limits))
    unused = Segment("aside", stem.length)
    loaded: list[Step] = [ask(stem), Reset(), ask(stem)]
    steps: list[Step] = [*loaded, ask(unused), Reset(TIER), *without_last_block(draw, limits, stem), ask(stem)]
    kinds = ("again", "load", "idle", "flood")
    for _ in range(draw(st.integers(0, 3))):
        match draw(st.sampled_from(kinds)):
            case "again":
                steps += [*loaded, Reset(TIER), ask(stem), ask(unused)]
            case "load":
                scopes = (TIER, BOTH) if Capability.RESET_RUNNING in limits.can else (TIER,)
                under = under_load(draw, limits, stem, draw(st.sampled_from(scopes)))
                steps += [ask(unused), *under, ask(stem), ask(unused)]
            case "idle":
                steps += [Idle(20), Reset(TIER), ask(stem)]
            case "flood":
                steps += [pool_filler(limits, "flood"), ask(stem), Reset(TIER), ask(stem)]
    return Workload((*steps, Idle(20)))


@guided
@st.composite
def resets_during_stores(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw resets of the second tier, alone or with running requests, in the steps in which prompts are computed,
    stored, loaded and resumed. What was there before must not be found afterwards.
    """
    unit = limits.unit
    scopes = [TIER, BOTH] if Capability.RESET_RUNNING in limits.can else [TIER]
    steps: list[Step] = []
    for number in range(draw(st.sampled_from((1, 2, 3)))):
        stem = Segment(f"stem {number}", draw(st.sampled_from((3, 2, 4))) * unit + draw(st.sampled_from((1, 5))))
        busy = Request(prompt=Prompt((Segment(f"busy {number}", unit),)), max_tokens=unit + 8)
        late = draw(st.sampled_from((0, 0, 10, 30)))
        stored = Request(prompt=Prompt((stem,)), max_tokens=draw(st.sampled_from((2, 1, 8))), offset_ms=late)
        # Sent before, the prompt is loaded meanwhile.
        again: list[Step] = [ask(stem, tokens=4), Reset()] if draw(st.booleans()) else []
        more = [Reset(draw(st.sampled_from(scopes)))] if draw(st.booleans()) else []
        meanwhile = Meanwhile(
            change=Reset(draw(st.sampled_from(scopes))),
            after_tokens=draw(st.sampled_from((2, 1, 3, 4, 5))),
            then=tuple(more),
            gap_ms=draw(st.sampled_from((10, 20))),
        )
        steps += [*again, Burst(requests=(busy, stored), meanwhile=meanwhile), ask(stem, tokens=4)]
        steps += [Reset(), ask(stem, tokens=4)] if draw(st.booleans()) else []
    return Workload((*steps, Idle(20)))

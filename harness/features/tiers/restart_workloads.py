"""Restarts over the same storage: something was different about the engine before, or nothing was."""

from __future__ import annotations

from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.harness.workload.generators.prompts import WorkloadLimits, stems
from coldproof.harness.workload.steps import (
    Burst,
    Prompt,
    Request,
    Restart,
    RestoreState,
    SaveState,
    Segment,
    SetAdapter,
    Step,
    Workload,
)

NAME, ADAPTER, PATH = "kept", "tenant", "files-of-tenant"
ADAPTER_FILES = "adapter files"  # a difference that the workload makes itself


def ask(segment: Segment, adapter: str | None = None) -> Burst:
    """Return a burst of one request."""
    return Burst(requests=(Request(prompt=Prompt((segment,)), adapter=adapter),))


@st.composite
def restarts_after_changes(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw prompts, a restart after which something is different, and the prompts again.

    The difference is in the engine, or an adapter's path has other files.
    """
    files = Capability.RUNTIME_LORA in limits.can and len(limits.contents) > 1
    change = draw(st.sampled_from((*limits.changes, *((ADAPTER_FILES,) if files else ()))))
    if change == ADAPTER_FILES:
        first, second = draw(st.permutations(limits.contents))[:2]
        return restarted(draw, limits, EngineChange.NOTHING, contents=(first, second))
    return restarted(draw, limits, EngineChange(change))


@st.composite
def restarts_without_changes(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw prompts, a restart, and the prompts again."""
    return restarted(draw, limits, EngineChange.NOTHING)


@st.composite
def restarts_between_prompts(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw prompts, a restart, and the first of them again: fewer, as many or more requests than before it."""
    stem = draw(stems(limits))
    prompts = (stem, Segment("other", stem.length))
    before = draw(st.sampled_from(limits.sizes((1, 2))))
    after = [ask(stem) for _ in range(draw(st.sampled_from(limits.sizes((1, 2, 3)))))]
    return Workload((*(ask(prompt) for prompt in prompts[:before]), Restart(), *after))


def restarted(
    draw: st.DrawFn, limits: WorkloadLimits, before: EngineChange, *, contents: tuple[str, ...] = ()
) -> Workload:
    """Return the same prompts before and after a restart, twice after it. Where KV is saved by name, it is restored.

    `contents`: of an adapter whose path has the first one's files before and the second one's after the restart.
    """
    stem = draw(stems(limits))
    others = tuple(Segment(f"other {i}", stem.length) for i in range(draw(st.sampled_from(limits.sizes((0, 2))))))
    saves = Capability.SAVED_STATE in limits.can
    prompts = (stem,) if saves else (stem, *others)  # an engine that saves whole sequences may keep only the last one
    adapter = ADAPTER if contents else None
    loads: list[list[Step]] = [[SetAdapter(name=ADAPTER, content=content, path=PATH)] for content in contents]
    asked = [ask(prompt, adapter) for prompt in prompts]
    steps: list[Step] = [*(loads[0] if loads else ()), *asked, *((SaveState(NAME),) if saves else ())]
    steps += [Restart(before), *(loads[1] if loads else ()), *((RestoreState(NAME),) if saves else ())]
    return Workload((*steps, *asked, *asked))

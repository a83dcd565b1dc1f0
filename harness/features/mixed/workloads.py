"""Everything at once: parts from all generators in one workload, with adapters and salts.

This is the workload for long runs. Segments have the same names in all parts, so that a part hits, evicts and resets
what an earlier one cached. Between parts the engine is idle and must report that no request holds blocks.
"""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.features.lora.workloads import (
    AdapterLifecycle,
    adapter_lifecycles,
    adapter_switches,
    reload_routes,
)
from coldproof.harness.features.options.workloads import (
    PROMPT_LOGPROBS,
    STOP_STRINGS,
    STRUCTURED,
    with_response_options,
)
from coldproof.harness.features.preemption.workloads import outgrowing_requests
from coldproof.harness.features.pressure.shared_workloads import Scopes, pressed
from coldproof.harness.features.pressure.workloads import aborts_then_full_pool, identical_prompts, working_sets
from coldproof.harness.features.resets.workloads import aborts, resets
from coldproof.harness.features.salts.crossed_workloads import crossed
from coldproof.harness.workload.generators.chats import conversations, trees
from coldproof.harness.workload.generators.edges import chunks_at_edges, crowds
from coldproof.harness.workload.generators.guidance import guided
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.generators.reuse import returns
from coldproof.harness.workload.steps import (
    Burst,
    Idle,
    Request,
    Route,
    SetAdapter,
    Step,
    Unload,
    Workload,
    adapter_changes,
)

SALTS = (None, None, "red", "Red")
PART_ADAPTER = "dressed"


def part_strategies(limits: WorkloadLimits) -> list[st.SearchStrategy[Workload]]:
    """Return a strategy for each kind of part whose capabilities this engine has.

    Several sampled answers are left to SURFACE-1: vLLM 0.32.0 crashes on a seeded one whose prompt is computed in
    chunks, which would end a long run.
    """
    life = AdapterLifecycle(routes=reload_routes(limits), goes_back=True, base_traffic=False)
    needs: list[tuple[set[Capability], st.SearchStrategy[Workload]]] = [
        (set(), trees(limits, chat=False)),
        (set(), returns(limits)),
        (set(), working_sets(limits)),
        (set(), outgrowing_requests(limits, afterwards=True)),
        (set(), identical_prompts(limits)),
        (set(), aborts_then_full_pool(limits)),
        ({Capability.CHAT}, trees(limits, chat=True)),
        ({Capability.CHAT}, conversations(limits, chat=True)),
        ({Capability.ABORT}, aborts(limits)),
        ({Capability.CACHE_RESET}, resets(limits)),
        ({Capability.RUNTIME_LORA}, adapter_lifecycles(limits, life)),
        ({Capability.ADAPTER_SWITCH, Capability.ADAPTER_CHOICE}, adapter_switches(limits)),
        ({Capability.PROMPT_LOGPROBS}, with_response_options(limits, PROMPT_LOGPROBS)),
        ({Capability.STOP_STRINGS}, with_response_options(limits, STOP_STRINGS)),
        ({Capability.STRUCTURED_OUTPUT}, with_response_options(limits, STRUCTURED)),
    ]
    if limits.rare:
        needs += rare_parts(limits)
    # With one content there is nothing to replace it.
    alone = len(limits.contents) < 2
    can = limits.can - ({Capability.RUNTIME_LORA, Capability.ADAPTER_SWITCH} if alone else set())
    return [strategy for need, strategy in needs if need <= can]


def rare_parts(limits: WorkloadLimits) -> list[tuple[set[Capability], st.SearchStrategy[Workload]]]:
    """Return parts of rare states with the capabilities that they need."""
    scopes: Scopes = ((), (ResetScope.RUNNING,)) if Capability.SECOND_TIER not in limits.can else ((),)
    return [
        (set(), crowds(limits)),
        (set(), chunks_at_edges(limits, disconnects=True)),
        (set(), pressed(limits, disconnects=True)),
        ({Capability.RESET_RUNNING}, pressed(limits, disconnects=True, scopes=scopes)),
        ({Capability.CACHE_SALT}, crossed(limits, adapters=False)),
        ({Capability.RUNTIME_LORA}, crossed(limits, adapters=True)),
    ]


@guided
@st.composite
def mixed(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw two to five parts, fewer if they are long, each perhaps with an adapter and a salt; idle periods between.

    Hypothesis varies what it has drawn before, so a run may draw one of many kinds of parts in no example. Only one
    kind shows the preemptions that the requirements need as evidence. So half of the examples are given such a part.
    """
    steps: list[Step] = []
    count = draw(st.integers(2, limits.most(5, least=2)))
    outgrowing = draw(st.integers(0, 2 * count - 1))  # the number of that part, if there are so many
    for number in range(count):
        if Workload(tuple(steps)).size()[2] > limits.most_tokens:
            break
        preempts = number == outgrowing
        chapter = draw(outgrowing_requests(limits, afterwards=True) if preempts else st.one_of(part_strategies(limits)))
        before = sum(len(step.requests) for step in steps)
        steps += with_adapter_and_salt(draw, limits, chapter, before)
        steps.append(Idle(draw(st.sampled_from((20, 200)))))
    return Workload(tuple(steps))


def with_adapter_and_salt(draw: st.DrawFn, limits: WorkloadLimits, chapter: Workload, before: int) -> list[Step]:
    """Return the steps of a part after `before` requests, with one adapter and salt; its adapters are unloaded."""
    own = loaded_names(chapter)
    under = not adapter_changes(chapter) and Capability.ADAPTER_CHOICE in limits.can and draw(st.booleans())
    content = draw(st.sampled_from(limits.contents)) if under else ""
    salt = draw(st.sampled_from(SALTS)) if Capability.CACHE_SALT in limits.can else None
    steps: list[Step] = []
    if under:
        steps.append(SetAdapter(name=PART_ADAPTER, content=content, path=f"files-{content}", route=Route.LOAD))
    for step in chapter.steps:
        if isinstance(step, Burst):
            requests = tuple(
                place_request(request, before, PART_ADAPTER if under else None, salt) for request in step.requests
            )
            step = msgspec.structs.replace(step, requests=requests)
        steps.append(step)
    return [*steps, *(Unload(name) for name in ([PART_ADAPTER] if under else own))]


def loaded_names(chapter: Workload) -> list[str]:
    """Return the adapter names that a part leaves loaded."""
    names: dict[str, None] = {}
    for step in chapter.steps:
        if isinstance(step, SetAdapter):
            names[step.name] = None
        elif isinstance(step, Unload):
            names.pop(step.name)
    return list(names)


def place_request(request: Request, before: int, adapter: str | None, salt: str | None) -> Request:
    """Return a request of a part as a request of the whole workload."""
    prompt = request.prompt
    if prompt.continues is not None:
        prompt = msgspec.structs.replace(prompt, continues=prompt.continues + before)
    return msgspec.structs.replace(
        request, prompt=prompt, adapter=adapter or request.adapter, salt=salt if request.salt is None else request.salt
    )

"""Everything at once: chapters of every family one behind the other, under adapters and salts, sharing their prefixes.

The long-run workload. Segments have the same names in all chapters, so that a chapter hits, evicts and resets what an
earlier one left. Between chapters the engine falls silent and has to say that it holds nothing.
"""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from adapters.base import Capability
from harness.generators.adapters import Life, lives, reloads
from harness.generators.chats import conversations, trees
from harness.generators.control import aborts, resets
from harness.generators.preemption import crowds
from harness.generators.pressure import identical_crowds, storms, working_sets
from harness.generators.prompts import Grounds
from harness.generators.reuse import returns
from harness.generators.surfaces import PROMPT_LOGPROBS, STOP_STRINGS, STRUCTURED, surfaces
from harness.generators.switches import switches
from harness.workload import Burst, Idle, Prompt, Request, Route, SetAdapter, Step, Unload, Workload, changes

SALTS = (None, None, "red", "Red")
DRESSED_AS = "dressed"


def chapters(grounds: Grounds) -> list[st.SearchStrategy[Workload]]:
    """A strategy for each family that this engine has what it takes for.

    Several sampled answers stay with SURFACE-1: vLLM 0.32.0 dies of a seeded one whose prompt is computed in chunks,
    and a long run has to get past that.
    """
    life = Life(routes=reloads(grounds), goes_back=True, base_traffic=False)
    needs: list[tuple[set[Capability], st.SearchStrategy[Workload]]] = [
        (set(), trees(grounds, chat=False)),
        (set(), returns(grounds)),
        (set(), working_sets(grounds)),
        (set(), crowds(grounds, afterwards=True)),
        (set(), identical_crowds(grounds)),
        (set(), storms(grounds)),
        ({Capability.CHAT}, trees(grounds, chat=True)),
        ({Capability.CHAT}, conversations(grounds, chat=True)),
        ({Capability.ABORT}, aborts(grounds)),
        ({Capability.CACHE_RESET}, resets(grounds)),
        ({Capability.RUNTIME_LORA}, lives(grounds, life)),
        ({Capability.ADAPTER_SWITCH, Capability.ADAPTER_CHOICE}, switches(grounds)),
        ({Capability.PROMPT_LOGPROBS}, surfaces(grounds, PROMPT_LOGPROBS)),
        ({Capability.STOP_STRINGS}, surfaces(grounds, STOP_STRINGS)),
        ({Capability.STRUCTURED_OUTPUT}, surfaces(grounds, STRUCTURED)),
    ]
    # With one content there is nothing to put in its place.
    alone = len(grounds.contents) < 2
    can = grounds.can - ({Capability.RUNTIME_LORA, Capability.ADAPTER_SWITCH} if alone else set())
    return [strategy for need, strategy in needs if need <= can]


@st.composite
def mixed(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """Two to five chapters, fewer if they are long; each perhaps under an adapter and a salt, silence in between."""
    steps: list[Step] = []
    for _ in range(draw(st.integers(2, 5))):
        if Workload(tuple(steps)).size()[2] > grounds.most_tokens:
            break
        chapter = draw(st.one_of(chapters(grounds)))
        before = sum(len(step.requests) for step in steps if isinstance(step, Burst))
        steps += dressed(draw, grounds, chapter, before)
        steps.append(Idle(draw(st.sampled_from((20, 200)))))
    return Workload(tuple(steps))


def dressed(draw: st.DrawFn, grounds: Grounds, chapter: Workload, before: int) -> list[Step]:
    """A chapter renumbered to follow `before` requests, under one adapter and salt; it leaves no name loaded."""
    own = still_on(chapter)
    under = not changes(chapter) and Capability.ADAPTER_CHOICE in grounds.can and draw(st.booleans())
    content = draw(st.sampled_from(grounds.contents)) if under else ""
    salt = draw(st.sampled_from(SALTS)) if Capability.CACHE_SALT in grounds.can else None
    steps: list[Step] = []
    if under:
        steps.append(SetAdapter(name=DRESSED_AS, content=content, path=f"files-{content}", route=Route.LOAD))
    for step in chapter.steps:
        if isinstance(step, Burst):
            requests = tuple(dress(request, before, DRESSED_AS if under else None, salt) for request in step.requests)
            step = msgspec.structs.replace(step, requests=requests)
        steps.append(step)
    return [*steps, *(Unload(name) for name in ([DRESSED_AS] if under else own))]


def still_on(chapter: Workload) -> list[str]:
    """The adapter names that a chapter leaves behind."""
    names: dict[str, None] = {}
    for step in chapter.steps:
        if isinstance(step, SetAdapter):
            names[step.name] = None
        elif isinstance(step, Unload):
            names.pop(step.name)
    return list(names)


def dress(request: Request, before: int, adapter: str | None, salt: str | None) -> Request:
    """A request of a chapter as a request of the whole."""
    earlier = request.prompt.continues
    prompt = request.prompt if earlier is None else Prompt(request.prompt.segments, earlier + before)
    return msgspec.structs.replace(
        request, prompt=prompt, adapter=adapter or request.adapter, salt=salt if request.salt is None else request.salt
    )

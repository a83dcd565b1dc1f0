"""Long lives of one kind: many loads of adapters, resets and updates, with few or no requests between them.

What an engine counts, it may count in too few bits, or treat the n-th time otherwise. Prompts are short, so that many
changes cost no more than a usual workload. Contents take turns by three, so that no two that are a power of two apart
are equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.workload.generators.guidance import guided
from coldproof.harness.workload.generators.prompts import ADAPTERS_TOGETHER, BASE_WITH_ADAPTER, WorkloadLimits
from coldproof.harness.workload.steps import (
    Burst,
    Meanwhile,
    Prompt,
    Request,
    Reset,
    Route,
    Segment,
    SetAdapter,
    Step,
    Workload,
)

NAMES = (5, 9, 17, 18, 33)
LOADS = (3, 5, 9, 17, 18, 33, 66)  # one, two or more behind a power of two
RESETS = (2, 3, 4, 5, 8, 9, 17)
MOST_ASKED = 24  # requests of a workload: with more loads, only some of them are followed by one
TENANT, NEIGHBOUR = "tenant", "neighbour"


def ask(segment: Segment, *, adapter: str | None = None, tokens: int = 2) -> Burst:
    """Return a burst of one request."""
    return Burst(requests=(Request(prompt=Prompt((segment,)), adapter=adapter, max_tokens=tokens),))


@guided
@st.composite
def many_loads(draw: st.DrawFn, limits: WorkloadLimits, routes: Sequence[Route]) -> Workload:
    """Draw one name with one content after another, up to 66 times, and the same short prompt between some of them.

    Perhaps beside another name, which is loaded once and must still have its content at the end.
    """
    stem = Segment("stem", limits.unit + draw(st.sampled_from((1, 5, limits.unit))))
    contents = draw(st.permutations(limits.contents))
    count, every = draw(st.sampled_from(LOADS)), draw(st.sampled_from((1, 1, 2, 3)))
    neighbour = draw(st.booleans())
    steps: list[Step] = [load(NEIGHBOUR, contents[0], Route.LOAD), ask(stem, adapter=NEIGHBOUR)] if neighbour else []
    for number in range(count):
        route = draw(st.sampled_from(routes)) if number else Route.LOAD
        steps.append(load(TENANT, contents[number % len(contents)], route))
        if is_asked(number, count, every):
            steps.append(ask(stem, adapter=TENANT))
    return Workload((*steps, ask(stem, adapter=NEIGHBOUR)) if neighbour else tuple(steps))


def load(name: str, content: str, route: Route) -> SetAdapter:
    """Return a load from the content's own path."""
    return SetAdapter(name=name, content=content, path=f"files-{content}", route=route)


def is_asked(number: int, count: int, every: int) -> bool:
    """Return whether a request follows a load: the last one, and all, every second or third, or powers of two."""
    if number == count - 1:
        return True
    if count > MOST_ASKED:
        return number < 2 or number & (number - 1) == 0
    return number % every == 0


@guided
@st.composite
def loads_without_requests(draw: st.DrawFn, limits: WorkloadLimits, routes: Sequence[Route]) -> Workload:
    """Draw adapters that are replaced before anything has used them, once or several times, and then used.

    A request for another name, a reset or nothing may come between the loads.
    """
    stem = Segment("stem", 2 * limits.unit + draw(st.sampled_from((1, 5))))
    current = {TENANT: draw(st.sampled_from(limits.contents))}
    steps: list[Step] = [load(TENANT, current[TENANT], Route.LOAD)]
    if draw(st.booleans()):
        steps.append(ask(stem, adapter=TENANT))
    for _ in range(draw(st.sampled_from((2, 3)))):
        for _ in range(draw(st.sampled_from((2, 1, 3)))):
            current[TENANT] = draw(st.sampled_from([one for one in limits.contents if one != current[TENANT]]))
            steps.append(load(TENANT, current[TENANT], draw(st.sampled_from(routes))))
            between = draw(st.sampled_from(("", "", "reset", "base")))
            if between == "reset" and Capability.CACHE_RESET in limits.can:
                steps.append(Reset())
            elif between == "base":
                steps.append(ask(stem))
        steps.append(ask(stem, adapter=TENANT, tokens=draw(st.sampled_from((8, 1, 2)))))
    return Workload(tuple(steps))


@guided
@st.composite
def many_resets(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw several prompts, then reset after reset, each followed by the next of the prompts, perhaps with a refused
    reset or further ones between. So each number of resets lies between some prompt and its repeat.
    """
    count = draw(st.sampled_from(RESETS))
    length = limits.unit + draw(st.sampled_from((5, 1, limits.unit)))
    prompts = [Segment(f"stem {number}", length) for number in range(count)]
    steps: list[Step] = [ask(one) for one in prompts]
    busy = draw(st.integers(0, 2 * count))  # the reset, if there are so many, that comes while a request runs as well
    for number, one in enumerate(prompts):
        if number == busy:
            running = Request(prompt=Prompt((Segment("busy", limits.unit),)), max_tokens=6)
            steps.append(Burst(requests=(running,), meanwhile=Meanwhile(change=Reset(), after_tokens=2)))
        steps += [Reset()] * draw(st.sampled_from((1, 1, 1, 2, 4)))
        steps.append(ask(one))
    return Workload((*steps, *(ask(one) for one in prompts[-3:])))


@guided
@st.composite
def many_names(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw up to 33 adapter names, each loaded once and asked the same prompt, and then some of them again.

    Perhaps many of them are then asked at once, more than the engine has slots for.
    """
    stem = Segment("stem", limits.unit + draw(st.sampled_from((5, 1))))
    count = draw(st.sampled_from(NAMES))
    contents = draw(st.permutations(limits.contents))
    steps: list[Step] = []
    for number in range(count):
        steps.append(load(f"tenant{number}", contents[number % len(contents)], Route.LOAD))
        if is_asked(number, count, 1):
            steps.append(ask(stem, adapter=f"tenant{number}"))
    if limits.may_mix(ADAPTERS_TOGETHER) and draw(st.booleans()):
        chosen = draw(st.permutations(range(count)))[: limits.slots + draw(st.sampled_from((1, 0, 4)))]
        tokens = draw(st.sampled_from((4, limits.unit)))
        together = [Request(prompt=Prompt((stem,)), adapter=f"tenant{n}", max_tokens=tokens) for n in chosen]
        steps.append(Burst(requests=tuple(together)))
    again = draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=6))
    return Workload((*steps, *(ask(stem, adapter=f"tenant{number}") for number in again)))


@guided
@st.composite
def loads_beside_others(draw: st.DrawFn, limits: WorkloadLimits, routes: Sequence[Route]) -> Workload:
    """Draw an adapter that is replaced once or twice while requests of other models wait, are computed and decode, and
    the same prompt for it before and after. No request of its own name overlaps a change.
    """
    stem = Segment("stem", 2 * limits.unit + draw(st.sampled_from((1, 5))))
    others = (NEIGHBOUR, None) if limits.may_mix(BASE_WITH_ADAPTER) else (NEIGHBOUR,)
    current = draw(st.sampled_from(limits.contents))
    steps: list[Step] = [load(TENANT, current, Route.LOAD), load(NEIGHBOUR, limits.contents[0], Route.LOAD)]
    for number in range(draw(st.sampled_from((1, 2, 3)))):
        steps.append(ask(stem, adapter=TENANT))
        changes = []
        for _ in range(draw(st.sampled_from((1, 2)))):
            current = draw(st.sampled_from([one for one in limits.contents if one != current]))
            changes.append(load(TENANT, current, draw(st.sampled_from(routes))))
        requests = [
            Request(
                prompt=Prompt((stem,) if draw(st.booleans()) else (Segment(f"busy {number} {i}", 3 * limits.unit),)),
                adapter=draw(st.sampled_from(others)),
                max_tokens=draw(st.sampled_from((limits.unit // 2, 4))),
            )
            for i in range(draw(st.sampled_from((1, 2, 3))))
        ]
        moment = draw(st.sampled_from((0, 1, 3)))
        gap = draw(st.sampled_from((0, 10)))
        meanwhile = Meanwhile(change=changes[0], after_tokens=moment, then=tuple(changes[1:]), gap_ms=gap)
        steps += [Burst(requests=tuple(requests), meanwhile=meanwhile), ask(stem, adapter=TENANT, tokens=8)]
    return Workload(tuple(steps))

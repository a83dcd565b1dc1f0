"""The mixed workload draws every family that the engine is capable of, keeps no adapter name, and has gaps between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, seed, settings
from support.drawn_workloads import LIMITS, TIGHT, few_examples, found, requests_of, without
from support.histories import ask
from support.nightly import with_samples

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.mixed import workloads as mixing
from coldproof.harness.features.mixed.workloads import mixed, part_strategies, place_request
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import Burst, Idle, Request, Reset, Route, SetAdapter, Step, Unload, Workload

REPLACED = (Capability.RUNTIME_LORA, Capability.LORA_IN_PLACE, Capability.ADAPTER_SWITCH)
LORA = (Capability.ADAPTER_CHOICE, *REPLACED)


def any_request(has: Callable[[Request], object]) -> Callable[[Workload], bool]:
    """Return a function that says whether some request of a workload is like this."""
    return lambda workload: any(has(request) for request in requests_of(workload))


def resets_cache(workload: Workload) -> bool:
    """Return whether a workload resets the cache, alone or during a burst."""
    return any(
        isinstance(step, Reset)
        or (isinstance(step, Burst) and step.meanwhile is not None and isinstance(step.meanwhile.change, Reset))
        for step in workload.steps
    )


def loads_adapters(workload: Workload) -> bool:
    """Return whether a workload loads, requests, replaces or unloads an adapter."""
    return any(isinstance(step, SetAdapter | Unload) for step in workload.steps) or any(
        request.adapter for request in requests_of(workload)
    )


def replaces_adapters(workload: Workload) -> bool:
    """Return whether a workload puts another content behind a name."""
    return any(isinstance(step, SetAdapter) and step.route is not Route.LOAD for step in workload.steps)


FEATURES: dict[str, tuple[tuple[Capability, ...], Callable[[Workload], bool]]] = {
    "chats": ((Capability.CHAT,), any_request(lambda r: r.chat)),
    "aborts": ((Capability.ABORT,), any_request(lambda r: r.abort)),
    "priorities": ((Capability.PRIORITY,), any_request(lambda r: r.priority)),
    "salts": ((Capability.CACHE_SALT,), any_request(lambda r: r.salt)),
    "resets": ((Capability.CACHE_RESET,), resets_cache),
    "adapters": (LORA, loads_adapters),
    "replacements": (REPLACED, replaces_adapters),
    "prompt logprobs": ((Capability.PROMPT_LOGPROBS,), any_request(lambda r: r.options.prompt_logprobs)),
    "stop strings": ((Capability.STOP_STRINGS,), any_request(lambda r: r.options.stop)),
    "structured output": ((Capability.STRUCTURED_OUTPUT,), any_request(lambda r: r.options.pattern)),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_every_family_is_drawn_where_the_engine_can(feature: str) -> None:
    """Each is drawn within the search."""
    found(mixed(TIGHT), FEATURES[feature][1])


@pytest.mark.parametrize("feature", FEATURES)
def test_no_family_is_drawn_without_its_capability(feature: str) -> None:
    """Nothing that would need the capability is drawn either."""
    needs, has = FEATURES[feature]

    @few_examples
    @given(mixed(without(TIGHT, *needs)))
    def check(workload: Workload) -> None:
        assert not has(workload)

    check()


def test_an_engine_that_can_do_nothing_of_it_has_chapters_left() -> None:
    """Plain prompts need no capability."""
    bare = msgspec.structs.replace(TIGHT, can=frozenset())
    assert len(part_strategies(bare)) >= 5
    found(mixed(bare), lambda w: len(requests_of(w)) > 20)


@pytest.mark.parametrize("on", [TIGHT, LIMITS["roomy"], without(TIGHT, *LORA)])
def test_each_chapter_ends_with_unloads_and_a_gap(on: WorkloadLimits) -> None:
    """A chapter unloads what it loaded, so a long run does not fill the slots of the engine."""

    @few_examples
    @given(mixed(on))
    def check(workload: Workload) -> None:
        loaded: set[str] = set()
        silences = 0
        for step in workload.steps:
            match step:
                case SetAdapter(name=name):
                    loaded.add(name)
                case Unload(name=name):
                    loaded.remove(name)
                case Idle():
                    silences += 1
        assert not loaded
        assert silences >= 1
        assert isinstance(workload.steps[-1], Idle)

    check()


@few_examples
@given(mixed(TIGHT))
def test_turns_go_on_from_requests_of_their_own_chapter(workload: Workload) -> None:
    """The turns are renumbered, and keep the adapter and salt of what they continue."""
    requests = requests_of(workload)
    for request in requests:
        if request.prompt.continues is not None:
            earlier = requests[request.prompt.continues]
            assert (earlier.adapter, earlier.salt, earlier.chat) == (request.adapter, request.salt, request.chat)


def test_turns_are_drawn_in_a_later_chapter() -> None:
    """Otherwise the rule about turns could hold because none is drawn."""

    def wanted(workload: Workload) -> bool:
        first = next(i for i, step in enumerate(workload.steps) if isinstance(step, Idle))
        return any(r.prompt.continues is not None for _, step, r in workload.requests() if step > first + 20)

    found(mixed(TIGHT), wanted)


def test_a_request_of_a_chapter_keeps_its_cut_history() -> None:
    """Only the number of the request that it continues changes."""
    cut = ask(("turn", 5), continues=1, cut=(9, 12))
    assert place_request(cut, 7, None, None) == ask(("turn", 5), continues=8, cut=(9, 12))


def test_an_adapter_applies_to_a_whole_chapter() -> None:
    """A chapter that loads its own adapters is left alone."""

    @few_examples
    @given(mixed(TIGHT))
    def check(workload: Workload) -> None:
        dressed = False
        for step in workload.steps:
            if isinstance(step, SetAdapter | Unload) and step.name == "dressed":
                dressed = isinstance(step, SetAdapter)
            elif isinstance(step, Burst):
                assert ({r.adapter for r in step.requests} == {"dressed"}) is dressed
            else:
                assert not (dressed and isinstance(step, SetAdapter))

    check()
    found(mixed(TIGHT), any_request(lambda r: r.adapter == "dressed" and r.salt is not None))


def test_no_chapter_follows_once_the_limit_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first chapter has cost all that may be spent, it is the only one."""
    poor = msgspec.structs.replace(TIGHT, most_tokens=2)
    chapters: list[Workload] = []
    drawn = mixing.with_adapter_and_salt

    def counted(draw: Any, limits: WorkloadLimits, chapter: Workload, before: int) -> list[Step]:
        if not before:
            chapters.clear()
        chapters.append(chapter)
        return drawn(draw, limits, chapter, before)

    monkeypatch.setattr(mixing, "with_adapter_and_salt", counted)

    @few_examples
    @given(mixed(poor))
    def check(_: Workload) -> None:
        assert len(chapters) == 1

    check()
    found(mixed(TIGHT), lambda w: sum(isinstance(step, Idle) for step in w.steps) > 3)


def test_adapters_need_two_contents_to_be_replaced() -> None:
    """With one content there is none to replace it with."""
    poor = msgspec.structs.replace(TIGHT, contents=("A",))

    @few_examples
    @given(mixed(poor))
    def check(workload: Workload) -> None:
        assert not replaces_adapters(workload)

    check()
    found(mixed(poor), loads_adapters)


def test_mixed_workloads_have_no_several_answers() -> None:
    """vLLM 0.32.0 crashes on such a request if its prompt is computed in chunks, and a long run must not end there."""

    @few_examples
    @given(mixed(TIGHT))
    def check(workload: Workload) -> None:
        assert all(request.options.answers == 1 for request in requests_of(workload))

    check()


@pytest.mark.parametrize("number", with_samples(range(1, 11), 6))
def test_every_run_has_examples_that_preempt(number: int) -> None:
    """Hypothesis drew that part in one of a hundred examples with seed 6, and in none of a whole run."""
    outgrow: list[bool] = []

    @seed(number)
    @settings(max_examples=40, database=None, phases=(Phase.generate,), deadline=None)
    @given(mixed(TIGHT))
    def draw(workload: Workload) -> None:
        names = {segment.name.split()[0] for request in requests_of(workload) for segment in request.prompt.segments}
        outgrow.append("request" in names)

    draw()
    assert sum(outgrow) > len(outgrow) / 10

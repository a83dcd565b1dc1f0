"""Drawn workloads can be run: names are loaded, turns follow answers, mixtures are allowed, and sizes are bounded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from support.histories import ask

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.lora.workloads import (
    AdapterLifecycle,
    adapter_churn,
    adapter_lifecycles,
    coexisting_adapters,
    mixed_bursts,
)
from coldproof.harness.features.salts.workloads import salted
from coldproof.harness.workload.generators.prompts import (
    ADAPTERS_TOGETHER,
    BASE_WITH_ADAPTER,
    MOST_TOKENS,
    DrawnRequests,
    WorkloadLimits,
)
from coldproof.harness.workload.steps import Burst, Prompt, Request, Route, SetAdapter, Step, Workload
from coldproof.harness.workload.tokens import new_prompt_length

LONGEST = 2048  # --max-model-len of the embedded engine
LIFECYCLES = {
    "in place": AdapterLifecycle(),
    "unload": AdapterLifecycle(routes=(Route.UNLOAD_LOAD,)),
    "same path": AdapterLifecycle(routes=(Route.IN_PLACE, Route.UNLOAD_LOAD), same_path=True),
    "goes back": AdapterLifecycle(
        routes=(Route.IN_PLACE, Route.UNLOAD_LOAD), goes_back=True, under_traffic=True, most_names=1
    ),
    "under traffic": AdapterLifecycle(under_traffic=True, base_traffic=False),
}
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
some = settings(max_examples=30, deadline=None, database=None, suppress_health_check=SLOW)
any_at_all = settings(phases=[Phase.generate], max_examples=500, deadline=None, database=None)


def limits(block: int = 32, *mixtures: str) -> WorkloadLimits:
    """Return limits with three contents, four slots, and these mixtures."""
    return WorkloadLimits(block=block, slots=4, contents=("A", "B", "C"), mixtures=frozenset(mixtures))


ALL = limits(32, ADAPTERS_TOGETHER, BASE_WITH_ADAPTER)


def workloads(on: WorkloadLimits) -> st.SearchStrategy[Workload]:
    """Return every strategy that must respect the mixtures."""
    return st.one_of(
        *(adapter_lifecycles(on, life) for life in LIFECYCLES.values()),
        coexisting_adapters(on),
        adapter_churn(on),
        salted(on, with_adapter=True),
        salted(on, with_adapter=False),
    )


def anything(on: WorkloadLimits) -> st.SearchStrategy[Workload]:
    """Return every strategy."""
    return st.one_of(workloads(on), mixed_bursts(on, unique_salts=False), mixed_bursts(on, unique_salts=True))


def changes(step: Step) -> Iterator[SetAdapter]:
    """Yield the adapter change in a step, which may be the step itself or within a burst."""
    if isinstance(step, SetAdapter):
        yield step
    elif isinstance(step, Burst) and step.meanwhile is not None:
        yield step.meanwhile.change


def loads_of(workload: Workload, name: str) -> list[SetAdapter]:
    """Return what was loaded under a name, in order."""
    return [change for step in workload.steps for change in changes(step) if change.name == name]


def names_of(workload: Workload) -> set[str]:
    """Return every adapter name that a workload loads."""
    return {change.name for step in workload.steps for change in changes(step)}


def lengths(workload: Workload) -> list[int]:
    """Return the tokens of each request with its answer, including earlier turns."""
    total: list[int] = []
    for _, _, request in workload.requests():
        before = 0 if request.prompt.continues is None else total[request.prompt.continues]
        total.append(before + new_prompt_length(request.prompt) + request.max_tokens)
    return total


@some
@given(anything(ALL))
def test_a_name_is_loaded_before_it_is_requested(workload: Workload) -> None:
    """A name is loaded once by the plain route, changed only by the others, and loaded whenever a request names it."""
    loaded: set[str] = set()
    for step in workload.steps:
        for change in changes(step):
            assert (change.route is Route.LOAD) == (change.name not in loaded)
            if isinstance(step, SetAdapter):
                loaded.add(change.name)
        if isinstance(step, Burst):
            assert {r.adapter for r in step.requests} <= {None, *loaded}


@some
@given(anything(ALL))
def test_a_change_changes_something(workload: Workload) -> None:
    """No adapter is replaced by itself, because nothing could be stale then."""
    for name in names_of(workload):
        assert all(a.content != b.content for a, b in pairwise(loads_of(workload, name)))


@some
@given(anything(ALL))
def test_a_turn_follows_an_answer_of_an_earlier_step_to_the_same_model(workload: Workload) -> None:
    """No request of a burst can continue an answer of the same burst."""
    seen: list[tuple[int, Request]] = []
    for _, step, request in workload.requests():
        if request.prompt.continues is not None:
            earlier_step, earlier = seen[request.prompt.continues]
            assert earlier_step < step
            assert earlier.adapter == request.adapter
        seen.append((step, request))


def test_turns_are_drawn() -> None:
    """Otherwise the rule about turns could hold because no turn is drawn."""

    def has_turn(workload: Workload) -> bool:
        return any(request.prompt.continues is not None for _, _, request in workload.requests())

    assert has_turn(find(adapter_lifecycles(ALL, AdapterLifecycle()), has_turn, settings=any_at_all))


@pytest.mark.parametrize(
    ("mixtures", "most"),
    [((), 1), ((BASE_WITH_ADAPTER,), 2), ((ADAPTERS_TOGETHER,), 4), ((ADAPTERS_TOGETHER, BASE_WITH_ADAPTER), 5)],
)
def test_bursts_keep_to_the_mixtures_that_hold(mixtures: tuple[str, ...], most: int) -> None:
    """The base model with an adapter, or two adapters, share a burst only if the ground rule holds for that mixture."""

    @some
    @given(workloads(limits(32, *mixtures)))
    def check(workload: Workload) -> None:
        for step in workload.steps:
            models = {r.adapter for r in step.requests} if isinstance(step, Burst) else {None}
            assert len(models) <= most
            assert BASE_WITH_ADAPTER in mixtures or models == {None} or None not in models

    check()


@pytest.mark.parametrize("mixture", [BASE_WITH_ADAPTER, ADAPTERS_TOGETHER])
def test_mixtures_that_hold_are_drawn(mixture: str) -> None:
    """Otherwise the rule about mixtures could hold because nothing is mixed."""

    def mixed(workload: Workload) -> bool:
        together = [{r.adapter for r in s.requests} for s in workload.steps if isinstance(s, Burst)]
        return any(len(models) > 1 and (None in models) == (mixture == BASE_WITH_ADAPTER) for models in together)

    assert mixed(find(adapter_lifecycles(limits(32, mixture), AdapterLifecycle()), mixed, settings=any_at_all))


@pytest.mark.parametrize("block", [1, 2, 4, 5, 8, 16, 32, 64, 128, 256, 528])
def test_prompts_are_neither_empty_nor_too_long(block: int) -> None:
    """With its earlier turns and its answer a request fits into the model, if two blocks and a turn can. Every
    segment has a token.
    """

    @some
    @given(anything(limits(block, ADAPTERS_TOGETHER, BASE_WITH_ADAPTER)))
    def check(workload: Workload) -> None:
        for _, _, request in workload.requests():
            assert request.max_tokens > 0
            for segment in request.prompt.segments:
                assert segment.length > 0
                assert segment.changed is None or 0 <= segment.changed < segment.length
        assert block > 256 or max(lengths(workload)) < LONGEST

    check()


def test_a_long_conversation_is_not_continued() -> None:
    """The latest request of another model is not continued either: turns stay affordable, and within one name."""
    talk = DrawnRequests()
    talk.add(ask(("stem", 400)))
    talk.add(ask(("turn", MOST_TOKENS - 430), continues=0))
    talk.add(ask(("stem", 9), adapter="tenant"))
    assert (talk.latest(None), talk.latest("tenant"), talk.latest("nobody")) == (1, 2, None)
    talk.add(ask(("turn", 9), continues=1))
    assert talk.latest(None) == 1
    assert talk.lengths[-1] >= MOST_TOKENS


@some
@given(adapter_lifecycles(ALL, LIFECYCLES["same path"]))
def test_a_same_path_lifecycle_uses_its_path_again(workload: Workload) -> None:
    """This is for LORA-3: all versions of a name come from one path, and no other name has this path."""
    for name in names_of(workload):
        assert len({change.path for change in loads_of(workload, name)}) == 1
    assert len({change.path for step in workload.steps for change in changes(step)}) == len(names_of(workload))
    assert any(len(loads_of(workload, name)) > 1 for name in names_of(workload))


@some
@given(adapter_lifecycles(ALL, LIFECYCLES["unload"]))
def test_without_same_path_a_content_has_a_path_of_its_own(workload: Workload) -> None:
    """The other lifecycles must not depend on files that change."""
    for step in workload.steps:
        assert all(
            change.path in (f"files-{change.content}", f"run-{change.content}/final") for change in changes(step)
        )


def test_two_contents_come_from_folders_of_one_name() -> None:
    """Their parents differ: a key with only the name of the folder takes them for one."""

    def alike(workload: Workload) -> bool:
        return len({change.path.split("/")[1] for change in loads_of(workload, "tenant") if "/" in change.path}) == 1

    assert alike(find(adapter_lifecycles(ALL, LIFECYCLES["in place"]), alike, settings=any_at_all))


@some
@given(adapter_lifecycles(ALL, LIFECYCLES["goes back"]))
def test_a_lifecycle_can_return_to_an_earlier_content(workload: Workload) -> None:
    """The contents are A, B, A, and the name is requested directly after every change."""
    behind = [change.content for change in loads_of(workload, "tenant")]
    assert behind[2] == behind[0] != behind[1]
    for step, then in pairwise(workload.steps):
        assert not any(changes(step)) or (isinstance(then, Burst) and then.requests[0].adapter == "tenant")
    assert isinstance(workload.steps[-1], Burst)


@some
@given(adapter_lifecycles(ALL, LIFECYCLES["in place"]))
def test_the_changed_name_is_requested_before_and_after(workload: Workload) -> None:
    """Content that is cached before the change must not be hit after it."""
    for at, step in enumerate(workload.steps):
        if isinstance(step, SetAdapter) and step.route is not Route.LOAD:
            after = workload.steps[at + 1]
            assert isinstance(after, Burst)
            assert after.requests[0].adapter == step.name
            before = [r for s in workload.steps[:at] if isinstance(s, Burst) for r in s.requests]
            assert any(r.adapter == step.name and r.prompt == after.requests[0].prompt for r in before)


@some
@given(adapter_churn(ALL))
def test_churn_has_more_names_than_slots(workload: Workload) -> None:
    """All names are loaded at once, and each of them is requested."""
    adapters = {request.adapter for _, _, request in workload.requests()}
    assert len(names_of(workload)) > ALL.slots
    assert adapters == names_of(workload)


@some
@given(coexisting_adapters(ALL))
def test_coexisting_adapters_get_one_prompt_and_nothing_changes(workload: Workload) -> None:
    """Every name and the base model get the same prompt, and the only adapter steps are first loads."""
    prompts: dict[Prompt, set[str | None]] = {}
    for _, _, request in workload.requests():
        prompts.setdefault(request.prompt, set()).add(request.adapter)
    assert {None, *names_of(workload)} in prompts.values()
    assert all(len(loads_of(workload, name)) == 1 for name in names_of(workload))


@some
@given(salted(ALL, with_adapter=False))
def test_salts_differ_and_one_is_used_twice(workload: Workload) -> None:
    """Otherwise neither separation nor sharing could be seen."""
    salts = [request.salt for _, _, request in workload.requests()]
    assert len(set(salts)) > 1
    assert len(set(salts)) < len(salts)
    assert names_of(workload) == set()


@some
@given(st.booleans(), st.data())
def test_the_ground_rule_fills_every_slot_and_always_batches(unique: bool, data: st.DataObject) -> None:
    """Every request has its own salt if the cache cannot be switched off, and otherwise none has a salt."""
    workload = data.draw(mixed_bursts(limits(), unique_salts=unique))
    salts = [request.salt for _, _, request in workload.requests()]
    assert len(names_of(workload)) == limits().slots
    assert all(len(step.requests) > 1 for step in workload.steps if isinstance(step, Burst))
    assert (None not in salts and len(set(salts)) == len(salts)) if unique else set(salts) == {None}


@given(st.data())
def test_without_mixtures_a_burst_is_one_adapters(data: st.DataObject) -> None:
    """An engine that runs one adapter at a time gets one per burst, and one without adapters gets none."""
    one_by_one = msgspec.structs.replace(limits(), can=limits().can - {Capability.MIXED_ADAPTERS})
    workload = data.draw(mixed_bursts(one_by_one, unique_salts=False))
    adapters = [{request.adapter for request in step.requests} for step in workload.steps if isinstance(step, Burst)]
    assert {len(models) for models in adapters} == {1}
    none = msgspec.structs.replace(limits(), can=limits().can - {Capability.ADAPTER_CHOICE})
    assert names_of(data.draw(mixed_bursts(none, unique_salts=False))) == set()


@pytest.mark.parametrize("name", ["in place", "unload", "same path"])
def test_the_simplest_lifecycle_is_load_request_change_request(name: str) -> None:
    """Shrinking ends at what a person would have written."""
    life = LIFECYCLES[name]
    load, first, change, second = find(adapter_lifecycles(ALL, life), lambda _: True).steps
    assert isinstance(load, SetAdapter)
    assert isinstance(change, SetAdapter)
    assert (load.route, change.route) == (Route.LOAD, life.routes[0])
    assert first == second == Burst(requests=(msgspec.structs.replace(first.requests[0], adapter=load.name),))

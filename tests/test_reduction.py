"""Reduction leaves out and changes nothing: what is left can be run, says the same, and still fails where it failed."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.generators.adapters import Life, churn, lives, neighbours
from harness.generators.prompts import ADAPTERS_TOGETHER, BASE_WITH_ADAPTER, Grounds
from harness.reduction import is_valid, smaller
from harness.workload import Burst, Meanwhile, Request, Route, SetAdapter, Step, Unload, Workload
from tests.histories import ask, burst, put

ON = Grounds(block=16, slots=4, contents=("A", "B", "C"), mixtures=frozenset({ADAPTERS_TOGETHER, BASE_WITH_ADAPTER}))
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
some = settings(max_examples=40, deadline=None, database=None, suppress_health_check=SLOW)


def marked(workload: Workload) -> Workload:
    """The same with a salt of its own for every request, so that each can be told from its equals."""
    numbers = iter(range(1000))
    steps: list[Step] = []
    for step in workload.steps:
        if isinstance(step, Burst):
            requests = tuple(msgspec.structs.replace(r, salt=str(next(numbers))) for r in step.requests)
            step = msgspec.structs.replace(step, requests=requests)
        steps.append(step)
    return Workload(tuple(steps))


WORKLOADS = st.one_of(
    lives(ON, Life()),
    lives(ON, Life(goes_back=True, under_traffic=True, most_names=1, base_traffic=False)),
    neighbours(ON),
    churn(ON),
).map(marked)


def told(workload: Workload) -> dict[str | None, tuple[Request, ...]]:
    """Every request with the turns before it, numbers left out: what it says wherever it stands."""
    whole: list[tuple[Request, ...]] = []
    for _, _, request in workload.requests():
        before = () if request.prompt.continues is None else whole[request.prompt.continues]
        bare = msgspec.structs.replace(request.prompt, continues=None)
        whole.append((*before, msgspec.structs.replace(request, prompt=bare)))
    return {turns[-1].salt: turns for turns in whole}


def loads(workload: Workload) -> list[Step]:
    """The steps that load or change an adapter by themselves."""
    return [step for step in workload.steps if isinstance(step, SetAdapter)]


def runs(workload: Workload) -> bool:
    """Whether every name is there when it is needed and every turn follows an earlier step's answer."""
    there: set[str | None] = {None}
    steps = [step for _, step, _ in workload.requests()]
    for _, at, request in workload.requests():
        if request.prompt.continues is not None and steps[request.prompt.continues] >= at:
            return False
    for step in workload.steps:
        if isinstance(step, SetAdapter):
            there.add(step.name)
        elif isinstance(step, Burst):
            change = {step.meanwhile.change.name} if step.meanwhile else set()
            if not step.requests or not {r.adapter for r in step.requests} | change <= there:
                return False
    return True


def every(workload: Workload, failing: int | None) -> Iterator[Workload]:
    """All variants, loads kept or not."""
    for keep_loads in (False, True):
        yield from smaller(workload, failing, keep_loads=keep_loads)


@some
@given(WORKLOADS, st.data())
def test_a_variant_is_smaller_can_be_run_and_still_asks_what_failed(workload: Workload, data: st.DataObject) -> None:
    """And every request that is left says, turns before it included, what it said."""
    whole = told(workload)
    failing = data.draw(st.integers(0, len(whole) - 1))
    for variant in every(workload, failing):
        left = told(variant)
        assert runs(variant)
        assert is_valid(variant)
        assert variant.size() < workload.size()
        assert str(failing) in left
        assert left.items() <= whole.items()
        assert list(left) == [salt for salt in whole if salt in left]


@some
@given(WORKLOADS, st.data())
def test_the_first_cut_takes_all_that_follows_the_failing_request(workload: Workload, data: st.DataObject) -> None:
    """Its burst stays whole; where nothing follows there is no such cut."""
    number, step, _ = data.draw(st.sampled_from(list(workload.requests())))
    first = next(smaller(workload, number, keep_loads=False), None)
    if step + 1 < len(workload.steps):
        assert first == Workload(workload.steps[: step + 1])
    else:
        assert first is None or len(first.steps) >= len(workload.steps) - 1


@some
@given(WORKLOADS)
def test_loads_are_kept_where_their_number_matters(workload: Workload) -> None:
    """Also those that nobody asks."""
    for variant in smaller(workload, None, keep_loads=True):
        assert loads(variant) == loads(workload)


@pytest.mark.parametrize("keep_loads", [True, False])
def test_a_load_that_nobody_asks_goes_unless_it_is_kept(keep_loads: bool) -> None:
    """One cut for each of the two loads."""
    workload = Workload((put("A"), put("B", name="idle"), burst(ask(adapter="tenant"))))
    without_idle = Workload((workload.steps[0], workload.steps[2]))
    assert list(smaller(workload, 0, keep_loads=keep_loads)) == ([] if keep_loads else [without_idle])


def test_turns_follow_their_answers_to_the_new_numbers() -> None:
    """Requests 0 and 1 go, one by one; request 2 becomes 1, and its turn goes with it. A turn's answer stays."""
    turn = ask(("turn", 5), continues=2)
    workload = Workload((burst(ask(("a", 9)), ask(("b", 9))), burst(ask(("c", 9))), burst(turn)))
    made = list(smaller(workload, 3, keep_loads=False))
    renumbered = [r.prompt.continues for variant in made for _, _, r in variant.requests() if r.prompt.continues]
    assert len(made) == 3
    assert renumbered == [1, 1]
    assert made[0] == Workload((burst(ask(("c", 9))), burst(ask(("turn", 5), continues=0))))


IN_MIDST = Burst(requests=(ask(),), meanwhile=Meanwhile(change=put("B", route=Route.IN_PLACE), after_tokens=1))


@pytest.mark.parametrize(
    ("steps", "valid"),
    [
        ([put("A"), burst(ask(adapter="tenant"))], True),
        ([burst(ask(adapter="tenant"))], False),
        ([put("A"), Unload("tenant"), burst(ask())], True),
        ([put("A"), Unload("tenant")], False),
        ([Unload("tenant")], False),
        ([put("A"), Unload("tenant"), burst(ask(adapter="tenant"))], False),
        ([put("A"), IN_MIDST], True),
        ([IN_MIDST], False),
        ([Burst(requests=())], False),
        ([burst(ask()), burst(ask(continues=0))], True),
        ([burst(ask(), ask(continues=0))], False),
        ([burst(ask(offset_ms=-1))], False),
    ],
)
def test_what_can_be_run_is_told_from_what_cannot(steps: list[Step], valid: bool) -> None:
    """Names before use, turns after answers, something to ask."""
    assert is_valid(Workload(tuple(steps))) is valid

"""Reduction only removes steps and requests: what is left can be run, sends the same prompts, and still fails."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.failing_workloads import ON, WORKLOADS, runs, some
from support.histories import ask, burst, put

from coldproof.adapters.protocol.requests import PLAIN, Abort, ResponseOptions
from coldproof.harness.features.mixed.workloads import mixed
from coldproof.harness.proof.minimise.reduce import CROWD, joined, plainer, smaller
from coldproof.harness.workload.steps import (
    Burst,
    Idle,
    Meanwhile,
    Prompt,
    Request,
    Reset,
    Route,
    SetAdapter,
    Step,
    Unload,
    Workload,
)
from coldproof.harness.workload.validity import is_valid


def turns_by_salt(workload: Workload) -> dict[str | None, tuple[Request, ...]]:
    """Return every request by its salt, after its earlier turns and without request numbers."""
    whole: list[tuple[Request, ...]] = []
    for _, _, request in workload.requests():
        before = () if request.prompt.continues is None else whole[request.prompt.continues]
        bare = msgspec.structs.replace(request.prompt, continues=None)
        whole.append((*before, msgspec.structs.replace(request, prompt=bare)))
    return {turns[-1].salt: turns for turns in whole}


def loads(workload: Workload) -> list[Step]:
    """Return the steps that load or change an adapter outside of a burst."""
    return [step for step in workload.steps if isinstance(step, SetAdapter)]


def every(workload: Workload, failing: int | None) -> Iterator[Workload]:
    """Yield all variants, with loads or resets kept or not."""
    for keep in ((), (SetAdapter,), (Reset,)):
        yield from smaller(workload, failing, keep=keep)


@some
@given(WORKLOADS, st.data())
def test_a_variant_is_smaller_can_be_run_and_still_sends_what_failed(workload: Workload, data: st.DataObject) -> None:
    """Every request that is left has the same prompt, its earlier turns included."""
    whole = turns_by_salt(workload)
    failing = data.draw(st.integers(0, len(whole) - 1))
    for variant in every(workload, failing):
        left = turns_by_salt(variant)
        assert runs(variant)
        assert is_valid(variant)
        assert variant.size() < workload.size()
        assert str(failing) in left
        assert left.items() <= whole.items()
        assert list(left) == [salt for salt in whole if salt in left]


@some
@given(WORKLOADS, st.data())
def test_the_first_cut_takes_all_that_follows_the_failing_request(workload: Workload, data: st.DataObject) -> None:
    """The burst of the failing request stays whole. If nothing follows it there is no such cut."""
    number, step, _ = data.draw(st.sampled_from(list(workload.requests())))
    first = next(smaller(workload, number), None)
    if step + 1 < len(workload.steps):
        assert first == Workload(workload.steps[: step + 1])
    else:
        assert first is None or len(first.steps) >= len(workload.steps) - 1


@some
@given(WORKLOADS)
def test_loads_are_kept_where_their_number_matters(workload: Workload) -> None:
    """Loads of adapters that no request uses are kept, too."""
    for variant in smaller(workload, None, keep=(SetAdapter,)):
        assert loads(variant) == loads(workload)


@pytest.mark.parametrize("keep", [(SetAdapter,), ()])
def test_a_load_that_no_request_uses_is_removed_unless_it_is_kept(keep: tuple[type, ...]) -> None:
    """Only the load without a request can be removed."""
    workload = Workload((put("A"), put("B", name="idle"), burst(ask(adapter="tenant"))))
    without_idle = Workload((workload.steps[0], workload.steps[2]))
    assert list(smaller(workload, 0, keep=keep)) == ([] if keep else [without_idle])


@some
@given(WORKLOADS, st.data())
def test_two_requests_become_one_as_long_as_both(workload: Workload, data: st.DataObject) -> None:
    """The variant has one step less and as many tokens. The failing request and earlier turns stay unchanged."""
    numbers = [number for number, _, _ in workload.requests()]
    failing = data.draw(st.sampled_from(numbers))
    requests = {number: request for number, _, request in workload.requests()}
    for variant in joined(workload, failing):
        left = [request for _, _, request in variant.requests()]
        assert is_valid(variant)
        assert runs(variant)
        assert (len(variant.steps), len(left)) == (len(workload.steps) - 1, len(numbers) - 1)
        assert prompt_tokens(left) == prompt_tokens(list(requests.values()))
        assert requests[failing].prompt.segments in [request.prompt.segments for request in left]


def prompt_tokens(requests: list[Request]) -> int:
    """Return the number of tokens of all segments of these requests."""
    return sum(segment.length for request in requests for segment in request.prompt.segments)


def test_what_fills_a_pool_in_many_steps_does_so_in_few() -> None:
    """Nine requests with the failing one last become two. Requests of another adapter or salt are not joined."""
    filling = [burst(ask((f"document {i}", 64))) for i in range(8)]
    workload = Workload((*filling, burst(ask(("document 0", 64)))))
    while found := next(joined(workload, len(workload.steps) - 1), None):
        workload = found
    assert [s.length for _, _, r in workload.requests() for s in r.prompt.segments] == [512, 64]
    others = (burst(ask()), burst(ask(salt="red")), burst(ask(), ask()), burst(ask(chat=True)), burst(ask()))
    assert list(joined(Workload(others), 5)) == []


@pytest.mark.parametrize("keep", [(Reset,), ()])
def test_a_reset_stays_where_the_requirement_is_about_resets(keep: tuple[type, ...]) -> None:
    """Without the reset the same requests may fail for another reason, which the case would then report."""
    workload = Workload((burst(ask()), Reset(), burst(ask())))
    left = [any(isinstance(step, Reset) for step in variant.steps) for variant in smaller(workload, 1, keep=keep)]
    assert left
    assert all(left) is bool(keep)


def test_turns_follow_their_answers_to_the_new_numbers() -> None:
    """Requests 0 and 1 are removed one by one. Request 2 becomes request 1, and its turn continues request 1."""
    turn = ask(("turn", 5), continues=2)
    workload = Workload((burst(ask(("a", 9)), ask(("b", 9))), burst(ask(("c", 9))), burst(turn)))
    made = list(smaller(workload, 3))
    renumbered = [r.prompt.continues for variant in made for _, _, r in variant.requests() if r.prompt.continues]
    assert len(made) == 3
    assert renumbered == [1, 1]
    assert made[0] == Workload((burst(ask(("c", 9))), burst(ask(("turn", 5), continues=0))))


def test_a_cut_history_stays_cut_under_its_new_number() -> None:
    """The first step is removed, and the turn still leaves out the same tokens."""
    turn = ask(("turn", 5), continues=1, cut=(9, 12))
    made = list(smaller(Workload((burst(ask()), burst(ask()), burst(turn))), 2))
    assert Workload((burst(ask()), burst(ask(("turn", 5), continues=0, cut=(9, 12))))) in made


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
        ([put("A"), put("B"), burst(ask(adapter="tenant"))], False),  # vLLM answers HTTP 400
        ([put("A"), put("B", route=Route.IN_PLACE), burst(ask(adapter="tenant"))], True),
        ([put("B", route=Route.IN_PLACE), burst(ask(adapter="tenant"))], False),
        ([put("A"), Unload("tenant"), put("B"), burst(ask(adapter="tenant"))], True),
        ([put("A"), IN_MIDST], True),
        ([IN_MIDST], False),
        ([Burst(requests=())], False),
        ([burst(ask()), burst(ask(continues=0))], True),
        ([burst(ask(), ask(continues=0))], False),
        ([burst(ask(offset_ms=-1))], False),
        ([burst(ask(options=ResponseOptions(answers=0)))], False),
        ([burst(ask(chat=True)), burst(ask(continues=0, chat=True))], True),
        ([burst(ask(chat=True)), burst(ask(continues=0))], False),
        ([burst(ask()), burst(ask(continues=0, chat=True))], False),
        ([burst(ask()), burst(ask(continues=0, cut=(20, None)))], True),
        ([burst(ask()), burst(ask(continues=0, cut=(20, 21)))], True),
        ([burst(ask()), burst(ask(continues=0, cut=(20, 20)))], False),
        ([burst(ask()), burst(ask(continues=0, cut=(-1, None)))], False),
        ([burst(ask(cut=(20, None)))], False),
        ([burst(ask(chat=True)), burst(ask(continues=0, chat=True, cut=(20, None)))], False),
        ([burst(Request(prompt=Prompt(())))], True),
        ([burst(Request(prompt=Prompt(()), chat=True))], False),
        ([burst(ask(chat=True)), burst(Request(prompt=Prompt((), continues=0), chat=True))], False),
        ([Reset(), Idle(0), burst(ask())], True),
        ([Reset(), Idle(0)], False),
        ([Idle(-1), burst(ask())], False),
        ([Burst(requests=(ask(),), meanwhile=Meanwhile(change=Reset(), after_tokens=1))], True),
    ],
)
def test_valid_workloads_are_distinguished_from_invalid_ones(steps: list[Step], valid: bool) -> None:
    """Adapters are loaded before use, turns follow answers, and there is something to send."""
    assert is_valid(Workload(tuple(steps))) is valid


STEPS = [
    put("A"),
    burst(ask(("warm", 9), chat=True)),
    Burst(
        requests=(ask(("first", 9)), ask(("second", 9), priority=3, offset_ms=40, abort=Abort(after_tokens=2))),
        meanwhile=Meanwhile(change=Reset(), after_tokens=1),
    ),
    Idle(20),
    burst(ask(("last", 9), options=ResponseOptions(answers=2, stop=("a",)))),
]


def test_a_request_is_made_plainer_one_thing_at_a_time() -> None:
    """Abort, priority, response options and delay are removed one by one. All else stays as it is."""
    workload = Workload(tuple(STEPS))
    made = list(plainer(workload, 2))
    requests = [[request for _, _, request in variant.requests()] for variant in made]
    whole = [request for _, _, request in workload.requests()]
    plain = [{"abort": None}, {"priority": 0}, {"offset_ms": 0}]
    assert [r[2] for r in requests] == [msgspec.structs.replace(whole[2], **change) for change in plain]
    assert all([*r[:2], *r[3:]] == [*whole[:2], *whole[3:]] for r in requests)
    assert all(len(v.steps) == len(STEPS) and v.steps[3] == Idle(20) for v in made)
    bursts = [variant.steps[2] for variant in made]
    assert all(isinstance(b, Burst) and b.meanwhile == Meanwhile(change=Reset(), after_tokens=1) for b in bursts)
    (last,) = plainer(workload, 3)
    assert [request.options for _, _, request in last.requests()] == [PLAIN] * 4


def test_a_plain_request_has_no_plainer_form() -> None:
    """A chat stays a chat, because its form is part of its prompt."""
    workload = Workload(tuple(STEPS))
    assert [list(plainer(workload, number)) for number in (0, 1)] == [[], []]


def test_what_is_cut_is_tried_before_what_is_made_plainer() -> None:
    """Large cuts come first. Every plainer variant is tried once the cuts have failed."""
    workload = Workload(tuple(STEPS))
    made = list(smaller(workload, 2))
    sizes = [variant.size() < workload.size() for variant in made]
    assert sizes == sorted(sizes, reverse=True)
    assert {variant for variant in made if variant.size() == workload.size()} == {
        variant for number in range(4) for variant in plainer(workload, number)
    }


@pytest.mark.parametrize("count", [CROWD, CROWD + 1, CROWD + 2, 24])
def test_of_a_crowd_one_half_goes_at_a_time(count: int) -> None:
    """Halves are removed before single requests. The failing request stays with either half."""
    crowd = Workload((burst(*(ask((f"s{i}", 9)) for i in range(count))),))
    cuts = [[r.prompt.segments[0].name for _, _, r in variant.requests()] for variant in smaller(crowd, 1)]
    others = [f"s{i}" for i in range(count) if i != 1]
    single = [[f"s{i}" for i in range(count) if i != gone] for gone in range(count) if gone != 1]
    if count <= CROWD:
        assert cuts == single
        return
    assert cuts[2:] == single
    kept = [[name for name in names if name != "s1"] for names in cuts[:2]]
    assert sorted(kept[0] + kept[1]) == sorted(others)
    assert all("s1" in names for names in cuts[:2])
    assert abs(len(kept[0]) - len(kept[1])) <= 1


def test_a_half_that_later_turns_continue_is_not_removed() -> None:
    """A turn needs the request that it continues."""
    crowd = burst(*(ask((f"s{i}", 9)) for i in range(CROWD + 1)))
    workload = Workload((crowd, burst(ask(("turn", 5), continues=1))))
    variants = list(smaller(workload, CROWD + 1))
    assert all(is_valid(variant) for variant in variants)
    assert all(any(r.prompt.continues is not None for _, _, r in v.requests()) for v in variants)


@some
@given(mixed(ON), st.data())
def test_variants_of_everything_at_once_can_be_run_and_get_no_larger(workload: Workload, data: st.DataObject) -> None:
    """Each variant differs from the whole workload."""
    failing = data.draw(st.sampled_from([number for number, _, _ in workload.requests()]))
    for variant in smaller(workload, failing, keep=data.draw(st.sampled_from(((), (SetAdapter,), (Reset,))))):
        assert is_valid(variant)
        assert variant != workload
        assert variant.size() <= workload.size()

"""A simpler variant sends the same requests in smaller portions, and keeps shared beginnings shared."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from support.failing_workloads import WORKLOADS, runs, some
from support.histories import ask, burst

from coldproof.adapters.protocol.requests import Abort
from coldproof.harness.proof.minimise.simplify import (
    READABLE,
    less_at_once,
    shorter_answers,
    shorter_prompts,
    simpler,
)
from coldproof.harness.workload.steps import Burst, Meanwhile, Request, Reset, Workload
from coldproof.harness.workload.validity import is_valid


def requests_of(workload: Workload) -> list[Request]:
    """Return the requests of a workload in order."""
    return [request for _, _, request in workload.requests()]


def lengths(workload: Workload) -> list[list[tuple[str, int]]]:
    """Return the name and length of each segment of each request."""
    return [[(s.name, s.length) for s in request.prompt.segments] for request in requests_of(workload)]


def shared(workload: Workload) -> set[tuple[int, int]]:
    """Return the pairs of requests that begin with the same segment."""
    begins = [request.prompt.segments[0] for request in requests_of(workload) if request.prompt.segments]
    return {(i, j) for i, one in enumerate(begins) for j, other in enumerate(begins) if i < j and one == other}


@some
@given(WORKLOADS)
def test_a_simpler_variant_can_be_run_and_sends_the_same_requests_in_order(workload: Workload) -> None:
    """Each request keeps its adapter and salt, and no two requests lose the beginning that they share."""
    before = [
        (r.adapter, r.salt, r.prompt.continues, [s.name for s in r.prompt.segments]) for r in requests_of(workload)
    ]
    for variant in simpler(workload):
        assert variant != workload
        assert is_valid(variant)
        assert runs(variant)
        after = [
            (r.adapter, r.salt, r.prompt.continues, [s.name for s in r.prompt.segments]) for r in requests_of(variant)
        ]
        assert after == before
        assert shared(workload) <= shared(variant)


@some
@given(WORKLOADS)
def test_nothing_gets_longer_and_something_gets_less(workload: Workload) -> None:
    """Prompts, answers or concurrency shrink. This excludes a variant that would be tried again for ever."""

    def crowd(one: Workload) -> int:
        return sum(len(step.requests) - 1 for step in one.steps if isinstance(step, Burst))

    for variant in simpler(workload):
        assert (crowd(variant), *variant.size()[1:]) < (crowd(workload), *workload.size()[1:])


def test_a_crowd_is_taken_apart_as_a_whole_and_burst_by_burst() -> None:
    """A change during a burst comes after the burst's first request."""
    one, two = ask(("a", 40)), ask(("b", 40), offset_ms=5)
    plain = msgspec.structs.replace(two, offset_ms=0)
    crowd = Burst(requests=(one, two), meanwhile=Meanwhile(change=Reset(), after_tokens=1))
    whole, first, second = less_at_once(Workload((crowd, burst(one, two))))
    assert whole.steps == (burst(one), Reset(), burst(plain), burst(one), burst(plain))
    assert first.steps == (burst(one), Reset(), burst(plain), burst(one, two))
    assert second.steps == (crowd, burst(one), burst(plain))


@pytest.mark.parametrize(("many", "variants"), [(READABLE, 1), (READABLE + 1, 0)])
def test_a_burst_that_would_become_many_steps_stays_together(many: int, variants: int) -> None:
    """A workload with more steps than a reader can follow is not simpler."""
    crowd = Burst(requests=tuple(ask((f"s{i}", 40)) for i in range(many)))
    assert len(list(less_at_once(Workload((crowd,))))) == variants


def test_a_segment_is_shortened_wherever_its_name_stands() -> None:
    """The first cut is by half. A segment that is already shorter than the cut stays."""
    workload = Workload((burst(ask(("p", 100), ("q", 30))), burst(ask(("p", 100))), burst(ask(("p", 40)))))
    assert lengths(next(shorter_prompts(workload))) == [[("p", 50), ("q", 30)], [("p", 50)], [("p", 40)]]


def test_an_answer_whose_client_disconnects_keeps_its_length() -> None:
    """The client waits for that many tokens before it disconnects."""
    cut_off = ask(("p", 40), max_tokens=64, abort=Abort(after_tokens=20))
    workload = Workload((burst(cut_off), burst(ask(("q", 40), max_tokens=16))))
    variants = list(shorter_answers(workload))
    assert all(requests_of(variant)[0].max_tokens == 64 for variant in variants)
    assert [requests_of(variant)[1].max_tokens for variant in variants] == [16, 16, 16, 16]
    assert all(variant != workload for variant in simpler(workload))


def test_no_answer_becomes_too_short_to_show_a_fault() -> None:
    """An answer of two tokens may be right by chance."""
    longest = [[r.max_tokens for r in requests_of(v)] for v in shorter_answers(Workload((burst(ask(max_tokens=12)),)))]
    assert longest == [[9], [11]]
    assert list(shorter_answers(Workload((burst(ask(max_tokens=8)),)))) == []


def test_what_is_as_small_as_can_be_has_no_simpler_variant() -> None:
    """A request for one token with a prompt of one token cannot get smaller."""
    smallest = ask(("p", 1), max_tokens=1)
    assert list(simpler(Workload((burst(smallest),)))) == []

"""What is simpler to read asks the same of an engine, in smaller portions: shared beginnings stay shared."""

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


def asked(workload: Workload) -> list[Request]:
    """The requests of a workload in order."""
    return [request for _, _, request in workload.requests()]


def lengths(workload: Workload) -> list[list[tuple[str, int]]]:
    """Each request's segments."""
    return [[(s.name, s.length) for s in request.prompt.segments] for request in asked(workload)]


def shared(workload: Workload) -> set[tuple[int, int]]:
    """The pairs of requests that begin with the very same segment."""
    begins = [request.prompt.segments[0] for request in asked(workload) if request.prompt.segments]
    return {(i, j) for i, one in enumerate(begins) for j, other in enumerate(begins) if i < j and one == other}


@some
@given(WORKLOADS)
def test_a_simpler_variant_can_be_run_and_asks_everybody_in_the_same_order(workload: Workload) -> None:
    """Each request is still there, to the same adapter under the same salt, and no two lose the start they share."""
    before = [(r.adapter, r.salt, r.prompt.continues, [s.name for s in r.prompt.segments]) for r in asked(workload)]
    for variant in simpler(workload):
        assert variant != workload
        assert is_valid(variant)
        assert runs(variant)
        after = [(r.adapter, r.salt, r.prompt.continues, [s.name for s in r.prompt.segments]) for r in asked(variant)]
        assert after == before
        assert shared(workload) <= shared(variant)


@some
@given(WORKLOADS)
def test_nothing_gets_longer_and_something_gets_less(workload: Workload) -> None:
    """Tokens of prompts and answers, or requests side by side; there is always a next one to try until all is small."""

    def crowd(one: Workload) -> int:
        return sum(len(step.requests) - 1 for step in one.steps if isinstance(step, Burst))

    for variant in simpler(workload):
        assert (crowd(variant), *variant.size()[1:]) < (crowd(workload), *workload.size()[1:])


def test_a_crowd_is_taken_apart_as_a_whole_and_burst_by_burst() -> None:
    """And a change in the midst of one comes behind its first request."""
    one, two = ask(("a", 40)), ask(("b", 40), offset_ms=5)
    plain = msgspec.structs.replace(two, offset_ms=0)
    crowd = Burst(requests=(one, two), meanwhile=Meanwhile(change=Reset(), after_tokens=1))
    whole, first, second = less_at_once(Workload((crowd, burst(one, two))))
    assert whole.steps == (burst(one), Reset(), burst(plain), burst(one), burst(plain))
    assert first.steps == (burst(one), Reset(), burst(plain), burst(one, two))
    assert second.steps == (crowd, burst(one), burst(plain))


@pytest.mark.parametrize(("many", "variants"), [(READABLE, 1), (READABLE + 1, 0)])
def test_a_crowd_that_would_make_a_long_story_stays_together(many: int, variants: int) -> None:
    """More steps than a reader can follow are no simpler."""
    crowd = Burst(requests=tuple(ask((f"s{i}", 40)) for i in range(many)))
    assert len(list(less_at_once(Workload((crowd,))))) == variants


def test_a_segment_is_shortened_wherever_its_name_stands() -> None:
    """By half at first; one that is too short for that cut stays."""
    workload = Workload((burst(ask(("p", 100), ("q", 30))), burst(ask(("p", 100))), burst(ask(("p", 40)))))
    assert lengths(next(shorter_prompts(workload))) == [[("p", 50), ("q", 30)], [("p", 50)], [("p", 40)]]


def test_an_answer_that_is_hung_up_on_keeps_its_length() -> None:
    """Its client waits for so many tokens of it."""
    cut_off = ask(("p", 40), max_tokens=64, abort=Abort(after_tokens=20))
    workload = Workload((burst(cut_off), burst(ask(("q", 40), max_tokens=16))))
    variants = list(shorter_answers(workload))
    assert all(asked(variant)[0].max_tokens == 64 for variant in variants)
    assert [asked(variant)[1].max_tokens for variant in variants] == [16, 16, 16, 16]
    assert all(variant != workload for variant in simpler(workload))


def test_no_answer_gets_so_short_that_it_tells_little() -> None:
    """Two tokens may be alike by chance."""
    longest = [[r.max_tokens for r in asked(v)] for v in shorter_answers(Workload((burst(ask(max_tokens=12)),)))]
    assert longest == [[9], [11]]
    assert list(shorter_answers(Workload((burst(ask(max_tokens=8)),)))) == []


def test_what_is_as_small_as_can_be_has_no_simpler_variant() -> None:
    """A request for one token with a prompt of one token."""
    smallest = ask(("p", 1), max_tokens=1)
    assert list(simpler(Workload((burst(smallest),)))) == []

"""Evidence is zero wherever the thing that it stands for did not happen."""

from __future__ import annotations

from typing import Any

import pytest
from support.evidence import evidence
from support.histories import ask, burst, history, outcome, put, record, shape, tokens

from coldproof.harness.features.lora.evidence import Adapters, older_identities
from coldproof.harness.history.records import CachePartition, History, Identity, Outcome
from coldproof.harness.judgement.counters import Evidence
from coldproof.harness.judgement.oracle import Answer, Answers, distinguishing_question, question
from coldproof.harness.workload.steps import Burst, Meanwhile, Route, SetAdapter, Step, Workload

PROMPT = range(100, 140)  # two whole blocks of 16 and a half
LONG = tuple(range(200, 220))
A, B = Identity("digest-a", None), Identity("digest-b", None)


def seen(*outcomes: Outcome, what: Evidence, **changes: Any) -> float:
    """One counter of a history of these outcomes."""
    return evidence(history(*outcomes, **changes), {})[what]


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        (outcome(0, PROMPT, adapter="digest-a"), outcome(1, PROMPT, adapter="digest-b"), [(1, A)]),
        (outcome(0, PROMPT), outcome(1, PROMPT, adapter="digest-b"), [(1, Identity(None, None))]),
        (outcome(0, PROMPT, salt="red"), outcome(1, PROMPT), [(1, Identity(None, "red"))]),
        (outcome(0, PROMPT, adapter="digest-a", identities=(A, B)), outcome(1, PROMPT, adapter="digest-b"), [(1, A)]),
        (outcome(0, PROMPT, adapter="digest-a"), outcome(1, PROMPT, adapter="digest-a"), []),
        (outcome(0, PROMPT), outcome(1, (*PROMPT[:15], *range(300, 330)), adapter="digest-b"), []),
        (outcome(0, PROMPT[:13]), outcome(1, PROMPT, adapter="digest-b"), []),
    ],
)
def test_another_identitys_block_must_lie_ready(
    first: Outcome, then: Outcome, expected: list[tuple[int, Identity]]
) -> None:
    """Of another content, the base model or a salt, before the request was sent, and a whole one."""
    found = [(o.request, identity) for o, identity in older_identities(history(first, then))]
    assert found == expected
    assert seen(first, then, what=Adapters.STALE_CHANCES) == len(expected)


def test_a_block_of_a_later_request_is_no_chance() -> None:
    """Nor is one of a request's own."""
    assert list(older_identities(history(outcome(0, PROMPT, adapter="digest-a", identities=(A, B))))) == []
    late = outcome(0, PROMPT, adapter="digest-a", sent=9.0, finished=9.5)
    assert [o.request for o, _ in older_identities(history(late, outcome(1, PROMPT)))] == [0]


@pytest.mark.parametrize(
    ("answer", "expected"), [(tokens(7, 8, 9), 0), (tokens(7, 8, 1), 1), (None, 0)], ids=["alike", "other", "not asked"]
)
def test_two_identities_must_answer_differently_to_tell(answer: tuple[Any, ...] | None, expected: int) -> None:
    """A stale hit that changes nothing could not be seen."""
    first, then = outcome(0, PROMPT, adapter="digest-a"), outcome(1, PROMPT, adapter="digest-b")
    answers: Answers = {question(o, o.identities[0]): Answer(tokens(7, 8, 9)) for o in (first, then)}
    # The short question has as many tokens as the whole one here: three.
    asked = {distinguishing_question(then, A): Answer(answer)} if answer is not None else {}
    known = {question(then, B): answers[question(then, B)]} | asked
    assert evidence(history(first, then), known)[Adapters.TELLING] == expected


def follower(**changes: Any) -> Outcome:
    """A turn on `during()`'s answer, by default under the content that it began with."""
    return outcome(1, (*PROMPT, *LONG, 300), **{"adapter": "digest-a", **changes})


def during(**changes: Any) -> Outcome:
    """A request whose adapter went from A to B while it answered."""
    return outcome(0, PROMPT, LONG, **{"adapter": "digest-a", "identities": (A, B), **changes})


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        (during(), follower(), 1),
        (during(identities=(A,)), follower(), 0),
        (during(), follower(adapter="digest-b"), 0),
        (during(), follower(identities=(A, B)), 0),
        (during(), outcome(1, PROMPT, adapter="digest-a"), 0),
        (during(), outcome(1, (*PROMPT, *LONG[:7], 300), adapter="digest-a"), 0),
        (during(), outcome(1, (*PROMPT, *LONG[:8], 300), adapter="digest-a"), 1),
        (outcome(0, PROMPT, LONG[:8], adapter="digest-a", identities=(A, B)), follower(), 0),
    ],
)
def test_only_a_whole_block_of_an_overlapped_answer_counts(first: Outcome, then: Outcome, expected: int) -> None:
    """Written across a change and asked for, by a request that no change overlapped, under what it began with."""
    assert seen(first, then, what=Adapters.AFTER_OVERLAP) == expected


def told(*steps: Step, errors: tuple[int, ...] = ()) -> History:
    """One request to `tenant` after these steps, some of them refused."""
    records = tuple(record(i, error="HTTP 400" if i in errors else None) for i in range(len(steps) + 1))
    asked = outcome(len(steps), PROMPT, adapter="digest-a")
    return history(asked, workload=Workload((*steps, burst(ask(adapter="tenant")))), steps=records)


def change(content: str, *, path: str | None = None, name: str = "tenant") -> SetAdapter:
    """An in-place reload."""
    return put(content, path=path, name=name, route=Route.IN_PLACE)


MIDST = Burst(requests=(ask(adapter="tenant"),), meanwhile=Meanwhile(change=change("B"), after_tokens=1))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([put("A"), change("B"), change("A")], 1),
        ([put("A"), MIDST, change("A")], 1),
        ([put("A"), change("B"), change("C"), change("A")], 1),
        ([put("A"), change("B")], 0),
        ([put("A"), change("A")], 0),
        ([put("A"), change("B", name="other"), change("A")], 0),
        ([put("A"), change("B"), change("C")], 0),
        ([], 0),
    ],
)
def test_a_return_needs_another_content_in_between(steps: list[Step], expected: int) -> None:
    """Behind the very name that is asked."""
    assert evidence(told(*steps), {})[Adapters.RETURNS] == expected


def test_what_comes_back_after_a_request_is_no_return_for_it() -> None:
    """Only the steps before it count."""
    steps = (put("A"), burst(ask(adapter="tenant")), change("B"), change("A"))
    records = tuple(record(i) for i in range(4))
    early = history(outcome(0, PROMPT, adapter="digest-a", step=1), workload=Workload(steps), steps=records)
    assert evidence(early, {})[Adapters.RETURNS] == 0


@pytest.mark.parametrize(
    ("steps", "errors", "expected"),
    [
        ([put("A", path="p"), change("B", path="p")], (), 1),
        ([put("A", path="p"), change("B", path="p"), change("A", path="p")], (), 2),
        ([put("A", path="p"), put("B", path="p", name="other")], (), 1),
        ([put("A", path="p"), change("B", path="p")], (1,), 0),
        ([put("A", path="p"), change("B", path="q")], (), 0),
        ([put("A", path="p"), change("A", path="p")], (), 0),
        ([put("A", path="p")], (), 0),
    ],
)
def test_a_path_counts_when_its_files_changed(steps: list[Step], errors: tuple[int, ...], expected: int) -> None:
    """And the engine took them."""
    assert evidence(told(*steps, errors=errors), {})[Adapters.SAME_PATH_RELOADS] == expected


@pytest.mark.parametrize(("names", "slots", "expected"), [(5, 4, 1), (4, 4, 0), (1, 4, 0), (5, None, 0), (0, 0, 0)])
def test_slots_are_outnumbered_by_names_alone(names: int, slots: int | None, expected: int) -> None:
    """The base model needs none, and an unknown number of slots is not outnumbered."""
    asked = [outcome(i, PROMPT, adapter="digest-a", residence=CachePartition(f"t{i}", i, None)) for i in range(names)]
    base = outcome(names, PROMPT)
    assert seen(*asked, base, what=Adapters.BEYOND_SLOTS, shape=shape(adapter_slots=slots)) == expected


@pytest.mark.parametrize(
    ("adapters", "finished", "expected"),
    [
        ((None, "digest-a"), 2.0, 2),
        ((None, "digest-a"), 1.0, 0),
        ((None, None), 2.0, 0),
        (("digest-a", "digest-b"), 2.0, 0),
    ],
)
def test_base_and_adapter_are_mixed_when_they_run_side_by_side(
    adapters: tuple[str | None, str | None], finished: float, expected: int
) -> None:
    """One after the other is no mixture, and two of a kind are none."""
    first = outcome(0, PROMPT, adapter=adapters[0], finished=finished)
    assert seen(first, outcome(1, PROMPT, adapter=adapters[1]), what=Adapters.MIXED) == expected

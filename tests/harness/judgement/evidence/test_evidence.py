"""A counter of evidence is zero if what it counts did not happen."""

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


def counter(*outcomes: Outcome, what: Evidence, **changes: Any) -> float:
    """Return one counter of a history of these outcomes."""
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
def test_another_identitys_block_must_be_cached(
    first: Outcome, then: Outcome, expected: list[tuple[int, Identity]]
) -> None:
    """It is a whole block of another content, the base model or a salt, written before the request was sent."""
    found = [(o.request, identity) for o, identity in older_identities(history(first, then))]
    assert found == expected
    assert counter(first, then, what=Adapters.STALE_CHANCES) == len(expected)


def test_a_block_of_a_later_request_is_no_chance() -> None:
    """A block of the request itself is none either."""
    assert list(older_identities(history(outcome(0, PROMPT, adapter="digest-a", identities=(A, B))))) == []
    late = outcome(0, PROMPT, adapter="digest-a", sent=9.0, finished=9.5)
    assert [o.request for o, _ in older_identities(history(late, outcome(1, PROMPT)))] == [0]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(tokens(7, 8, 9), 0), (tokens(7, 8, 1), 1), (None, 0)],
    ids=["equal", "different", "unknown"],
)
def test_two_identities_must_have_different_answers(answer: tuple[Any, ...] | None, expected: int) -> None:
    """A stale hit that changes no answer could not be detected."""
    first, then = outcome(0, PROMPT, adapter="digest-a"), outcome(1, PROMPT, adapter="digest-b")
    answers: Answers = {question(o, o.identities[0]): Answer(tokens(7, 8, 9)) for o in (first, then)}
    # The short question has as many tokens as the whole one here: three.
    other = {distinguishing_question(then, A): Answer(answer)} if answer is not None else {}
    known = {question(then, B): answers[question(then, B)]} | other
    assert evidence(history(first, then), known)[Adapters.DISCRIMINATING] == expected


def follower(**changes: Any) -> Outcome:
    """Return a turn on the answer of `during()`, by default with the content at the start of that answer."""
    return outcome(1, (*PROMPT, *LONG, 300), **{"adapter": "digest-a", **changes})


def during(**changes: Any) -> Outcome:
    """Return a request whose adapter changed from A to B during its answer."""
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
    """A request that no change overlapped must need the block, with the content that the answer began with."""
    assert counter(first, then, what=Adapters.AFTER_OVERLAP) == expected


def after_steps(*steps: Step, errors: tuple[int, ...] = ()) -> History:
    """Return a history of one request to `tenant` after these steps. The steps in `errors` were refused."""
    records = tuple(record(i, error="HTTP 400" if i in errors else None) for i in range(len(steps) + 1))
    sent = outcome(len(steps), PROMPT, adapter="digest-a")
    return history(sent, workload=Workload((*steps, burst(ask(adapter="tenant")))), steps=records)


def reload(content: str, *, path: str | None = None, name: str = "tenant") -> SetAdapter:
    """Return an in-place reload."""
    return put(content, path=path, name=name, route=Route.IN_PLACE)


RELOAD_DURING_BURST = Burst(requests=(ask(adapter="tenant"),), meanwhile=Meanwhile(change=reload("B"), after_tokens=1))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([put("A"), reload("B"), reload("A")], 1),
        ([put("A"), RELOAD_DURING_BURST, reload("A")], 1),
        ([put("A"), reload("B"), reload("C"), reload("A")], 1),
        ([put("A"), reload("B")], 0),
        ([put("A"), reload("A")], 0),
        ([put("A"), reload("B", name="other"), reload("A")], 0),
        ([put("A"), reload("B"), reload("C")], 0),
        ([], 0),
    ],
)
def test_a_return_needs_another_content_in_between(steps: list[Step], expected: int) -> None:
    """The other content must have had the name that the request uses."""
    assert evidence(after_steps(*steps), {})[Adapters.RETURNS] == expected


def test_what_comes_back_after_a_request_is_no_return_for_it() -> None:
    """Only the steps before the request count."""
    steps = (put("A"), burst(ask(adapter="tenant")), reload("B"), reload("A"))
    records = tuple(record(i) for i in range(4))
    early = history(outcome(0, PROMPT, adapter="digest-a", step=1), workload=Workload(steps), steps=records)
    assert evidence(early, {})[Adapters.RETURNS] == 0


@pytest.mark.parametrize(
    ("steps", "errors", "expected"),
    [
        ([put("A", path="p"), reload("B", path="p")], (), 1),
        ([put("A", path="p"), reload("B", path="p"), reload("A", path="p")], (), 2),
        ([put("A", path="p"), put("B", path="p", name="other")], (), 1),
        ([put("A", path="p"), reload("B", path="p")], (1,), 0),
        ([put("A", path="p"), reload("B", path="q")], (), 0),
        ([put("A", path="p"), reload("A", path="p")], (), 0),
        ([put("A", path="p")], (), 0),
    ],
)
def test_a_path_counts_when_its_files_changed(steps: list[Step], errors: tuple[int, ...], expected: int) -> None:
    """The engine must also have loaded them."""
    assert evidence(after_steps(*steps, errors=errors), {})[Adapters.SAME_PATH_RELOADS] == expected


@pytest.mark.parametrize(("names", "slots", "expected"), [(5, 4, 1), (4, 4, 0), (1, 4, 0), (5, None, 0), (0, 0, 0)])
def test_only_adapter_names_exceed_the_slots(names: int, slots: int | None, expected: int) -> None:
    """The base model needs no slot, and an unknown number of slots is never exceeded."""
    sent = [outcome(i, PROMPT, adapter="digest-a", partition=CachePartition(f"t{i}", i, None)) for i in range(names)]
    base = outcome(names, PROMPT)
    assert counter(*sent, base, what=Adapters.BEYOND_SLOTS, shape=shape(adapter_slots=slots)) == expected


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
    """Requests one after the other are not mixed, and neither are two adapters."""
    first = outcome(0, PROMPT, adapter=adapters[0], finished=finished)
    assert counter(first, outcome(1, PROMPT, adapter=adapters[1]), what=Adapters.MIXED) == expected

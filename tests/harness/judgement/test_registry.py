"""Functions that are registered by decorators are found by folder, in an explicit order, and are complete."""

from __future__ import annotations

from collections import Counter

import pytest
from support.histories import history, outcome

from coldproof.harness.features.salts.evidence import Salts, salt_facts
from coldproof.harness.history.records import History
from coldproof.harness.judgement import collect
from coldproof.harness.judgement.checks import CHECKERS, check
from coldproof.harness.judgement.collect import COUNTERS, FUNCTIONS
from coldproof.harness.judgement.counters import COUNTINGS, Counting, Evidence, computes
from coldproof.harness.judgement.criteria import CHECKS
from coldproof.harness.judgement.finding import EXACT, Finding
from coldproof.harness.judgement.registry import Example


def check_again(history: History) -> list[Finding]:
    """Return no finding."""
    assert history
    return []


def check_something_else(engine: str) -> list[Finding]:
    """Return no finding."""
    assert engine
    return []


def check_other_answers(answers: str) -> list[Finding]:
    """Return no finding."""
    assert answers
    return []


def test_a_place_in_the_order_is_taken_once() -> None:
    """Otherwise, a second function would replace the first without an error."""
    before = dict(CHECKERS.entries), dict(COUNTINGS.entries)
    with pytest.raises(ValueError, match="check_again and check_liveness have the same place in the order: 10"):
        check("liveness", order=10)(check_again)
    with pytest.raises(ValueError, match="salt_facts and request_facts have the same place in the order: 10"):
        computes(Salts, order=10)(salt_facts)
    assert (CHECKERS.entries, COUNTINGS.entries) == before


@pytest.mark.parametrize("function", [check_something_else, check_other_answers])
def test_a_function_takes_only_what_an_example_has(function: object) -> None:
    """Names and types must be equal, because the judge passes arguments by name."""
    with pytest.raises(TypeError, match="which is no field of an example"):
        check("liveness", order=11)(function)  # type: ignore[type-var]
    assert 11 not in CHECKERS.entries


def test_functions_are_called_in_their_order() -> None:
    """The order of findings and counters is part of stored results."""
    for registered in (CHECKS, FUNCTIONS):
        places = [one.order for one in registered]
        assert places == sorted(set(places))


@pytest.mark.parametrize("counting", FUNCTIONS, ids=lambda counting: counting.counters.__name__)
@pytest.mark.parametrize("seen", [history(), history(outcome(0, range(100, 140)))], ids=["nothing", "a request"])
def test_a_function_returns_all_its_counters(counting: Counting, seen: History) -> None:
    """This includes a history without any of its features: a missing counter would not be zero."""
    example = Example(history=seen, answers={}, rule=EXACT, exclusive=True)
    assert set(counting.result(example)) == set(counting.counters)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ({}, r"salt_facts does not return '.+': it returns a value for each member of Salts"),
        (dict.fromkeys(Salts, 0.0) | {"else": 1.0}, r"salt_facts returns 'else' of another class"),
    ],
)
def test_a_counter_that_is_not_returned_is_an_error_with_its_name(
    monkeypatch: pytest.MonkeyPatch, returned: dict[str, float], said: str
) -> None:
    """A requirement that needs it would never be exercised, and nothing would say why."""

    def salt_facts() -> dict[str, float]:
        return returned

    monkeypatch.setattr(collect, "FUNCTIONS", [Counting(function=salt_facts, order=1, counters=Salts)])
    monkeypatch.setattr(collect, "NAMES", [frozenset(Salts)])
    with pytest.raises(TypeError, match=said):
        collect.evidence(Example(history=history(), answers={}, rule=EXACT, exclusive=True))


def test_every_counter_has_its_own_text() -> None:
    """Results are stored by these texts."""
    texts = Counter(str(one) for kind in Evidence.__subclasses__() for one in kind)
    assert [text for text, number in texts.items() if number > 1] == []
    assert set(texts) == set(COUNTERS)

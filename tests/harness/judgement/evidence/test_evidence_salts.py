"""Counters of salts count what could be hit under an almost equal salt, and under a salt that is an adapter's name."""

from __future__ import annotations

import pytest
from support.evidence import evidence
from support.histories import ask, burst, history, outcome

from coldproof.harness.features.salts.evidence import Salts
from coldproof.harness.features.salts.workloads import ALMOST_EQUAL, LIKE_A_NAME, Alike
from coldproof.harness.workload.steps import Request, Workload

PROMPT = range(100, 140)
OTHER = range(500, 540)


def counters(one: Request, two: Request, prompt: range = PROMPT) -> dict[str, float]:
    """Return the counters of two requests, of which the second has this prompt."""
    outcomes = (outcome(0, PROMPT, salt=one.salt), outcome(1, prompt, salt=two.salt))
    found = evidence(history(*outcomes, workload=Workload((burst(one), burst(two)))), {})
    return {name: found[name] for name in Salts if name is not Salts.HITS}


@pytest.mark.parametrize(("alike", "one", "two"), ALMOST_EQUAL, ids=[f"{a.name} {b!r}" for a, _, b in ALMOST_EQUAL])
def test_each_pair_that_is_drawn_is_counted(alike: Alike, one: str, two: str) -> None:
    """Whichever of both is first; not if the prompts share no block."""
    for first, second in ((one, two), (two, one)):
        found = counters(ask(salt=first), ask(salt=second))
        assert (found[alike.chance], found[Salts.ALMOST]) == (1, 1)
    assert not any(counters(ask(salt=one), ask(salt=two), OTHER).values())


@pytest.mark.parametrize(("one", "two"), [("red", "red"), ("red", "blue"), ("red", None), (None, None)])
def test_equal_and_different_salts_are_not_almost_equal(one: str | None, two: str | None) -> None:
    """A key that confuses these has no special reason."""
    assert not any(counters(ask(salt=one), ask(salt=two)).values())


def test_a_salt_that_is_an_adapters_name_is_counted() -> None:
    """Either way round; two requests to the adapter, one of them with its name as salt, differ in nothing else."""
    named, salted = ask(adapter="tenant"), ask(salt="tenant")
    assert counters(named, salted)[LIKE_A_NAME] == counters(salted, named)[LIKE_A_NAME] == 1
    assert counters(named, salted)[Salts.ALMOST] == 0
    assert counters(ask(adapter="tenant", salt="tenant"), named)[LIKE_A_NAME] == 0

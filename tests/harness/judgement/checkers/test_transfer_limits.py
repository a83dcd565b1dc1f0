"""No more is loaded for the requests of a step than they allow, where the engine counts it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.evidence import evidence
from support.histories import BLOCK, history, outcome, record, shape

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import ResponseOptions
from coldproof.harness.features.transfer_limits.checks import check_limits
from coldproof.harness.features.transfer_limits.evidence import TransferLimits
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.oracle import question
from coldproof.harness.judgement.reference_cache import bounds
from coldproof.harness.schema.verdict import FailureClass

PROMPT = range(100, 100 + 3 * BLOCK + 2)
FULL = 3 * BLOCK
NONE, ONE, MANY = 0, BLOCK, 10 * BLOCK


def limited(number: int, *, step: int = 1, loaded: int | None = None, stored: int | None = None) -> Outcome:
    """Return a request with limits."""
    options = ResponseOptions(most_loaded=loaded, most_stored=stored)
    return outcome(number, PROMPT, step=step, options=options)


def loads(tokens: float, *outcomes: Outcome, **more: Any) -> History:
    """Return a history of these requests in step 1, in which so many tokens were loaded."""
    before = Metrics(hit_tokens=0.0, external_hit_tokens=0.0, preemptions=0, failed_loads=0)
    after = msgspec.structs.replace(before, external_hit_tokens=tokens, **more)
    steps = (record(0, before=before, after=before), record(1, before=before, after=after))
    return history(outcome(0, PROMPT), *outcomes, steps=steps, shape=shape(second_tier=True, tier_blocks=100))


@pytest.mark.parametrize(
    ("tokens", "outcomes", "found"),
    [
        (BLOCK, (limited(1, loaded=NONE),), 1),
        (0, (limited(1, loaded=NONE),), 0),
        (BLOCK, (limited(1, loaded=ONE),), 0),
        (2 * BLOCK, (limited(1, loaded=ONE),), 1),
        (2 * BLOCK, (limited(1, loaded=ONE), limited(2, loaded=ONE)), 0),
        (2 * BLOCK, (limited(1, loaded=ONE), limited(2, loaded=NONE)), 1),
        (2 * BLOCK, (limited(1, loaded=ONE), limited(2)), 0),  # the other one may load anything
        (2 * BLOCK, (limited(1, stored=NONE),), 0),
        (FULL, (limited(1, loaded=MANY),), 0),
    ],
)
def test_the_requests_of_a_step_allow_what_they_allow_together(
    tokens: float, outcomes: tuple[Outcome, ...], found: int
) -> None:
    """The counter is that of all requests of the step."""
    assert [one.failure_class for one in check_limits(loads(tokens, *outcomes), exclusive=True)] == [
        FailureClass.API
    ] * found


def test_the_sentence_has_both_numbers() -> None:
    """What was loaded, and what was allowed."""
    (found,) = check_limits(loads(2 * BLOCK, limited(1, loaded=ONE)), exclusive=True)
    assert found.sentence == (
        f"In step 1, {2 * BLOCK} tokens were loaded from the second tier, but its requests allow at most {BLOCK}."
    )


@pytest.mark.parametrize("more", [{"preemptions": 1}, {"failed_loads": 1}])
def test_a_request_that_is_looked_up_twice_has_its_limit_twice(more: dict[str, int]) -> None:
    """Nothing is said of such a step, nor of an engine that others use."""
    made = loads(2 * BLOCK, limited(1, loaded=ONE), **more)
    assert check_limits(made, exclusive=True) == []
    assert check_limits(loads(2 * BLOCK, limited(1, loaded=ONE)), exclusive=False) == []


def test_limits_change_no_answer_and_no_hit_is_owed() -> None:
    """The cold engine is asked without them. What was not stored, or must not be loaded, cannot be missed."""
    one = limited(1, loaded=NONE, stored=ONE)
    assert question(one, one.identities[0]) == question(outcome(1, PROMPT), one.identities[0])
    plain = history(outcome(0, PROMPT), outcome(1, PROMPT))
    assert bounds(plain)[1].at_least == FULL
    assert bounds(history(outcome(0, PROMPT), limited(1, loaded=NONE)))[1].at_least == 0
    assert bounds(history(limited(0, step=0, stored=NONE), outcome(1, PROMPT)))[1].at_least == 0


def test_only_limits_below_what_there_is_are_evidence() -> None:
    """On loads for the request itself, on stores for a later one."""

    def found(*outcomes: Outcome) -> tuple[float, float]:
        facts = evidence(history(*outcomes), {})
        return facts[TransferLimits.CUT_LOADS], facts[TransferLimits.CUT_STORES]

    assert found(outcome(0, PROMPT), limited(1, loaded=ONE)) == (1, 0)
    assert found(outcome(0, PROMPT), limited(1, loaded=FULL)) == (0, 0)
    assert found(outcome(0, range(500, 560)), limited(1, loaded=NONE)) == (0, 0)
    assert found(limited(0, step=0, stored=ONE), outcome(1, PROMPT)) == (0, 1)
    assert found(limited(0, step=0, stored=MANY), outcome(1, PROMPT)) == (0, 0)
    assert found(limited(0, step=0, stored=ONE), outcome(1, range(500, 560))) == (0, 0)

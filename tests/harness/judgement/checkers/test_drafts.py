"""Fewer accepted draft tokens on a hit are lost reuse, and other differences are not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.evidence import evidence
from support.histories import ask, burst, history, outcome, record, shape

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.harness.case.signature import signature
from coldproof.harness.features.drafts.checks import check_drafts
from coldproof.harness.features.drafts.circumstances import FEWER_DRAFTS
from coldproof.harness.features.drafts.evidence import Drafts
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.finding import EXACT, Rule
from coldproof.harness.judgement.reference_cache import at_least, bounds
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Workload

PROMPT = tuple(range(33, 73))  # two whole blocks of 16, and more
NOISY = Rule(exact=False, noise=0.1)
Counts = tuple[int, int]  # drafted and accepted


def drafted(*requests: tuple[Outcome, Counts], **changes: Any) -> History:
    """Return a history of single requests, each with its drafts."""
    steps, total = [], Metrics(hit_tokens=0, drafted_tokens=0, accepted_tokens=0, preemptions=0)
    for i, (_, (count, right)) in enumerate(requests):
        before, drafted, accepted = total, total.drafted_tokens or 0, total.accepted_tokens or 0
        total = msgspec.structs.replace(total, drafted_tokens=drafted + count, accepted_tokens=accepted + right)
        steps.append(record(i, before=before, after=total))
    return history(*(one for one, _ in requests), steps=tuple(steps), **changes)


COLD = outcome(0, PROMPT, salt="cold")
HIT = outcome(1, PROMPT, cached_tokens=32)


def cold(**changes: Any) -> Outcome:
    """Return the request without a hit, with changes."""
    return outcome(0, PROMPT, **{"salt": "cold", **changes})


@pytest.mark.parametrize(
    ("accepted", "rule", "found"),
    [
        ((9, 9), EXACT, False),
        ((9, 10), EXACT, False),
        ((9, 8), EXACT, True),
        ((9, 0), EXACT, True),
        ((9, 8), NOISY, False),
        ((9, 5), NOISY, False),
        ((9, 4), NOISY, True),
        ((3, 0), NOISY, False),  # too few to say
    ],
)
def test_fewer_accepted_drafts_are_detected(accepted: tuple[int, int], rule: Rule, found: bool) -> None:
    """Twelve tokens are drafted for the cold request and for the hit."""
    made = drafted((COLD, (12, accepted[0])), (HIT, (12, accepted[1])))
    findings = check_drafts(made, rule, exclusive=True)
    assert [(one.request, one.failure_class) for one in findings] == [(1, FailureClass.LOST_REUSE)] * found
    assert check_drafts(made, rule, exclusive=False) == []


def test_no_drafts_at_all_are_fewer_drafts() -> None:
    """No tokens are drafted on the hit."""
    (found,) = check_drafts(drafted((COLD, (12, 9)), (HIT, (0, 0))), EXACT, exclusive=True)
    assert "0 of 0 drafted tokens" in found.sentence
    assert "request 0" in found.sentence
    assert "9 of 12" in found.sentence


def test_the_worst_of_several_cold_requests_counts() -> None:
    """A hit that is not worse than that request is not worse than cold."""
    other = outcome(2, PROMPT, salt="other")
    made = drafted((COLD, (12, 9)), (HIT, (12, 8)), (other, (12, 8)))
    assert check_drafts(made, EXACT, exclusive=True) == []


@pytest.mark.parametrize(
    "other",
    [
        cold(answer=(7, 8, 10)),
        cold(max_tokens=9),
        cold(adapter="digest-a"),
        cold(error="lost"),
        cold(cached_tokens=16),
        cold(cached_tokens=None),
        outcome(0, (*PROMPT, 1), salt="cold"),
    ],
    ids=["other answer", "longer", "adapter", "no answer", "hit too", "unknown", "other prompt"],
)
def test_requests_that_differ_are_not_compared(other: Outcome) -> None:
    """Their draft tokens may differ."""
    assert check_drafts(drafted((other, (12, 9)), (HIT, (12, 0))), EXACT, exclusive=True) == []


def test_requests_of_one_burst_are_not_compared() -> None:
    """The counters do not say whose draft tokens they count."""
    both = Workload((burst(ask()), burst(ask(), ask())))
    assert check_drafts(drafted((COLD, (12, 9)), (HIT, (12, 0)), workload=both), EXACT, exclusive=True) == []


def test_preempted_requests_are_not_compared() -> None:
    """They are computed again, in other steps."""
    made = drafted((COLD, (12, 9)), (HIT, (12, 0)))
    first, then = made.steps
    preempted = msgspec.structs.replace(then, after=msgspec.structs.replace(then.after, preemptions=1))
    made = msgspec.structs.replace(made, steps=(first, preempted))
    assert check_drafts(made, EXACT, exclusive=True) == []


def test_an_engine_without_counts_gives_no_finding() -> None:
    """A missing count is not zero."""
    made = history(COLD, HIT)
    assert check_drafts(made, EXACT, exclusive=True) == []
    assert evidence(made, {})[Drafts.PAIRS] == 0


def test_the_signature_names_the_drafts() -> None:
    """A known issue about draft tokens then waives no other lost reuse."""
    worse = drafted((COLD, (12, 9)), (HIT, (12, 0)))
    assert signature(worse, FailureClass.LOST_REUSE, 1) == f"lost reuse; no reload; {FEWER_DRAFTS}"
    assert signature(worse, FailureClass.LOST_REUSE, 0) == "lost reuse; no reload"
    assert signature(worse, FailureClass.CORRUPT, 1) == "corrupt; no reload"
    equal = drafted((COLD, (12, 9)), (HIT, (12, 9)))
    assert signature(equal, FailureClass.LOST_REUSE, 1) == "lost reuse; no reload"


def test_evidence_of_drafts() -> None:
    """The evidence counts accepted and rejected draft tokens, hits with drafts, and compared pairs."""
    facts = evidence(drafted((COLD, (12, 9)), (HIT, (12, 9))), {})
    assert facts[Drafts.ACCEPTED] == 18
    assert facts[Drafts.REJECTED] == 6
    assert facts[Drafts.HITS] == 1
    assert facts[Drafts.PAIRS] == 1
    assert evidence(drafted((COLD, (12, 0)), (HIT, (12, 0))), {})[Drafts.PAIRS] == 0  # nothing could be fewer
    assert evidence(drafted((COLD, (12, 9)), (HIT, (0, 0))), {})[Drafts.HITS] == 0


def test_evidence_of_a_full_context() -> None:
    """One of the two requests of a burst ends at the limit of 43 tokens, and the other one does not."""
    full, beside = outcome(0, PROMPT), outcome(1, PROMPT[:20], step=0)
    both = Workload((burst(ask(), ask()),))
    facts: dict[str, Any] = {"workload": both, "shape": shape(max_model_tokens=len(PROMPT) + 3)}
    drafts = record(
        0, before=Metrics(drafted_tokens=0, accepted_tokens=0), after=Metrics(drafted_tokens=3, accepted_tokens=1)
    )
    made = history(full, beside, steps=(drafts,), **facts)
    assert evidence(made, {})[Drafts.BESIDE_LIMIT] == 1
    assert evidence(msgspec.structs.replace(made, shape=shape()), {})[Drafts.BESIDE_LIMIT] == 0
    assert evidence(msgspec.structs.replace(made, steps=(record(0),)), {})[Drafts.BESIDE_LIMIT] == 0


def test_drafts_accepted_in_the_last_step_need_not_be_published() -> None:
    """The end of such an answer is not expected in the cache.

    It is expected without draft tokens, and farther from the end.
    """
    answer = tuple(range(80, 89))
    writer = outcome(0, PROMPT, answer)
    turn = outcome(1, (*PROMPT, *answer, 1), cached_tokens=32)
    made = drafted((writer, (6, 3)), (turn, (0, 0)))
    assert at_least(made, turn) == 32
    assert at_least(history(writer, turn), turn) == 48
    longer = outcome(0, PROMPT, (*answer, *range(90, 98)))
    turn = outcome(1, (*longer.prompt, *longer.token_ids, 1), cached_tokens=48)
    assert at_least(drafted((longer, (6, 3)), (turn, (0, 0))), turn) == 48


@pytest.mark.parametrize(("engine", "found"), [({}, 1), ({"drops_block": True}, 1), ({"second_tier": True}, 1)])
def test_of_heads_that_draft_a_block_from_a_second_tier_is_not_judged(engine: dict[str, bool], found: int) -> None:
    """The pool leaves out the block that they have computed with another token behind it, and the tier loads it."""
    worse = (COLD, (9, 9)), (HIT, (9, 3))
    assert len(check_drafts(drafted(*worse, shape=shape(**engine)), EXACT, exclusive=True)) == found
    both = shape(drops_block=True, second_tier=True)
    assert check_drafts(drafted(*worse, shape=both), EXACT, exclusive=True) == []


def test_a_hit_may_lack_the_last_block_of_a_head_that_drafts() -> None:
    """Its KV depends on the token behind the block."""
    made = history(outcome(0, PROMPT), outcome(1, PROMPT), shape=shape(drops_block=True))
    assert at_least(made, made.outcomes[1]) == 16
    short = history(outcome(0, PROMPT[:20]), outcome(1, PROMPT[:20]), shape=shape(drops_block=True))
    assert at_least(short, short.outcomes[1]) == 0


def test_the_last_token_of_an_answer_may_be_a_draft_that_was_computed() -> None:
    """Without drafts, no step computes it."""
    asked, answer = PROMPT[:30], (7, 8)
    again = outcome(1, (*asked, *answer, 50, 51), cached_tokens=32)
    with_drafts = drafted((outcome(0, asked, answer), (3, 1)), (again, (3, 1)))
    assert bounds(with_drafts)[1].at_most == 32
    assert bounds(history(outcome(0, asked, answer), again))[1].at_most == 31

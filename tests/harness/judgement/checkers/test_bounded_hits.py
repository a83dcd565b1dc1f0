"""Hits that are known only within bounds are evidence as far as they are certain, and no false positive."""

from __future__ import annotations

import pytest
from support.evidence import evidence
from support.histories import history, outcome

from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.checkers.cached_tokens import check_bounds
from coldproof.harness.judgement.checkers.tokens import foreign_source
from coldproof.harness.judgement.counters import Evidence, Trait
from coldproof.harness.judgement.criteria import BOUNDS
from coldproof.harness.judgement.evidence.cache import Pressure, Reuse
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.judge import Judgement, judge
from coldproof.harness.judgement.reference_cache import lost_tokens
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.trial import Trial
from coldproof.harness.judgement.verdict import verdict_without_case
from coldproof.harness.proof.diagnose.diagnose import reports_hits
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.session.selftest.scripted_engine import ClosedFormOracle

PROMPT = range(100, 150)  # three whole blocks of sixteen and an end


def repeated(between: tuple[int, int] | None, cached: int | None = None, **changes: str) -> Outcome:
    """Return the second request of the same prompt, with these bounds of its hit."""
    return outcome(1, PROMPT, cached_tokens=cached, cached_between=between, **changes)


def twice(between: tuple[int, int] | None, cached: int | None = None) -> History:
    """Return a history in which a prompt is sent twice, with these bounds of the second request's hit."""
    return history(outcome(0, PROMPT), repeated(between, cached))


@pytest.mark.parametrize(
    ("between", "cached", "least", "most"),
    [((10, 40), None, 10, 40), (None, None, 0, None), ((10, 40), 48, 48, 48), (None, 0, 0, 0)],
)
def test_a_count_comes_before_bounds(
    between: tuple[int, int] | None, cached: int | None, least: int, most: int | None
) -> None:
    """If nothing is known, it is neither a hit nor a miss."""
    one = repeated(between, cached)
    assert (one.hit_at_least, one.hit_at_most) == (least, most)


@pytest.mark.parametrize(("between", "hits"), [((17, 49), 1), ((0, 49), 0), (None, 0)])
def test_a_hit_is_evidence_if_it_is_certain(between: tuple[int, int] | None, hits: int) -> None:
    """A possible hit is no evidence."""
    seen = evidence(twice(between), {})
    assert (seen[Requests.HITS], seen[Reuse.REPEAT_HITS]) == (hits, hits)


@pytest.mark.parametrize("between", [(0, 49), (40, 49), (48, 48), (0, 48)])
def test_bounds_that_allow_the_expected_hit_give_no_finding(between: tuple[int, int]) -> None:
    """At least 48 tokens are expected, and at most 49 are possible."""
    assert check_bounds(twice(between)) == []


def test_an_upper_bound_below_the_expected_hit_is_lost_reuse() -> None:
    """A hit of at most 47 of 48 tokens is a lost one. Whether it was evicted depends on the pool."""
    (found,) = check_bounds(twice((0, 47)))
    assert found.failure_class is FailureClass.LOST_REUSE
    assert "at most 47 cached tokens" in found.sentence
    assert lost_tokens(twice((0, 20)), twice((0, 20)).outcomes[1]) == 28
    assert lost_tokens(twice(None), twice(None).outcomes[1]) == 0


def test_a_lower_bound_above_what_was_written_is_a_wrong_count() -> None:
    """At least one token was hit of a prompt that no earlier request sent."""
    alone = history(outcome(0, PROMPT, cached_tokens=None, cached_between=(1, 30)))
    (found,) = check_bounds(alone)
    assert "at least 1 cached tokens" in found.sentence
    assert check_bounds(history(outcome(0, PROMPT, cached_tokens=None, cached_between=(0, 30)))) == []


@pytest.mark.parametrize(("cached", "found"), [(None, True), (0, False), (48, True)])
def test_the_source_of_blocks_without_a_count(cached: int | None, found: bool) -> None:
    """Without a count, the only cached blocks are the source. A count of zero excludes a source."""
    seen = history(outcome(0, PROMPT, adapter="digest-a"), repeated(None, cached))
    assert (foreign_source(seen, seen.outcomes[1]) is not None) is found
    both = history(outcome(0, PROMPT, adapter="digest-a"), outcome(1, PROMPT), outcome(2, PROMPT, cached_tokens=None))
    assert foreign_source(both, both.outcomes[2]) is None, "it may as well have been its own"


@pytest.mark.parametrize(("between", "reports"), [((0, 49), False), (None, False), ((0, 30), True), ((20, 49), True)])
def test_a_control_without_narrow_bounds_reports_no_hits(between: tuple[int, int] | None, reports: bool) -> None:
    """The bounds say nothing, for example, if the whole prompt is computed in one step."""
    ran = Judgement(history=twice(between), answers={}, findings=(), noise=(), evidence={})
    assert reports_hits(ran, 1) is reports


@pytest.mark.parametrize(
    ("missing", "hinted"), [(Requests.HITS, True), (Pressure.EVICTED, True), (Pressure.PREEMPTIONS, False)]
)
def test_evidence_that_needs_a_count_has_a_hint(missing: Evidence, hinted: bool) -> None:
    """The reason says what would show it."""
    made = Trial(Requirement("CHAT-1", "preludes", (), (missing,)), "default", "a statement", "test_preludes")
    made.hints[Trait.HIT_COUNTS] = "An engine that counts hits would show it."
    assert verdict_without_case(made, None)[1].endswith(made.hints[Trait.HIT_COUNTS]) is hinted


@pytest.mark.parametrize(
    ("exclusive", "shown", "misses"),
    [
        (True, Reuse.SHARED_HITS, 1),
        (True, Reuse.EXPECTED, 1),
        (False, Reuse.EXPECTED, 1),
        (False, Reuse.SHARED_HITS, 0),
    ],
)
def test_a_miss_of_an_attached_server_violates_only_what_expects_hits(
    shown: Evidence, misses: int, *, exclusive: bool
) -> None:
    """Such a server may have several replicas, drop entries after a time, or not keep decoded tokens."""
    requirement = Requirement("R-1", "title", (), (shown,))
    judged = judge(twice((0, 0)), ClosedFormOracle(), Rule(exact=True), exclusive=exclusive).limited(requirement)
    assert [f.failure_class for f in judged.findings if f.checker == BOUNDS] == [FailureClass.LOST_REUSE] * misses

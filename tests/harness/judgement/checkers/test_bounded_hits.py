"""Hits that are known within bounds only: as much evidence as is sure, and no alarm on what may be right."""

from __future__ import annotations

import msgspec
import pytest
from support.evidence import evidence
from support.histories import history, outcome

from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.checkers.cached_tokens import check_bounds
from coldproof.harness.judgement.checkers.tokens import foreign_source
from coldproof.harness.judgement.counters import Evidence
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


def again(between: tuple[int, int] | None, cached: int | None = None, **changes: str) -> Outcome:
    """The same prompt a second time, of which so much was hit."""
    return outcome(1, PROMPT, cached_tokens=cached, cached_between=between, **changes)


def twice(between: tuple[int, int] | None, cached: int | None = None) -> History:
    """A, A."""
    return history(outcome(0, PROMPT), again(between, cached))


@pytest.mark.parametrize(
    ("between", "cached", "least", "most"),
    [((10, 40), None, 10, 40), (None, None, 0, None), ((10, 40), 48, 48, 48), (None, 0, 0, 0)],
)
def test_a_count_comes_before_bounds(
    between: tuple[int, int] | None, cached: int | None, least: int, most: int | None
) -> None:
    """And what nothing is known of is no hit, and no miss either."""
    one = again(between, cached)
    assert (one.hit_at_least, one.hit_at_most) == (least, most)


@pytest.mark.parametrize(("between", "hits"), [((17, 49), 1), ((0, 49), 0), (None, 0)])
def test_a_hit_is_evidence_once_it_is_sure(between: tuple[int, int] | None, hits: int) -> None:
    """It may have hit is no evidence."""
    seen = evidence(twice(between), {})
    assert (seen[Requests.HITS], seen[Reuse.REPEAT_HITS]) == (hits, hits)


@pytest.mark.parametrize("between", [(0, 49), (40, 49), (48, 48), (0, 48)])
def test_no_alarm_where_the_bounds_allow_what_is_owed(between: tuple[int, int]) -> None:
    """48 tokens are owed, and at most 49 can be."""
    assert check_bounds(twice(between)) == []


def test_lost_reuse_is_what_lies_below_for_sure() -> None:
    """At most 47 of 48: a hit is lost. Whether it was evicted is the pool's matter."""
    (found,) = check_bounds(twice((0, 47)))
    assert found.failure_class is FailureClass.LOST_REUSE
    assert "at most 47 cached tokens" in found.sentence
    assert lost_tokens(twice((0, 20)), twice((0, 20)).outcomes[1]) == 28
    assert lost_tokens(twice(None), twice(None).outcomes[1]) == 0


def test_a_hit_of_what_nobody_wrote_is_what_lies_above_for_sure() -> None:
    """At least one token of a prompt that nobody asked before."""
    alone = history(outcome(0, PROMPT, cached_tokens=None, cached_between=(1, 30)))
    (found,) = check_bounds(alone)
    assert "at least 1 cached tokens" in found.sentence
    assert check_bounds(history(outcome(0, PROMPT, cached_tokens=None, cached_between=(0, 30)))) == []


@pytest.mark.parametrize(("cached", "found"), [(None, True), (0, False), (48, True)])
def test_whose_blocks_they_were_where_nobody_counts(cached: int | None, found: bool) -> None:
    """The only ones that lay ready; where a count says that nothing was hit, nobody's."""
    told = history(outcome(0, PROMPT, adapter="digest-a"), again(None, cached))
    assert (foreign_source(told, told.outcomes[1]) is not None) is found
    both = history(outcome(0, PROMPT, adapter="digest-a"), outcome(1, PROMPT), outcome(2, PROMPT, cached_tokens=None))
    assert foreign_source(both, both.outcomes[2]) is None, "it may as well have been its own"


@pytest.mark.parametrize(("between", "tells"), [((0, 49), False), (None, False), ((0, 30), True), ((20, 49), True)])
def test_a_control_that_cannot_tell_says_nothing_of_a_count(between: tuple[int, int] | None, tells: bool) -> None:
    """As where the whole prompt is computed in one step."""
    ran = Judgement(history=twice(between), answers={}, findings=(), noise=(), evidence={})
    assert reports_hits(ran, 1) is tells


@pytest.mark.parametrize(
    ("missing", "hinted"), [(Requests.HITS, True), (Pressure.EVICTED, True), (Pressure.PREEMPTIONS, False)]
)
def test_what_is_never_seen_for_want_of_a_count_says_so(missing: Evidence, hinted: bool) -> None:
    """With what would show it."""
    made = Trial(Requirement("CHAT-1", "preludes", (), (missing,)), "default", "a statement", "test_preludes")
    made.uncounted = "An engine that counts hits would show it."
    assert verdict_without_case(made, None)[1].endswith(made.uncounted) is hinted


def test_bounds_survive_a_file() -> None:
    """A stored history is judged again by them."""
    stored = msgspec.json.decode(msgspec.json.encode(twice((10, 40))), type=History)
    assert stored.outcomes[1].cached_between == (10, 40)


@pytest.mark.parametrize(
    ("exclusive", "shown", "misses"),
    [(True, Reuse.SHARED_HITS, 1), (True, Reuse.OWED, 1), (False, Reuse.OWED, 1), (False, Reuse.SHARED_HITS, 0)],
)
def test_a_miss_of_an_attached_server_violates_only_what_expects_hits(
    shown: Evidence, misses: int, *, exclusive: bool
) -> None:
    """Such a server may have several replicas, drop entries after a time, or not keep what decode wrote."""
    requirement = Requirement("R-1", "title", (), (shown,))
    judged = judge(twice((0, 0)), ClosedFormOracle(), Rule(exact=True), exclusive=exclusive).limited(requirement)
    assert [f.failure_class for f in judged.findings if f.checker == BOUNDS] == [FailureClass.LOST_REUSE] * misses

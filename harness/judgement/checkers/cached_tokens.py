"""Checks that cached-token counts lie within the reference cache's bounds and agree with the engine's counters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import msgspec

from coldproof.adapters.protocol.metrics import Metrics, increase
from coldproof.harness.history.embedding_rows import Difference, difference
from coldproof.harness.history.records import (
    History,
    Outcome,
    StepRecord,
    common_prefix,
    requests_with_same_identity,
    reset_everything,
    written_tokens,
)
from coldproof.harness.history.twins import hits_of_twins
from coldproof.harness.judgement.checkers.tokens import foreign_source
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.reference_cache import Bounds, at_most, bounds, has_room
from coldproof.harness.schema.verdict import FailureClass


@check(
    "bounds",
    order=70,
    fails=(
        "More cached tokens than were ever computed for the request's identity, or fewer than an earlier request left "
        "in the cache and the engine had no need to evict."
    ),
)
def check_bounds(history: History) -> list[Finding]:
    """Return a finding for each hit that should have been a miss and each miss that should have been a hit."""
    limits = bounds(history)
    found = []
    for outcome in history.outcomes:
        if outcome.error is None and outcome.hit_at_most is not None:
            found += check_request(history, outcome, limits[outcome.request])
    return found


def check_request(history: History, outcome: Outcome, limit: Bounds) -> list[Finding]:
    """Check one request against its bounds."""
    cached, at_most = outcome.hit_at_least, outcome.hit_at_most or 0
    low, high = (f"{cached}", f"{at_most}") if cached == at_most else (f"at least {cached}", f"at most {at_most}")
    if cached > limit.at_most:
        source = foreign_source(history, outcome)
        failure_class = FailureClass.ACCOUNTING if source is None else FailureClass.STALE_STATE
        most = f"at most {limit.at_most}" if limit.at_most else "none"
        why = f"{most} were ever computed for {history.describe_identity(outcome.identities[-1])}"
        if source is not None:
            writer = history.describe_request(source.request)
            bare = source.identities[0].salt is None and outcome.identities[-1].salt is not None
            why += f"; {writer} wrote them for {history.describe_identity(source.identities[0])}"
            why += " without a salt" if bare else ""
        elif (other := writer_before_a_reset(history, outcome, cached)) is not None:
            why += f"; request {other.request} wrote them before a cache reset that reported success"
        elif (similar := writer_of_similar_rows(history, outcome)) is not None:
            why += f"; request {similar[0].request} wrote such blocks for a prompt with {similar[1]}"
        else:
            why += "; no request of this workload wrote them"
    elif limit.at_least is not None and at_most < limit.at_least:
        failure_class, low = FailureClass.LOST_REUSE, high
        if at_most < hits_of_twins(history).get(outcome.request, 0):
            why = f"the same request hit {limit.at_least} with the other implementation"
            return [bounds_finding(history, outcome, failure_class, low, why)]
        place = "pool" if history.shape.tier_blocks is None or has_room(history) else "second tier"
        why = f"an earlier request had left {limit.at_least} in the cache, and the {place} had room to keep them"
    else:
        return []
    return [bounds_finding(history, outcome, failure_class, low, why)]


def bounds_finding(history: History, outcome: Outcome, failure_class: FailureClass, count: str, why: str) -> Finding:
    """Return a finding about what a request hit."""
    reader = history.describe_request(outcome.request)
    sentence = f"{reader[0].upper()}{reader[1:]} hit {count} cached tokens, but {why}."
    return Finding(checker="bounds", failure_class=failure_class, request=outcome.request, sentence=sentence)


def writer_before_a_reset(history: History, outcome: Outcome, cached: int) -> Outcome | None:
    """Return a request of the same identity that computed `cached` tokens of the prompt before a successful reset."""
    for other in history.outcomes:
        reset = any(
            reset_everything(history, r) and other.finished <= r.began and r.ended <= outcome.sent
            for r in history.resets
        )
        same = set(other.identities) & set(outcome.identities)
        if reset and same and common_prefix(written_tokens(other), outcome.prompt) >= cached:
            return other
    return None


def writer_of_similar_rows(history: History, outcome: Outcome) -> tuple[Outcome, Difference] | None:
    """Return a request whose prompt has embedding rows that a key may confuse with this one's, and the difference."""
    for other in requests_with_same_identity(history, outcome):
        found = difference(history, other, outcome)
        if found is not None:
            return other, found
    return None


class Span(msgspec.Struct, frozen=True):
    """The allowed growth of a counter."""

    low: float = 0.0
    high: float = 0.0

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.high + other.high)


ANY = Span(0.0, math.inf)


@check(
    "accounting",
    order=80,
    fails=(
        "Hit counters of the engine that disagree with the cached tokens reported for each request, or that grow by "
        "more tokens than were looked up or, where requests report no counts, than they may have hit."
    ),
)
def check_accounting(history: History, *, exclusive: bool) -> list[Finding]:
    """Return a finding if the engine's counters disagree with its reports for each request, or count more hits than
    queries.

    Over the first steps, as long as every request reported its count and none lost its blocks, the sums must be equal.
    After that, they must lie within what the other requests may have added. Return none if other clients use the engine
    (not `exclusive`), if a counter is missing, or if a side that counts was killed.
    """
    if not exclusive or history.engine_lost is not None or not history.steps or history.side_restarts:
        return []
    exact = list(itertools.takewhile(lambda record: is_exact(history, record), history.steps))
    found: list[Finding] = []
    for steps in (exact, list(history.steps)):  # sums only: a counter may be published one sample late
        if steps and not found:
            found = [*compare_hits(history, steps), *compare_queries(history, steps)]
    return found or more_hits_than_queries(history)


def is_exact(history: History, record: StepRecord) -> bool:
    """Return whether the requests of a step report everything that the engine counted in it."""
    calm = record.after.preemptions == record.before.preemptions and not loads_failed(record)
    return calm and all(has_comparable_count(o) for o in history.outcomes if o.step == record.step)


def loads_failed(record: StepRecord) -> bool:
    """Return whether a load from the second tier failed in a step. Its request then looks up its prompt again."""
    return record.after.failed_loads != record.before.failed_loads


def compare_hits(history: History, steps: list[StepRecord]) -> list[Finding]:
    """Compare the hits reported for each request, with those of a second tier, with the hit counters.

    Of two engines with one tier, the requests report what the first one loads, and the counter is of both.
    """
    if history.shape.shares_a_tier:
        return []
    tiers = history.shape.second_tier
    before, after = hits(steps[0].before, tiers=tiers), hits(steps[-1].after, tiers=tiers)
    if before is None or after is None:
        return []
    counted = after - before
    allowed = total(history, steps, hits_allowed)
    if allowed.low <= counted <= allowed.high:
        return []
    reported = sum(o.cached_tokens or 0 for o in among(history, steps))
    words = f"Requests reported {reported} cached tokens in total, but the engine's hit counter grew by {counted:.0f}"
    if counted > allowed.high and allowed.high > reported:
        words += f"; requests without a reported count explain at most {allowed.high - reported:.0f} of these"
    elif counted < allowed.low < reported:
        words += f"; requests with a single lookup reported {allowed.low:.0f} of these tokens"
    return [counter_finding(words)]


def compare_queries(history: History, steps: list[StepRecord]) -> list[Finding]:
    """Compare prompt lengths with the counter of queried tokens, if the engine counts each prompt once on admission."""
    before, after = steps[0].before.queried_tokens, steps[-1].after.queried_tokens
    if before is None or after is None or not history.shape.counts_first_lookups or not history.shape.prefix_caching:
        return []
    allowed, counted = total(history, steps, queries_allowed), after - before
    if allowed.low <= counted <= allowed.high:
        return []
    wanted = f"{allowed.low:.0f}" if allowed.low == allowed.high else f"{allowed.low:.0f} to {allowed.high:.0f}"
    looked_up = f"Prompts of {wanted} tokens in total were looked up"
    return [counter_finding(f"{looked_up}, but the engine's counter of queried tokens grew by {counted:.0f}")]


def more_hits_than_queries(history: History) -> list[Finding]:
    """Return a finding for the first step with more hits than queries."""
    for record in history.steps:
        hit = increase(record.before.hit_tokens, record.after.hit_tokens)
        queried = increase(record.before.queried_tokens, record.after.queried_tokens)
        if hit is not None and queried is not None and hit > queried:
            words = f"Step {record.step}: the engine's hit counter grew by {hit:.0f}, but its counter of queried tokens"
            return [counter_finding(f"{words} only by {queried:.0f}: a token cannot hit without a lookup")]
    return []


def counter_finding(words: str) -> Finding:
    """Return a finding about the engine's counters."""
    return Finding(checker="accounting", failure_class=FailureClass.ACCOUNTING, sentence=f"{words}.")


def among(history: History, steps: list[StepRecord]) -> list[Outcome]:
    """Return the requests of these steps."""
    numbers = {record.step for record in steps}
    return [o for o in history.outcomes if o.step in numbers]


def total(history: History, steps: list[StepRecord], allowed: Callable[[History, Outcome, bool], Span]) -> Span:
    """Return what all requests of these steps together may have added to a counter."""
    added = Span()
    for record in steps:
        preempted = record.after.preemptions != record.before.preemptions
        for outcome in among(history, [record]):
            lost = preempted and outcome.preemptions != 0  # None: it may have lost its blocks
            added += ANY if loads_failed(record) else allowed(history, outcome, lost)
    return added


def hits_allowed(history: History, outcome: Outcome, lost: bool) -> Span:
    """Return what one request may have added to the hits.

    A request that lost its blocks looks up its prompt again: vLLM counts the first lookup, others may count each. An
    aborted or refused request reports no count, and each of several answers does its own lookup.
    """
    reported = float(outcome.cached_tokens or 0)
    if not has_comparable_count(outcome):
        return Span(0.0, most(history, outcome, lost))
    if not lost:
        return Span(reported, reported)
    return Span(0.0, max(reported, at_most(history, outcome)) if history.shape.counts_first_lookups else math.inf)


def queries_allowed(history: History, outcome: Outcome, lost: bool) -> Span:
    """Return what one request may have added to the queries. If the answer needs the whole prompt, an
    engine may skip the lookup.
    """
    looked_up = has_comparable_count(outcome) and not outcome.options.needs_whole_prompt
    prompt, task = float(len(outcome.prompt)), outcome.options.pooled
    beside = 0 if task is None else task.beside
    return Span(prompt, prompt) if looked_up else Span(0.0, most(history, outcome, lost) + beside)


def most(history: History, outcome: Outcome, lost: bool) -> float:
    """Return the most that one request can add to a counter; inf if it may have been counted several times."""
    if lost and not history.shape.counts_first_lookups:
        return math.inf
    return float(outcome.options.answers * len(outcome.prompt))


def hits(metrics: Metrics, *, tiers: bool) -> float | None:
    """Return the hit tokens so far, including those of a second tier (`tiers`); None if unknown."""
    if not tiers or metrics.hit_tokens is None:
        return metrics.hit_tokens
    return None if metrics.external_hit_tokens is None else metrics.hit_tokens + metrics.external_hit_tokens


def has_comparable_count(outcome: Outcome) -> bool:
    """Return whether a request's reported count can be compared with the engine's counters."""
    return outcome.answered and outcome.cached_tokens is not None and outcome.options.answers == 1

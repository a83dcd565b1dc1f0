"""Cached-token counts must lie within the reference cache's bounds and agree with the engine's own counters."""

from __future__ import annotations

import itertools

from adapters.base import Metrics
from harness.checkers.finding import Finding
from harness.checkers.tokens import foreign_source
from harness.history import History, Outcome
from harness.reference_cache import Bounds, bounds, common_prefix, computed
from reports.schema import FailureClass


def check_bounds(history: History) -> list[Finding]:
    """Hits that should have been misses, and misses that should have been hits."""
    limits = bounds(history)
    found = []
    for outcome in history.outcomes:
        if outcome.error is None and outcome.cached_tokens is not None:
            found += check_one(history, outcome, limits[outcome.request])
    return found


def check_one(history: History, outcome: Outcome, limit: Bounds) -> list[Finding]:
    """One request against its bounds."""
    cached = outcome.cached_tokens or 0
    if cached > limit.at_most:
        source = foreign_source(history, outcome)
        whose = (
            written_before_a_reset(history, outcome, cached)
            if source is None
            else f"; request {source.request} wrote them for {source.identities[0]}"
        )
        return [
            Finding(
                checker="bounds",
                failure_class=FailureClass.ACCOUNTING if source is None else FailureClass.STALE_STATE,
                request=outcome.request,
                sentence=f"Request {outcome.request} hit {cached} cached tokens where at most {limit.at_most} were "
                f"ever computed for {outcome.identities[-1]}{whose}.",
            )
        ]
    if limit.at_least is not None and cached < limit.at_least:
        return [
            Finding(
                checker="bounds",
                failure_class=FailureClass.LOST_REUSE,
                request=outcome.request,
                sentence=f"Request {outcome.request} hit {cached} cached tokens where an earlier request had left "
                f"{limit.at_least} in a pool with room.",
            )
        ]
    return []


def written_before_a_reset(history: History, outcome: Outcome, cached: int) -> str:
    """Where blocks came from that no other identity wrote."""
    for other in history.outcomes:
        reset = any(r.success and other.finished <= r.began and r.ended <= outcome.sent for r in history.resets)
        same = set(other.identities) & set(outcome.identities)
        if reset and same and common_prefix(computed(other), outcome.prompt) >= cached:
            return f"; request {other.request} wrote them before a cache reset that reported success"
    return "; no request of this workload wrote them"


def check_accounting(history: History, *, exclusive: bool) -> list[Finding]:
    """The engine's hit counter must have grown by what it told request by request.

    Compared over the first steps, as far as every request told its count: one that was aborted or refused tells none,
    one that was preempted looks again, so does one whose load from a second tier failed, and each of several answers
    looks for itself. What a second tier gave is told with the rest and counted apart. Says nothing when the engine
    served others too (not `exclusive`), or where a counter is missing.
    """
    if not exclusive or history.engine_lost is not None:
        return []
    silent = {o.step for o in history.outcomes if not tells_its_count(o)}
    silent |= {
        r.step
        for r in history.steps
        if r.after.preemptions != r.before.preemptions or r.after.failed_loads != r.before.failed_loads
    }
    told_steps = list(itertools.takewhile(lambda record: record.step not in silent, history.steps))
    if not told_steps:
        return []
    tiers = history.shape.second_tier
    before, after = hits(told_steps[0].before, tiers=tiers), hits(told_steps[-1].after, tiers=tiers)
    if before is None or after is None:
        return []
    last = told_steps[-1].step
    told, counted = sum(o.cached_tokens or 0 for o in history.outcomes if o.step <= last), after - before
    if told == counted:
        return []
    return [
        Finding(
            checker="accounting",
            failure_class=FailureClass.ACCOUNTING,
            sentence=f"Requests were told of {told} cached tokens in all while the engine's hit counter grew by "
            f"{counted:.0f}.",
        )
    ]


def hits(metrics: Metrics, *, tiers: bool) -> float | None:
    """The tokens that were hit so far, in the pool and in a second tier if there is one; None where unknown."""
    if not tiers or metrics.hit_tokens is None:
        return metrics.hit_tokens
    return None if metrics.external_hit_tokens is None else metrics.hit_tokens + metrics.external_hit_tokens


def tells_its_count(outcome: Outcome) -> bool:
    """Whether what this request was told can be compared with what the engine counted for it."""
    return outcome.answered and outcome.cached_tokens is not None and outcome.surface.answers == 1

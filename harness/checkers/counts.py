"""Cached-token counts must lie within the reference cache's bounds and agree with the engine's own counters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import msgspec

from adapters.base import Metrics, grown
from harness.checkers.finding import Finding
from harness.checkers.tokens import foreign_source
from harness.history import History, Outcome, StepRecord
from harness.reference_cache import Bounds, at_most, bounds
from harness.tokens_computed import common_prefix, computed
from reports.schema import FailureClass


def check_bounds(history: History) -> list[Finding]:
    """Hits that should have been misses, and misses that should have been hits."""
    limits = bounds(history)
    found = []
    for outcome in history.outcomes:
        if outcome.error is None and outcome.hit_at_most is not None:
            found += check_one(history, outcome, limits[outcome.request])
    return found


def check_one(history: History, outcome: Outcome, limit: Bounds) -> list[Finding]:
    """One request against its bounds."""
    cached, at_most = outcome.hit_at_least, outcome.hit_at_most or 0
    low, high = (f"{cached}", f"{at_most}") if cached == at_most else (f"at least {cached}", f"at most {at_most}")
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
                sentence=f"Request {outcome.request} hit {low} cached tokens where at most {limit.at_most} "
                f"were ever computed for {outcome.identities[-1]}{whose}.",
            )
        ]
    if limit.at_least is not None and at_most < limit.at_least:
        return [
            Finding(
                checker="bounds",
                failure_class=FailureClass.LOST_REUSE,
                request=outcome.request,
                sentence=f"Request {outcome.request} hit {high} cached tokens where an earlier request had "
                f"left {limit.at_least}, and nothing had to push them out of the pool.",
            )
        ]
    return []


def written_before_a_reset(history: History, outcome: Outcome, cached: int) -> str:
    """Where blocks came from that no other identity wrote."""
    other = writer_before_a_reset(history, outcome, cached)
    if other is None:
        return "; no request of this workload wrote them"
    return f"; request {other.request} wrote them before a cache reset that reported success"


def writer_before_a_reset(history: History, outcome: Outcome, cached: int) -> Outcome | None:
    """Who of this identity had computed so much of the prompt before a reset that should have left nothing of it."""
    for other in history.outcomes:
        reset = any(r.success and other.finished <= r.began and r.ended <= outcome.sent for r in history.resets)
        same = set(other.identities) & set(outcome.identities)
        if reset and same and common_prefix(computed(other), outcome.prompt) >= cached:
            return other
    return None


class Span(msgspec.Struct, frozen=True):
    """How far a counter may rightly have gone."""

    low: float = 0.0
    high: float = 0.0

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.high + other.high)


ANY = Span(0.0, math.inf)


def check_accounting(history: History, *, exclusive: bool) -> list[Finding]:
    """The engine's counters must have grown by what it told request by request, and never by more hits than queries.

    Exactly so over the first steps, as far as every request told its count and none lost its blocks; behind them within
    what the others may have added. Says nothing when the engine served others too (not `exclusive`), or where a
    counter is missing.
    """
    if not exclusive or history.engine_lost is not None or not history.steps:
        return []
    exact = list(itertools.takewhile(lambda record: is_exact(history, record), history.steps))
    found: list[Finding] = []
    for steps in (exact, list(history.steps)):  # only sums: what a step counted may be published in the next look
        if steps and not found:
            found = [*hits_told(history, steps), *prompts_queried(history, steps)]
    return found or more_hits_than_queries(history)


def is_exact(history: History, record: StepRecord) -> bool:
    """Whether all that was counted in a step was also told."""
    calm = record.after.preemptions == record.before.preemptions and not loads_failed(record)
    return calm and all(tells_its_count(o) for o in history.outcomes if o.step == record.step)


def loads_failed(record: StepRecord) -> bool:
    """Whether a second tier let somebody down, who then looks again."""
    return record.after.failed_loads != record.before.failed_loads


def hits_told(history: History, steps: list[StepRecord]) -> list[Finding]:
    """The hits that were told, and those that were counted. What a second tier gave is told with the rest and counted
    apart."""
    tiers = history.shape.second_tier
    before, after = hits(steps[0].before, tiers=tiers), hits(steps[-1].after, tiers=tiers)
    if before is None or after is None:
        return []
    counted = after - before
    allowed = total(history, steps, hits_allowed)
    if allowed.low <= counted <= allowed.high:
        return []
    told = sum(o.cached_tokens or 0 for o in among(history, steps))
    sentence = f"Requests were told of {told} cached tokens in all while the engine's hit counter grew by {counted:.0f}"
    if counted > allowed.high and allowed.high > told:
        sentence += f", of which what was not told explains {allowed.high - told:.0f} at most"
    elif counted < allowed.low < told:
        sentence += f", and {allowed.low:.0f} of them by requests that looked up once"
    return [Finding(checker="accounting", failure_class=FailureClass.ACCOUNTING, sentence=f"{sentence}.")]


def prompts_queried(history: History, steps: list[StepRecord]) -> list[Finding]:
    """The tokens that were looked up, where each prompt is known to be counted once, as it is let in."""
    before, after = steps[0].before.queried_tokens, steps[-1].after.queried_tokens
    if before is None or after is None or not history.shape.counts_first_lookups or not history.shape.prefix_caching:
        return []
    allowed, counted = total(history, steps, queries_allowed), after - before
    if allowed.low <= counted <= allowed.high:
        return []
    wanted = f"{allowed.low:.0f}" if allowed.low == allowed.high else f"{allowed.low:.0f} to {allowed.high:.0f}"
    return [
        Finding(
            checker="accounting",
            failure_class=FailureClass.ACCOUNTING,
            sentence=f"Prompts of {wanted} tokens in all were looked up while the engine's counter of queried tokens "
            f"grew by {counted:.0f}.",
        )
    ]


def more_hits_than_queries(history: History) -> list[Finding]:
    """The first step in which more was hit than was looked up: the two are counted together."""
    for record in history.steps:
        hit = grown(record.before.hit_tokens, record.after.hit_tokens)
        queried = grown(record.before.queried_tokens, record.after.queried_tokens)
        if hit is not None and queried is not None and hit > queried:
            return [
                Finding(
                    checker="accounting",
                    failure_class=FailureClass.ACCOUNTING,
                    sentence=f"Step {record.step}: the engine's hit counter grew by {hit:.0f} while its counter of "
                    f"queried tokens grew by {queried:.0f}: nothing can be hit that was not looked up.",
                )
            ]
    return []


def among(history: History, steps: list[StepRecord]) -> list[Outcome]:
    """The requests of these steps."""
    numbers = {record.step for record in steps}
    return [o for o in history.outcomes if o.step in numbers]


def total(history: History, steps: list[StepRecord], allowed: Callable[[History, Outcome, bool], Span]) -> Span:
    """What all requests of these steps may have added to a counter."""
    added = Span()
    for record in steps:
        preempted = record.after.preemptions != record.before.preemptions
        for outcome in among(history, [record]):
            lost = preempted and outcome.preemptions != 0  # its blocks, perhaps: where nobody tells whose they were
            added += ANY if loads_failed(record) else allowed(history, outcome, lost)
    return added


def hits_allowed(history: History, outcome: Outcome, lost: bool) -> Span:
    """What one request may have added to the hits. One that lost its blocks looks again: vLLM counts the first look,
    others may count each. One that was aborted or refused tells nothing, and each of several answers looks for itself.
    """
    told = float(outcome.cached_tokens or 0)
    if not tells_its_count(outcome):
        return Span(0.0, most(history, outcome, lost))
    if not lost:
        return Span(told, told)
    return Span(0.0, max(told, at_most(history, outcome)) if history.shape.counts_first_lookups else math.inf)


def queries_allowed(history: History, outcome: Outcome, lost: bool) -> Span:
    """What one request may have added to the queries. Whoever asks for the prompt's scores may look nothing up."""
    looks = tells_its_count(outcome) and not outcome.surface.prompt_logprobs
    prompt = float(len(outcome.prompt))
    return Span(prompt, prompt) if looks else Span(0.0, most(history, outcome, lost))


def most(history: History, outcome: Outcome, lost: bool) -> float:
    """The most that one request can add to a counter; unknown where it may have been counted again and again."""
    if lost and not history.shape.counts_first_lookups:
        return math.inf
    return float(outcome.surface.answers * len(outcome.prompt))


def hits(metrics: Metrics, *, tiers: bool) -> float | None:
    """The tokens that were hit so far, in the pool and in a second tier if there is one; None where unknown."""
    if not tiers or metrics.hit_tokens is None:
        return metrics.hit_tokens
    return None if metrics.external_hit_tokens is None else metrics.hit_tokens + metrics.external_hit_tokens


def tells_its_count(outcome: Outcome) -> bool:
    """Whether what this request was told can be compared with what the engine counted for it."""
    return outcome.answered and outcome.cached_tokens is not None and outcome.surface.answers == 1

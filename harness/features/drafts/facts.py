"""How many drafts of speculative decoding were accepted for a request, from the counters around the step that sent it.

Engines count for all requests together, so this is known of a request that was alone on the engine. Pure.
"""

from __future__ import annotations

import msgspec

from coldproof.adapters.protocol.metrics import increase
from coldproof.harness.history.records import History, Outcome, StepRecord


class DraftCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that were drafted and verified, and those of them that were accepted."""

    drafted: int
    accepted: int

    def __str__(self) -> str:
        return f"{self.accepted} of {self.drafted}"


def counts_of_step(record: StepRecord) -> DraftCounts | None:
    """Return the drafts of a step; None if the engine does not count them."""
    drafted = increase(record.before.drafted_tokens, record.after.drafted_tokens)
    accepted = increase(record.before.accepted_tokens, record.after.accepted_tokens)
    if drafted is None or accepted is None:
        return None
    return DraftCounts(drafted=round(drafted), accepted=round(accepted))


def counts_of_requests(history: History) -> list[tuple[Outcome, DraftCounts]]:
    """Return the answered requests that were alone and not preempted, each with its drafts."""
    found, outcomes = [], {outcome.step: outcome for outcome in history.outcomes}
    for record in history.steps:
        step, counts = history.workload.steps[record.step], counts_of_step(record)
        if counts is None or len(step.requests) != 1 or step.meanwhile is not None:
            continue
        outcome = outcomes.get(record.step)
        preempted = record.before.preemptions != record.after.preemptions
        plain = outcome is not None and outcome.options.answers == 1 and not outcome.session
        if outcome is not None and plain and outcome.answered and not preempted:
            found.append((outcome, counts))
    return found


class ColdAndHit(msgspec.Struct, frozen=True, kw_only=True):
    """A request that hit, and one with the same prompt and answer that did not, each with its drafts."""

    hit: Outcome
    hit_counts: DraftCounts
    cold: Outcome
    cold_counts: DraftCounts


def cold_and_hit(history: History) -> list[ColdAndHit]:
    """Return each request that hit with its cold counterpart: the one with the fewest accepted drafts, if there are
    several. A counterpart may have another salt, which no draft depends on.
    """
    counted = counts_of_requests(history)
    pairs = []
    for outcome, counts in counted:
        if outcome.hit_at_least == 0:
            continue
        cold = [
            (o, c) for o, c in counted if o.hit_at_most == 0 and what_drafts_follow(o) == what_drafts_follow(outcome)
        ]
        if cold:
            other, fewest = min(cold, key=lambda one: one[1].accepted)
            pairs.append(ColdAndHit(hit=outcome, hit_counts=counts, cold=other, cold_counts=fewest))
    return pairs


def what_drafts_follow(outcome: Outcome) -> object:
    """Return all that the drafts of a request depend on beside the cache."""
    content = [(one.adapter, one.weights, one.engine) for one in outcome.identities]
    return content, outcome.prompt, outcome.token_ids, outcome.max_tokens, outcome.options

"""Evidence about speculative decoding: drafts that were accepted and rejected, also on a hit. Pure."""

from __future__ import annotations

from coldproof.harness.history.drafts import cold_and_hit, counts_of_step
from coldproof.harness.history.records import History, Outcome, StepRecord
from coldproof.harness.judgement.evidence.names import Evidence


def draft_facts(history: History) -> dict[str, float]:
    """Return the counters of drafts. They are zero if the engine does not count drafts."""
    known = [counts for counts in map(counts_of_step, history.steps) if counts is not None]
    drafting = {record.step for record in history.steps if drafted(record)}
    accepted = sum(counts.accepted for counts in known)
    pairs = [pair for pair in cold_and_hit(history) if pair.cold_counts.accepted] if drafting else []
    return {
        Evidence.DRAFTS_ACCEPTED: accepted,
        Evidence.DRAFTS_REJECTED: sum(counts.drafted for counts in known) - accepted,
        Evidence.HITS_WITH_DRAFTS: sum(o.hit_at_least > 0 for o in history.outcomes if o.step in drafting),
        Evidence.DRAFT_PAIRS: len(pairs),
        Evidence.BESIDE_LIMIT: sum(beside_a_full_context(history, o) for o in history.outcomes if drafting),
    }


def drafted(record: StepRecord) -> bool:
    """Return whether any token was drafted in a step."""
    counts = counts_of_step(record)
    return counts is not None and counts.drafted > 0


def beside_a_full_context(history: History, outcome: Outcome) -> bool:
    """Return whether a request ran beside one that leaves no room for drafts: its answer ends at the context limit."""
    longest = history.shape.max_model_tokens
    return len(outcome.prompt) + outcome.max_tokens < longest and any(
        other.step == outcome.step and len(other.prompt) + other.max_tokens >= longest for other in history.outcomes
    )

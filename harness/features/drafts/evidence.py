"""Evidence about speculative decoding: drafts that were accepted and rejected, also on a hit. Pure."""

from __future__ import annotations

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.drafts.facts import cold_and_hit, counts_of_step
from coldproof.harness.history.records import History, Outcome, StepRecord
from coldproof.harness.judgement.counters import Evidence, Trait, computes


class Drafts(Evidence):
    """Drafts of speculative decoding."""

    ACCEPTED = "drafted tokens that were accepted", Capability.DRAFT_COUNTS
    REJECTED = "drafted tokens that were rejected"
    HITS = "hits in bursts in which tokens were drafted"
    PAIRS = "hits whose accepted drafts were compared with those of the same prompt without a hit", Trait.EXCLUSIVE
    BESIDE_LIMIT = "requests beside one that ends at the context limit, with speculative decoding"


@computes(Drafts, order=180)
def draft_facts(history: History) -> dict[str, float]:
    """Return the counters of drafts. They are zero if the engine does not count drafts."""
    known = [counts for counts in map(counts_of_step, history.steps) if counts is not None]
    drafting = {record.step for record in history.steps if drafted(record)}
    accepted = sum(counts.accepted for counts in known)
    pairs = [pair for pair in cold_and_hit(history) if pair.cold_counts.accepted] if drafting else []
    return {
        Drafts.ACCEPTED: accepted,
        Drafts.REJECTED: sum(counts.drafted for counts in known) - accepted,
        Drafts.HITS: sum(o.hit_at_least > 0 for o in history.outcomes if o.step in drafting),
        Drafts.PAIRS: len(pairs),
        Drafts.BESIDE_LIMIT: sum(beside_a_full_context(history, o) for o in history.outcomes if drafting),
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

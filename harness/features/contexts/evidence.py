"""Evidence about contexts that are too short for an answer. Pure."""

from __future__ import annotations

from coldproof.harness.history.records import (
    History,
    Outcome,
    common_prefix,
    written_tokens,
)
from coldproof.harness.judgement.counters import Evidence, computes
from coldproof.harness.judgement.reference_cache import MIN_SHARED
from coldproof.harness.judgement.request_sizes import outgrows


class Contexts(Evidence):
    """Contexts that are too short."""

    OUTGROWN = "answers longer than their context"
    AFTER_OUTGROWN = "requests that share a prefix with an earlier one longer than its context"
    CUT_HISTORY = "prompts that begin with a later part of an earlier request and its answer"


@computes(Contexts, order=102)
def context_facts(history: History) -> dict[str, float]:
    """Return the counters of short contexts."""
    return {
        Contexts.OUTGROWN: sum(o.answered and outgrows(history, o) for o in history.outcomes),
        Contexts.AFTER_OUTGROWN: sum(o.answered and after_outgrown(history, o) for o in history.outcomes),
        Contexts.CUT_HISTORY: sum(o.answered and o.request in later_parts(history) for o in history.outcomes),
    }


def after_outgrown(history: History, outcome: Outcome) -> bool:
    """Return whether a request that fits its context shares a prefix with an earlier one that exceeded its context."""
    return not outgrows(history, outcome) and any(
        outgrows(history, o)
        and o.finished <= outcome.sent
        and common_prefix(written_tokens(o), outcome.prompt) >= MIN_SHARED
        for o in history.outcomes
    )


def later_parts(history: History) -> set[int]:
    """Return the requests that leave out the beginning of the history that they continue."""
    return {number for number, _, request in history.workload.requests() if request.prompt.start}

"""Evidence about changes of adapters, and about what a request could have hit of another identity. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from coldproof.harness.history.adapter_changes import change_of, changes_adapter, content_returned, same_path_reloads
from coldproof.harness.history.records import History, Identity, Outcome, assumed_block, common_prefix, written_tokens
from coldproof.harness.judgement.checkers.tokens import differs
from coldproof.harness.judgement.counters import Evidence, computes
from coldproof.harness.judgement.mixtures import concurrent
from coldproof.harness.judgement.oracle import Answers, Question, distinguishing_question
from coldproof.harness.schema.evidence import ReportedEvidence
from coldproof.harness.workload.steps import Route


def older_identities(history: History) -> Iterator[tuple[Outcome, Identity]]:
    """Yield (request, other identity) for each chance of a stale hit: the other one computed a block of its prompt."""
    block = assumed_block(history)
    for outcome in history.outcomes:
        for other in history.outcomes:
            before = other.request != outcome.request and other.sent <= outcome.sent
            if before and common_prefix(written_tokens(other), outcome.prompt) >= block:
                for identity in set(other.identities) - set(outcome.identities):
                    yield outcome, identity


def distinguishing_questions(history: History) -> Iterator[Question]:
    """Yield what to ask to know whether a stale hit would change the answer."""
    return (distinguishing_question(outcome, identity) for outcome, identity in older_identities(history))


class Adapters(Evidence):
    """Changes of adapters, requests around them, and what blocks of another identity could be hit."""

    WARM_HITS = "hits before an adapter change"
    IN_PLACE_RELOADS = "in-place reloads acknowledged"
    UNLOAD_LOADS = "unload + load acknowledged"
    SWITCHES = "adapter switches for all requests"
    SAME_PATH_RELOADS = "reloads from the same path with changed files"
    STALE_CHANCES = "requests that could have hit another identity's blocks"
    DISCRIMINATING = ReportedEvidence.DISCRIMINATING.value
    RETURNS = "requests after an earlier content came back"
    AFTER_OVERLAP = "requests that could have hit blocks written across a change"
    OVERLAPPED = "requests running while their adapter was changed"
    TOGETHER = "concurrent requests"
    MIXED = "concurrent base and adapter requests"
    BEYOND_SLOTS = "adapter names in use beyond the engine's slots"


@computes(Adapters, order=20, asks=distinguishing_questions)
def adapter_facts(history: History, answers: Answers) -> dict[str, float]:
    """Return the counters of changes, of requests around them, and of requests that ran at the same time."""
    outcomes = [o for o in history.outcomes if o.error is None]
    older = [(o, i) for o, i in older_identities(history) if o.error is None]
    changes = [r.step for r in history.steps if changes_adapter(history, r.step) and r.error is None]
    routes = [change for step in changes if (change := change_of(history, step)) is not None]
    return {
        Adapters.WARM_HITS: sum(o.hit_at_least > 0 and o.step < max(changes, default=0) for o in outcomes),
        Adapters.IN_PLACE_RELOADS: sum(c.route is Route.IN_PLACE for c in routes),
        Adapters.UNLOAD_LOADS: sum(c.route is Route.UNLOAD_LOAD for c in routes),
        Adapters.SWITCHES: sum(c.route is Route.SWITCH for c in routes),
        Adapters.SAME_PATH_RELOADS: same_path_reloads(history),
        Adapters.STALE_CHANCES: len({o.request for o, _ in older}),
        Adapters.DISCRIMINATING: len({o.request for o, i in older if differs(o, i, answers)}),
        Adapters.RETURNS: sum(content_returned(history, o) for o in outcomes),
        Adapters.AFTER_OVERLAP: sum(after_overlap(history, o) for o in outcomes),
        Adapters.OVERLAPPED: sum(o.overlapped for o in outcomes),
        Adapters.TOGETHER: sum(bool(concurrent(history, o)) for o in outcomes),
        Adapters.MIXED: sum(
            any((p.partition.name is None) != (o.partition.name is None) for p in concurrent(history, o))
            for o in outcomes
        ),
        Adapters.BEYOND_SLOTS: beyond_slots(history),
    }


def after_overlap(history: History, outcome: Outcome) -> bool:
    """Return whether a whole block of an overlapped request's answer could be hit under the identity it began with."""
    block = assumed_block(history)
    return any(
        other.overlapped
        and not outcome.overlapped
        and other.identities[0] == outcome.identities[0]
        and common_prefix(written_tokens(other), outcome.prompt) // block * block > len(other.prompt)
        for other in history.outcomes
    )


def beyond_slots(history: History) -> int:
    """Return how many more adapter names this history used than the engine has slots."""
    slots = history.shape.adapter_slots
    names = {o.partition.name for o in history.outcomes if o.partition.name is not None}
    return 0 if slots is None else max(0, len(names) - slots)

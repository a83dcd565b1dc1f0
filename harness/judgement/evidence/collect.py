"""Counts the evidence that a requirement was exercised.

A requirement names the evidence that it needs. If one of these counters is zero over all examples, the verdict is
NOT EXERCISED. Pure functions of a history and the oracle's answers.
"""

from __future__ import annotations

from collections.abc import Iterator

from coldproof.harness.history.records import History, Identity, Outcome, assumed_block, common_prefix, written_tokens
from coldproof.harness.judgement.checkers.tokens import differs
from coldproof.harness.judgement.evidence.cache import control_facts, pressure_facts, reuse_facts, surface_facts
from coldproof.harness.judgement.evidence.doors import door_facts
from coldproof.harness.judgement.evidence.drafts import draft_facts
from coldproof.harness.judgement.evidence.embeddings import embedding_facts
from coldproof.harness.judgement.evidence.engine_features import event_facts, mode_facts, tier_facts
from coldproof.harness.judgement.evidence.image_caches import image_cache_facts
from coldproof.harness.judgement.evidence.images import image_facts
from coldproof.harness.judgement.evidence.names import Evidence
from coldproof.harness.judgement.evidence.pooling import pooling_facts
from coldproof.harness.judgement.evidence.prefill_decode import transfer_facts
from coldproof.harness.judgement.evidence.ranks import rank_facts
from coldproof.harness.judgement.evidence.sessions import session_facts
from coldproof.harness.judgement.evidence.weights import weight_facts
from coldproof.harness.judgement.oracle import Answers
from coldproof.harness.workload.steps import Burst, Meanwhile, Route, SetAdapter


def evidence(history: History, answers: Answers) -> dict[str, float]:
    """Return all evidence counters of one history."""
    outcomes = [o for o in history.outcomes if o.error is None]
    older = [(o, i) for o, i in older_identities(history) if o.error is None]
    changes = [r.step for r in history.steps if changes_adapter(history, r.step) and r.error is None]
    routes = [change for step in changes if (change := change_of(history, step)) is not None]
    return {
        Evidence.REQUESTS: len(outcomes),
        Evidence.HIT_TOKENS: sum(o.hit_at_least for o in outcomes),
        Evidence.HITS: sum(o.hit_at_least > 0 for o in outcomes),
        Evidence.WARM_HITS: sum(o.hit_at_least > 0 and o.step < max(changes, default=0) for o in outcomes),
        Evidence.IN_PLACE_RELOADS: sum(c.route is Route.IN_PLACE for c in routes),
        Evidence.UNLOAD_LOADS: sum(c.route is Route.UNLOAD_LOAD for c in routes),
        Evidence.SWITCHES: sum(c.route is Route.SWITCH for c in routes),
        Evidence.SAME_PATH_RELOADS: same_path_reloads(history),
        Evidence.STALE_CHANCES: len({o.request for o, _ in older}),
        Evidence.TELLING: len({o.request for o, i in older if differs(o, i, answers)}),
        Evidence.RETURNS: sum(content_returned(history, o) for o in outcomes),
        Evidence.AFTER_OVERLAP: sum(after_overlap(history, o) for o in outcomes),
        Evidence.OVERLAPPED: sum(o.overlapped for o in outcomes),
        Evidence.TOGETHER: sum(bool(concurrent(history, o)) for o in outcomes),
        Evidence.MIXED: sum(
            any((p.residence.name is None) != (o.residence.name is None) for p in concurrent(history, o))
            for o in outcomes
        ),
        Evidence.BEYOND_SLOTS: beyond_slots(history),
        Evidence.SALTED_HITS: sum(o.hit_at_least > 0 and o.residence.salt is not None for o in outcomes),
        **reuse_facts(history),
        **pressure_facts(history),
        **control_facts(history),
        **surface_facts(history),
        **event_facts(history),
        **tier_facts(history),
        **mode_facts(history),
        **embedding_facts(history),
        **door_facts(history),
        **image_facts(history),
        **image_cache_facts(history),
        **weight_facts(history),
        **rank_facts(history),
        **draft_facts(history),
        **transfer_facts(history),
        **pooling_facts(history),
        **session_facts(history),
    }


def older_identities(history: History) -> Iterator[tuple[Outcome, Identity]]:
    """Yield (request, other identity) for each chance of a stale hit: the other one computed a block of its prompt."""
    block = assumed_block(history)
    for outcome in history.outcomes:
        for other in history.outcomes:
            before = other.request != outcome.request and other.sent <= outcome.sent
            if before and common_prefix(written_tokens(other), outcome.prompt) >= block:
                for identity in set(other.identities) - set(outcome.identities):
                    yield outcome, identity


def change_of(history: History, step: int) -> SetAdapter | None:
    """Return the adapter change of a step, on its own or during a burst; None if it has none."""
    match history.workload.steps[step]:
        case SetAdapter() as change:
            return change
        case Burst(meanwhile=Meanwhile(change=SetAdapter() as change)):
            return change
    return None


def changes_adapter(history: History, step: int) -> bool:
    """Return whether a step replaces the content of an adapter name. A first load replaces nothing."""
    change = change_of(history, step)
    return change is not None and change.route is not Route.LOAD


def same_path_reloads(history: History) -> int:
    """Return the number of acknowledged loads from a path that had another content's files before."""
    contents: dict[str, str] = {}
    count = 0
    for record in history.steps:
        change = change_of(history, record.step)
        if change is None:
            continue
        count += contents.get(change.path, change.content) != change.content and record.error is None
        contents[change.path] = change.content
    return count


def content_returned(history: History, outcome: Outcome) -> bool:
    """Return whether the request's adapter name had this content before, then another, and has this one again."""
    seen: list[str] = []
    for record in history.steps[: outcome.step]:
        change = change_of(history, record.step)
        same_name = change is not None and change.name == outcome.residence.name and record.error is None
        if change is not None and same_name and seen[-1:] != [change.content]:
            seen.append(change.content)
    return seen[-1:] != [] and seen[-1] in seen[:-1]


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


def concurrent(history: History, outcome: Outcome) -> list[Outcome]:
    """Return the requests that were in flight at the same time as this one."""
    return [
        other
        for other in history.outcomes
        if other.request != outcome.request and other.sent < outcome.finished and outcome.sent < other.finished
    ]


def beyond_slots(history: History) -> int:
    """Return how many more adapter names this history used than the engine has slots."""
    slots = history.shape.adapter_slots
    names = {o.residence.name for o in history.outcomes if o.residence.name is not None}
    return 0 if slots is None else max(0, len(names) - slots)

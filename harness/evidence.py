"""The facts that show that a requirement was really exercised.

A requirement names the facts it cannot do without; if one of them stays at zero over all examples, the verdict is
NOT EXERCISED. Pure functions of a history and the oracle's answers.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.checkers.tokens import differs
from harness.evidence_cache import control_facts, pressure_facts, reuse_facts, surface_facts
from harness.evidence_events import event_facts
from harness.evidence_modes import mode_facts
from harness.evidence_tiers import tier_facts
from harness.facts import Evidence
from harness.history import History, Identity, Outcome
from harness.oracle.base import Answers
from harness.tokens_computed import common_prefix, computed
from harness.workload import Burst, Meanwhile, Route, SetAdapter


def evidence(history: History, answers: Answers) -> dict[str, float]:
    """All counters of one history."""
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
        Evidence.RETURNS: sum(returned(history, o) for o in outcomes),
        Evidence.AFTER_OVERLAP: sum(after_overlap(history, o) for o in outcomes),
        Evidence.OVERLAPPED: sum(o.overlapped for o in outcomes),
        Evidence.TOGETHER: sum(bool(beside(history, o)) for o in outcomes),
        Evidence.MIXED: sum(
            any((p.residence.name is None) != (o.residence.name is None) for p in beside(history, o)) for o in outcomes
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
    }


def older_identities(history: History) -> Iterator[tuple[Outcome, Identity]]:
    """(request, other identity) where blocks of another identity lay ready for the request's prompt.

    That is the very thing that must not be hit. A block is the smallest unit of reuse, so less than one is no chance.
    """
    block = history.shape.block_size or 16
    for outcome in history.outcomes:
        for other in history.outcomes:
            if other.request == outcome.request or other.sent > outcome.sent:
                continue
            if common_prefix(computed(other), outcome.prompt) < block:
                continue
            for identity in set(other.identities) - set(outcome.identities):
                yield outcome, identity


def change_of(history: History, step: int) -> SetAdapter | None:
    """The adapter change in a step, alone or in the midst of a burst."""
    match history.workload.steps[step]:
        case SetAdapter() as change:
            return change
        case Burst(meanwhile=Meanwhile(change=SetAdapter() as change)):
            return change
    return None


def changes_adapter(history: History, step: int) -> bool:
    """Whether a step replaces what is behind a name (a first load replaces nothing)."""
    change = change_of(history, step)
    return change is not None and change.route is not Route.LOAD


def same_path_reloads(history: History) -> int:
    """Acknowledged loads from a path whose files had been another content's."""
    held: dict[str, str] = {}
    count = 0
    for record in history.steps:
        change = change_of(history, record.step)
        if change is None:
            continue
        count += held.get(change.path, change.content) != change.content and record.error is None
        held[change.path] = change.content
    return count


def returned(history: History, outcome: Outcome) -> bool:
    """Whether the request's content had been behind its name, then another, and is again."""
    seen: list[str] = []
    for record in history.steps[: outcome.step]:
        change = change_of(history, record.step)
        mine = change is not None and change.name == outcome.residence.name and record.error is None
        if change is not None and mine and seen[-1:] != [change.content]:
            seen.append(change.content)
    return seen[-1:] != [] and seen[-1] in seen[:-1]


def after_overlap(history: History, outcome: Outcome) -> bool:
    """Whether a whole block of an overlapped request's answer lay ready under the identity it began with."""
    block = history.shape.block_size or 16
    return any(
        other.overlapped
        and not outcome.overlapped
        and other.identities[0] == outcome.identities[0]
        and common_prefix(computed(other), outcome.prompt) // block * block > len(other.prompt)
        for other in history.outcomes
    )


def beside(history: History, outcome: Outcome) -> list[Outcome]:
    """Requests whose life overlapped this one's."""
    return [
        other
        for other in history.outcomes
        if other.request != outcome.request and other.sent < outcome.finished and outcome.sent < other.finished
    ]


def beyond_slots(history: History) -> int:
    """How many more adapter names this history used than the engine holds slots for."""
    slots = history.shape.adapter_slots
    names = {o.residence.name for o in history.outcomes if o.residence.name is not None}
    return 0 if slots is None else max(0, len(names) - slots)


__all__ = ["Evidence", "evidence"]

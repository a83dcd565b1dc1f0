"""Which mixtures of models a history has in a batch: GROUND-1 may forbid them, and then they explain wrong answers."""

from __future__ import annotations

from coldproof.harness.history.records import History, Outcome
from coldproof.harness.workload.generators.prompts import ADAPTERS_TOGETHER, BASE_WITH_ADAPTER


def mixtures_of(history: History, about: int | None = None) -> frozenset[str]:
    """Return the mixtures of models that requests of a history had in flight at once.

    `about`: only those of requests sent before this one was answered. A wrong row may also leave wrong KV, so that a
    later request is wrong which is in no such batch itself.
    """
    until = next((o.finished for o in history.outcomes if o.request == about), None)
    pairs = {
        (one.partition.name, other.partition.name)
        for one in history.outcomes
        if until is None or one.sent < until
        for other in concurrent(history, one)
        if one.partition.name != other.partition.name
    }
    return frozenset(BASE_WITH_ADAPTER if None in pair else ADAPTERS_TOGETHER for pair in pairs)


def concurrent(history: History, outcome: Outcome) -> list[Outcome]:
    """Return the requests that were in flight at the same time as this one."""
    return [
        other
        for other in history.outcomes
        if other.request != outcome.request and other.sent < outcome.finished and outcome.sent < other.finished
    ]

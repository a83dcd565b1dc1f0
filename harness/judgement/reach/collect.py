"""Counts the abstract states that a history has reached. A pure function."""

from __future__ import annotations

from collections import Counter

from coldproof.harness.history.records import History
from coldproof.harness.judgement.reach.model import Needs
from coldproof.harness.judgement.reach.states import REGISTERED, absent
from coldproof.harness.judgement.reach.timeline import Timeline


def reached(history: History) -> dict[str, int]:
    """Return how often a history met each cell that it met.

    A cell that cannot exist in a conforming engine is not counted: a checker reports what is wrong.
    """
    timeline = Timeline(history)
    counts: Counter[str] = Counter()
    for part in REGISTERED.load():
        counts.update("/".join(cell) for cell in part.function(timeline))
    return {cell: count for cell, count in sorted(counts.items()) if cell not in absent()}


def seen_by(history: History) -> list[Needs]:
    """Return what this history shows, so that families that need it could be met."""
    counted = any(o.cached_tokens is not None for o in history.outcomes)
    has = {
        Needs.COUNTS: counted or history.engine_steps is not None,
        Needs.STEPS: history.engine_steps is not None,
        Needs.TIER: history.shape.second_tier,
    }
    return [need for need, holds in has.items() if holds]

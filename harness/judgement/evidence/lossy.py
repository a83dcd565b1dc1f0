"""Evidence about KV that is reused at other positions, which a lossy mode may do. Pure."""

from __future__ import annotations

from coldproof.harness.history.non_prefix_reuse import may_be_changed
from coldproof.harness.history.records import (
    History,
    Outcome,
    common_prefix,
    written_tokens,
)
from coldproof.harness.judgement.counters import Evidence, computes
from coldproof.harness.judgement.reference_cache import by_chance


class Lossy(Evidence):
    """Reuse at other positions."""

    MOVED = "prompt tokens reused at another position"
    MAY_BE_CHANGED = "answers that a lossy mode may have changed"


@computes(Lossy, order=101)
def lossy_facts(history: History) -> dict[str, float]:
    """Return the counters of reuse at other positions."""
    return {
        Lossy.MOVED: sum(moved_tokens(history, o) for o in history.outcomes),
        Lossy.MAY_BE_CHANGED: sum(o.error is None and o.request in may_be_changed(history) for o in history.outcomes),
    }


def moved_tokens(history: History, outcome: Outcome) -> int:
    """Return the hit tokens beyond any computed prefix, which were reused from other positions."""
    if not history.shape.moves_pieces_of:
        return 0
    others = (o for o in history.outcomes if o.request != outcome.request and o.sent < outcome.finished)
    prefix = max((common_prefix(written_tokens(o), outcome.prompt) for o in others), default=0)
    return max(0, outcome.hit_at_least - max(prefix, by_chance(history.shape)))

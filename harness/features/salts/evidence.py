"""Evidence about requests with a salt. Pure."""

from __future__ import annotations

from coldproof.harness.history.records import History
from coldproof.harness.judgement.counters import Evidence, computes


class Salts(Evidence):
    """Requests with a salt."""

    HITS = "hits under a salt"


@computes(Salts, order=30)
def salt_facts(history: History) -> dict[str, float]:
    """Return the counter of hits under a salt."""
    outcomes = [o for o in history.outcomes if o.error is None]
    return {Salts.HITS: sum(o.hit_at_least > 0 and o.partition.salt is not None for o in outcomes)}

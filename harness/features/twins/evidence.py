"""Evidence about requests that ran with two implementations of one part. Pure."""

from __future__ import annotations

from coldproof.harness.features.twins.checks import changes_of_each
from coldproof.harness.history.records import History
from coldproof.harness.history.twins import hits_of_twins, twins
from coldproof.harness.judgement.counters import Evidence, Trait, computes


class Twins(Evidence):
    """Requests that ran with both implementations, and what was compared."""

    COMPARED = "requests that ran with both implementations"
    HITS = "requests that hit with the other implementation", Trait.HIT_COUNTS
    EVENTS = "KV events that both implementations published"


@computes(Twins, order=108)
def twin_facts(history: History) -> dict[str, float]:
    """Return the counters of requests that ran twice."""
    return {
        Twins.COMPARED: len(twins(history)),
        Twins.HITS: sum(hit > 0 for hit in hits_of_twins(history).values()),
        Twins.EVENTS: min((len(changes) for changes in changes_of_each(history)), default=0),
    }

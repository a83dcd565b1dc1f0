"""Evidence about requests and hits of any kind. Pure."""

from __future__ import annotations

from coldproof.harness.history.records import History
from coldproof.harness.judgement.counters import Evidence, Trait, computes
from coldproof.harness.schema.evidence import ReportedEvidence


class Requests(Evidence):
    """Requests and hits of any kind."""

    REQUESTS = "requests"
    HIT_TOKENS = ReportedEvidence.HIT_TOKENS.value
    HITS = "requests that hit the cache", Trait.HIT_COUNTS


@computes(Requests, order=10)
def request_facts(history: History) -> dict[str, float]:
    """Return the counters of requests that were answered, and of those that hit."""
    outcomes = [o for o in history.outcomes if o.error is None]
    return {
        Requests.REQUESTS: len(outcomes),
        Requests.HIT_TOKENS: sum(o.hit_at_least for o in outcomes),
        Requests.HITS: sum(o.hit_at_least > 0 for o in outcomes),
    }

"""Evidence about aborts of requests that wait. Pure."""

from __future__ import annotations

from coldproof.adapters.protocol.requests import Stage
from coldproof.harness.features.resets.workloads import BEHIND
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.counters import Evidence, computes


class Queues(Evidence):
    """Requests in a queue that others leave."""

    BEHIND = BEHIND


@computes(Queues, order=65)
def queue_facts(history: History) -> dict[str, float]:
    """Return the counter of answered requests that waited behind one which was aborted in the queue."""
    victims = [o for o in history.outcomes if o.aborted is Stage.QUEUED]
    return {BEHIND: sum(o.answered and any(waited_behind(o, victim) for victim in victims) for o in history.outcomes)}


def waited_behind(outcome: Outcome, victim: Outcome) -> bool:
    """Return whether a request came after another one, which left the queue before this one had a token."""
    first = min((token.at for token in outcome.tokens), default=None)
    return first is not None and victim.sent < outcome.sent < victim.finished < outcome.sent + first

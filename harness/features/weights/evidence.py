"""Evidence about updates of the weights and pauses. Pure."""

from __future__ import annotations

from collections.abc import Callable

from coldproof.adapters.protocol.weights import PauseMode, WeightRoute
from coldproof.harness.features.weights.workloads import ASLEEP
from coldproof.harness.history.records import History, Outcome, PauseRecord
from coldproof.harness.history.weights import (
    CLOCK_ERROR,
    acknowledged,
    computing_since,
    cuts,
    is_comparable,
    latest_update,
    updates_during,
)
from coldproof.harness.judgement.counters import Evidence, computes
from coldproof.harness.judgement.weight_pairs import could_hit_others, shares_a_block

Did = Callable[[Outcome, PauseRecord], bool]


class Weights(Evidence):
    """Updates of the weights, and the requests after them and over them."""

    UPDATES = "updates of the weights"
    UPDATES_FROM_PATH = "updates of the weights from another path"
    UPDATES_SAME_PATH = "updates of the weights from the same path"
    UPDATES_IN_PLACE = "updates of the weights in place"
    UPDATES_TRANSFER = "updates of the weights by transfer"
    AFTER_UPDATE = "requests that could have hit blocks of other weights"
    RETURNS = "requests after earlier weights came back"
    ADAPTERS_AFTER_UPDATE = "adapter requests that could have hit blocks of other base weights"
    OLD_HITS = "hits after an update, before the invalidation (not compared)"
    IN_FLIGHT = "requests in flight over an update of the weights"
    AFTER_IN_FLIGHT = "requests that could have hit blocks written over an update"
    AFTER_IN_FLIGHT_SALT = "requests with the version as salt that could have hit blocks written over an update"
    CONTINUED = "answers continued under new weights"


@computes(Weights, order=150)
def weight_facts(history: History) -> dict[str, float]:
    """Return the counters of updates and of the requests after them and over them."""
    made, judged = acknowledged(history.updates), judged_after_update(history)
    crossing = [o for o in history.outcomes if o.error is None and updates_during(history, o)]
    after_flight = [o for o in judged if any(shares_a_block(history, c, o) for c in crossing if c.sent < o.sent)]
    return {
        Weights.UPDATES: len(made),
        Weights.UPDATES_FROM_PATH: sum(u.route is WeightRoute.PATH for u in made),
        Weights.UPDATES_SAME_PATH: sum(u.route is WeightRoute.SAME_PATH for u in made),
        Weights.UPDATES_IN_PLACE: sum(u.route is WeightRoute.IN_PLACE for u in made),
        Weights.UPDATES_TRANSFER: sum(u.route is WeightRoute.TRANSFER for u in made),
        Weights.AFTER_UPDATE: sum(could_hit_others(history, o) for o in judged),
        Weights.RETURNS: sum(weights_returned(history, o) for o in judged),
        Weights.ADAPTERS_AFTER_UPDATE: sum(
            o.partition.name is not None and could_hit_others(history, o) for o in judged
        ),
        Weights.OLD_HITS: sum(
            o.hit_at_least > 0 and not is_comparable(history, o) and not updates_during(history, o)
            for o in history.outcomes
        ),
        Weights.IN_FLIGHT: len(crossing),
        Weights.AFTER_IN_FLIGHT: len(after_flight),
        Weights.AFTER_IN_FLIGHT_SALT: sum(o.partition.salt is not None for o in after_flight),
        Weights.CONTINUED: sum(any(c.clear and 0 < c.low < len(o.tokens) for c in cuts(history, o)) for o in crossing),
    }


class Pauses(Evidence):
    """Requests in flight at a pause, and those that waited during one."""

    ENDED_BY_PAUSE = "requests that a pause ended"
    FINISHED_BEFORE_PAUSE = "requests that a pause waited for"
    KEPT_OVER_PAUSE = "requests kept over a pause"
    QUEUED_IN_PAUSE = "requests that waited during a pause"
    ASLEEP = ASLEEP
    SLEEPS = "sleeps that discarded the KV"
    DEEP_SLEEPS = "sleeps that discarded the weights"


@computes(Pauses, order=160)
def pause_facts(history: History) -> dict[str, float]:
    """Return the counters of requests in flight at a pause, and of those that waited during one."""
    pauses = [pause for pause in history.pauses if pause.error is None]
    return {
        Pauses.ENDED_BY_PAUSE: count(history, pauses, PauseMode.ABORT, lambda o, _: o.aborted is not None),
        Pauses.FINISHED_BEFORE_PAUSE: count(
            history, pauses, PauseMode.WAIT, lambda o, p: o.finished <= p.ended + CLOCK_ERROR
        ),
        Pauses.KEPT_OVER_PAUSE: count(
            history, pauses, PauseMode.KEEP, lambda o, p: o.answered and o.finished > p.ended
        ),
        Pauses.QUEUED_IN_PAUSE: sum(
            o.answered and computing_since(o, history.pauses) > o.sent for o in history.outcomes
        ),
        Pauses.ASLEEP: sum(
            o.answered and any(p.level and p.ended < o.sent < (p.running or p.ended) for p in pauses)
            for o in history.outcomes
        ),
        Pauses.SLEEPS: sum((pause.level or 0) > 0 for pause in pauses),
        Pauses.DEEP_SLEEPS: sum((pause.level or 0) > 1 for pause in pauses),
    }


def count(history: History, pauses: list[PauseRecord], mode: PauseMode, did: Did) -> int:
    """Return the number of pairs of a request that had a token before a pause of this mode, and that pause."""
    return sum(
        did(outcome, pause)
        for pause in pauses
        if pause.mode is mode and pause.level is None
        for outcome in history.outcomes
        if outcome.finished >= pause.began
        and any(outcome.sent + token.at <= pause.began + CLOCK_ERROR for token in outcome.tokens)
    )


def judged_after_update(history: History) -> list[Outcome]:
    """Return the answers that are compared with cold ones and that were computed after an update."""
    return [
        o
        for o in history.outcomes
        if o.error is None
        and latest_update(history, computing_since(o, history.pauses)) is not None
        and is_comparable(history, o)
    ]


def weights_returned(history: History, outcome: Outcome) -> bool:
    """Return whether the current weights were served before, then others, and now again."""
    start = computing_since(outcome, history.pauses)
    seen = [None, *(u.weights for u in acknowledged(history.updates) if u.ended <= start)]
    changed = [weights for i, weights in enumerate(seen) if i == 0 or weights != seen[i - 1]]
    return changed[-1] in changed[:-1]

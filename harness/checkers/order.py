"""Where requests have priorities, the least urgent one gives up its blocks first."""

from __future__ import annotations

from harness.checkers.finding import Finding
from harness.history import History, Outcome
from reports.schema import FailureClass


def check_order(history: History) -> list[Finding]:
    """The first request that lost its blocks while a less urgent one went on running, whoever of them came first.

    Says nothing where the engine does not tell when a request lost its blocks, or all are equally urgent.
    """
    urgency = {number: request.priority for number, _, request in history.workload.requests()}
    for outcome in history.outcomes:
        for at in outcome.preempted_at:
            spared = [o for o in history.outcomes if urgency[o.request] > urgency[outcome.request]]
            for other in spared:
                if ran_on(other, moment(outcome, at)):
                    return [unfair(outcome, other, urgency)]
    return []


def moment(outcome: Outcome, at: float) -> float:
    """A time of a request's own on the run's clock, rounded as that is: equal moments have to be equal numbers."""
    return round(outcome.sent + at, 6)


def ran_on(outcome: Outcome, when: float) -> bool:
    """Whether a request had a token before that moment and one from then on, and lost its blocks nowhere in between."""
    times = [moment(outcome, token.at) for token in outcome.tokens]
    before, then = [at for at in times if at < when], [at for at in times if at >= when]
    if not before or not then:
        return False
    return not any(before[-1] <= moment(outcome, at) <= then[0] for at in outcome.preempted_at)


def unfair(outcome: Outcome, other: Outcome, urgency: dict[int, int]) -> Finding:
    """About the request that lost its blocks."""
    return Finding(
        checker="order",
        failure_class=FailureClass.API,
        request=outcome.request,
        sentence=f"Request {outcome.request} with priority {urgency[outcome.request]} was preempted while request "
        f"{other.request} with priority {urgency[other.request]} went on running: the lower number is the more urgent.",
    )

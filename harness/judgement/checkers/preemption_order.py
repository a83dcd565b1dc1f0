"""Checks that the least urgent request is preempted first, if requests have priorities."""

from __future__ import annotations

from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.finding import Finding
from coldproof.reports.schema.verdict import FailureClass


def check_order(history: History) -> list[Finding]:
    """Return a finding for the first request that is known to be preempted while a less urgent one kept running."""
    urgency = {number: request.priority for number, _, request in history.workload.requests()}
    for outcome in history.outcomes:
        for at in outcome.preempted_at:
            spared = [o for o in history.outcomes if urgency[o.request] > urgency[outcome.request]]
            for other in spared:
                if kept_running(other, moment(outcome, at)):
                    return [order_finding(outcome, other, urgency)]
    return []


def moment(outcome: Outcome, at: float) -> float:
    """Convert a time since a request was sent to the run's clock. It is rounded so that equal times compare equal."""
    return round(outcome.sent + at, 6)


def kept_running(outcome: Outcome, when: float) -> bool:
    """Return whether a request had tokens before and after `when`, and was not preempted between the two."""
    times = [moment(outcome, token.at) for token in outcome.tokens]
    before, then = [at for at in times if at < when], [at for at in times if at >= when]
    if not before or not then:
        return False
    return not any(before[-1] <= moment(outcome, at) <= then[0] for at in outcome.preempted_at)


def order_finding(outcome: Outcome, other: Outcome, urgency: dict[int, int]) -> Finding:
    """Return the finding about the request that was preempted."""
    preempted, spared = (f"{o.request} with priority {urgency[o.request]}" for o in (outcome, other))
    sentence = f"Request {preempted} was preempted while request {spared} kept running; a lower number is more urgent."
    return Finding(checker="order", failure_class=FailureClass.API, request=outcome.request, sentence=sentence)

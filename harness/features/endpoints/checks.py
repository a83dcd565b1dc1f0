"""Checks that a priority means the same at every endpoint of a server, or is refused there."""

from __future__ import annotations

from coldproof.adapters.protocol.endpoints import IMPOSSIBLE_PRIORITY, Endpoint
from coldproof.harness.features.endpoints.facts import endpoint_of
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.schema.verdict import FailureClass


@check(
    "endpoints",
    order=20,
    fails=(
        "One endpoint of a server answers a request whose priority another one refuses as impossible: the first one "
        "ignores priorities."
    ),
    gravity=55,
    without_cache=True,
)
def check_endpoints(history: History) -> list[Finding]:
    """Return a finding for each endpoint that answered a request with an impossible priority, if another refused it.

    The endpoint that answered has ignored the field, and does so with every priority. If none refused it, the engine
    has no priorities or no limits for them.
    """
    odd = impossible(history)
    refusing = next((endpoint_of(history, one) for one in odd if one.refused), None)
    if refusing is None:
        return []
    ignoring: dict[Endpoint, Outcome] = {}
    for outcome in odd:
        if outcome.error is None:
            ignoring.setdefault(endpoint_of(history, outcome), outcome)
    return [
        Finding(
            checker="endpoints",
            failure_class=FailureClass.API,
            request=outcome.request,
            sentence=(
                f"Request {outcome.request} at {endpoint.value} was answered with priority {IMPOSSIBLE_PRIORITY}, "
                f"which {refusing.value} refuses: this endpoint ignores priorities."
            ),
        )
        for endpoint, outcome in ignoring.items()
        if endpoint is not refusing
    ]


def impossible(history: History) -> list[Outcome]:
    """Return the requests with a priority that no engine can have."""
    asked = {number: request for number, _, request in history.workload.requests()}
    return [outcome for outcome in history.outcomes if asked[outcome.request].priority == IMPOSSIBLE_PRIORITY]

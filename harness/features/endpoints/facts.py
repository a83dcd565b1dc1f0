"""At which endpoint a request was sent."""

from __future__ import annotations

from coldproof.adapters.protocol.endpoints import Endpoint
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.workload.steps import Request


def usual_endpoint(request: Request) -> Endpoint:
    """Return the endpoint of a request, also of one that names none."""
    return request.endpoint or (Endpoint.CHAT if request.chat else Endpoint.COMPLETIONS)


def endpoints_of(history: History) -> dict[int, Endpoint]:
    """Return the endpoint of each request, by its number."""
    return {number: usual_endpoint(request) for number, _, request in history.workload.requests()}


def endpoint_of(history: History, outcome: Outcome) -> Endpoint:
    """Return the endpoint at which a request was sent."""
    return endpoints_of(history)[outcome.request]

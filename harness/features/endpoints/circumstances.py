"""Circumstances of a failure: the routes at which requests were sent."""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.harness.case.circumstances import Failure, circumstances
from coldproof.harness.features.endpoints.facts import usual_endpoint
from coldproof.harness.workload.steps import Request


@circumstances(340)
def of_endpoints(failure: Failure) -> Iterable[str]:
    """Return the endpoint of the failing request, and those of the others; nothing if no request names one.

    With one endpoint for all, the others are those under a salt, of a failing request without: it may hit their KV.
    """
    requests = {number: request for number, _, request in failure.history.workload.requests()}
    failing = requests.get(-1 if failure.about is None else failure.about)
    if failing is None or not any(request.endpoint for request in requests.values()):
        return []
    away = [request for request in requests.values() if usual_endpoint(request) is not usual_endpoint(failing)]
    if not away and not failing.salt:
        away = [request for request in requests.values() if request.salt]
    several = len({usual_endpoint(request) for request in away}) > 1
    beside = ["several endpoints"] if several else [f"beside {endpoint_and_identity(away)}"] if away else []
    return [*beside, f"at {endpoint_and_identity([failing])}"]


def endpoint_and_identity(requests: list[Request]) -> str:
    """Return the endpoint of requests that have one endpoint, and whether any has an adapter or a salt."""
    adapter = " with an adapter" if any(request.adapter for request in requests) else ""
    return f"{usual_endpoint(requests[0]).value}{adapter}{' under a salt' if any(r.salt for r in requests) else ''}"

"""Circumstances of a failure: the routes at which requests were sent."""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.harness.case.circumstances import Failure, circumstances
from coldproof.harness.features.doors.facts import usual_door
from coldproof.harness.workload.steps import Request


@circumstances(340)
def of_doors(failure: Failure) -> Iterable[str]:
    """Return at which door the failing request was sent, and at which others were; nothing if no request names one."""
    requests = {number: request for number, _, request in failure.history.workload.requests()}
    failing = requests.get(-1 if failure.about is None else failure.about)
    if failing is None or not any(request.door for request in requests.values()):
        return []
    away = [request for request in requests.values() if usual_door(request) is not usual_door(failing)]
    several = len({usual_door(request) for request in away}) > 1
    beside = ["several doors"] if several else [f"beside {door_and_identity(away)}"] if away else []
    return [*beside, f"at {door_and_identity([failing])}"]


def door_and_identity(requests: list[Request]) -> str:
    """Return the door of requests that have one door, and whether any has an adapter or a salt."""
    adapter = " with an adapter" if any(request.adapter for request in requests) else ""
    return f"{usual_door(requests[0]).value}{adapter}{' under a salt' if any(r.salt for r in requests) else ''}"

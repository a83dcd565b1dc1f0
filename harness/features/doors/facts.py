"""At which door a request was sent."""

from __future__ import annotations

from coldproof.adapters.protocol.doors import Door
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.workload.steps import Request


def usual_door(request: Request) -> Door:
    """Return the door of a request, also of one that names none."""
    return request.door or (Door.CHAT if request.chat else Door.COMPLETIONS)


def doors_of(history: History) -> dict[int, Door]:
    """Return the door of each request, by its number."""
    return {number: usual_door(request) for number, _, request in history.workload.requests()}


def door_of(history: History, outcome: Outcome) -> Door:
    """Return the door at which a request was sent."""
    return doors_of(history)[outcome.request]

"""Checks that a priority means the same at every door of a server, or is refused there."""

from __future__ import annotations

from coldproof.adapters.protocol.doors import IMPOSSIBLE_PRIORITY, Door
from coldproof.harness.features.doors.facts import door_of
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.schema.verdict import FailureClass


@check(
    "doors",
    order=20,
    fails=(
        "An answer at one door of a server to a request whose priority another door refuses as impossible: the first "
        "door ignores priorities."
    ),
    gravity=55,
    without_cache=True,
)
def check_doors(history: History) -> list[Finding]:
    """Return a finding for each door that answered a request with an impossible priority, if another door refused it.

    The door that answered has ignored the field, and does so with every priority. If no door refused it, the engine has
    no priorities or no limits for them.
    """
    odd = impossible(history)
    refusing = next((door_of(history, one) for one in odd if one.refused), None)
    if refusing is None:
        return []
    ignoring: dict[Door, Outcome] = {}
    for outcome in odd:
        if outcome.error is None:
            ignoring.setdefault(door_of(history, outcome), outcome)
    return [
        Finding(
            checker="doors",
            failure_class=FailureClass.API,
            request=outcome.request,
            sentence=(
                f"Request {outcome.request} at {door.value} was answered with priority {IMPOSSIBLE_PRIORITY}, which "
                f"{refusing.value} refuses: this door ignores priorities."
            ),
        )
        for door, outcome in ignoring.items()
        if door is not refusing
    ]


def impossible(history: History) -> list[Outcome]:
    """Return the requests with a priority that no engine can have."""
    asked = {number: request for number, _, request in history.workload.requests()}
    return [outcome for outcome in history.outcomes if asked[outcome.request].priority == IMPOSSIBLE_PRIORITY]

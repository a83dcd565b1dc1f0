"""Computes the signature of a case, which known issues match: failure class and circumstances."""

from __future__ import annotations

from coldproof.harness.case.circumstances import Failure, all_circumstances
from coldproof.harness.history.adapter_changes import same_path_reloads
from coldproof.harness.history.provenance import wrong_read_position
from coldproof.harness.history.records import History
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Route, SetAdapter, adapter_changes

USUAL = {"no reload", "other path", "between requests"}  # circumstances that say that nothing special happened
WRONG_ANSWERS = (FailureClass.STALE_STATE, FailureClass.CROSS_REQUEST, FailureClass.CORRUPT)


def signature(history: History, failure_class: FailureClass, about: int | None = None) -> str:
    """Return the signature: failure class; routes of adapter changes; whether a path was reused; whether requests were
    running; other circumstances; and whether a change overlapped the failing request, or where it read wrong KV.
    """
    changed = [change for change in adapter_changes(history.workload) if change.route is not Route.LOAD]
    routes = " and ".join(sorted({change.route.value for change in changed})) or "no reload"
    path = "same path" if same_path_reloads(history) else "other path"
    busy = any(
        step.meanwhile is not None and isinstance(step.meanwhile.change, SetAdapter) for step in history.workload.steps
    )
    moment = "under traffic" if busy else "between requests"
    failure = Failure(history=history, failure_class=failure_class, about=about)
    more = "".join(f"; {text}" for text in all_circumstances(failure))
    if any(outcome.overlapped for outcome in failure.outcomes):
        more += "; overlaps the change"
    elif failure_class is FailureClass.CORRUPT and wrong_read_position(history, about):
        more += f"; {wrong_read_position(history, about)}"
    if not changed:
        return f"{failure_class.value}; no reload{more}"
    return f"{failure_class.value}; {routes}; {path}; {moment}{more}"


def needs_all_of(sign: str, other: str) -> bool:
    """Return whether two signatures are of wrong answers, and one needs every circumstance that the other one needs.

    They may then be of one cause: whose content a wrong answer has, if anybody's, depends on the blocks that it hit.
    """
    own, others = parts(sign), parts(other)
    both = {own[0], others[0]} <= {one.value for one in WRONG_ANSWERS}
    return both and bool(others[1]) and others[1] <= own[1]


def parts(sign: str) -> tuple[str, set[str]]:
    """Return the failure class of a signature and its unusual circumstances."""
    failure_class, *rest = sign.split("; ")
    return failure_class, {text for one in rest for text in one.split(" and ")} - USUAL

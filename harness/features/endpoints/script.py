"""Scripts of cases about the routes of a server."""

from __future__ import annotations

from coldproof.adapters.protocol.endpoints import IMPOSSIBLE_PRIORITY
from coldproof.harness.case.reproducer.kit.story import Story
from coldproof.harness.case.reproducer.registry import Call, ScriptCase, flag, script_check
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Request


@flag("ENDPOINTS")
def has_endpoints(about: ScriptCase) -> bool:
    """Return whether some requests name a route."""
    return any(request.endpoint for request in about.requests)


@flag("FAILS")
def was_ignored(about: ScriptCase) -> bool:
    """Return whether the case is about a field that the failing request's route ignores and another one refuses."""
    sent: dict[int, Request] = dict(enumerate(about.requests))
    failing = sent.get(-1 if about.case.failing_request is None else about.case.failing_request)
    ignored = failing is not None and failing.priority == IMPOSSIBLE_PRIORITY
    return about.case.failure_class is FailureClass.API and ignored


@script_check(100)
def by_refusals(about: ScriptCase) -> Call | None:
    """Return the check of a case about an ignored field."""
    return Call(ignores_what_others_refuse, (about.case.failing_request,)) if was_ignored(about) else None


def ignores_what_others_refuse(story: Story, number: int) -> bool:
    """Return whether a request was answered, while another one with the same invalid field was refused."""
    same = [n for n, sent in enumerate(story.sent) if sent.get("extra") == story.sent[number]["extra"] and n != number]
    refused = [n for n in same if story.replies[n].failed]
    print(f"request {number}: {story.replies[number].ids or 'no answer'}; refused: {refused}")
    return bool(story.replies[number].ids) and bool(refused)

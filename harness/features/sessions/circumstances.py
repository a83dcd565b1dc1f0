"""Circumstances of a failure: sessions."""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.harness.case.circumstances import Failure, circumstances, true_ones


@circumstances(100)
def of_sessions(failure: Failure) -> Iterable[str]:
    """Return whether two turns of one session have different adapters."""
    turns = {(request.session, request.adapter) for request in failure.requests if request.session}
    return true_ones({"another adapter in a session": len(turns) > len({session for session, _ in turns})})

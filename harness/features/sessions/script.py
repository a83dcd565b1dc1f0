"""Writes ends of sessions in scripts of cases."""

from __future__ import annotations

from coldproof.harness.case.reproducer.steps import step_call
from coldproof.harness.features.sessions.steps import CloseSession


@step_call.register(CloseSession)
def close_call(step: CloseSession, _loaded: set[str]) -> str:
    """Return the end of a session as a call."""
    return f"story.close_session({step.name!r}, aborted={step.aborted!r})"

"""Scripts of cases with sessions."""

from __future__ import annotations

from coldproof.adapters.spec.script.client import Sent
from coldproof.harness.case.reproducer.kit.story import Story
from coldproof.harness.case.reproducer.registry import ScriptCase, attempt_with, flag
from coldproof.harness.case.reproducer.steps import step_call
from coldproof.harness.features.sessions.steps import CloseSession
from coldproof.harness.workload.tokens import wire_name

DRAFTING = "--speculative-config"  # in the command of a server


class SessionStory(Story):
    """An attempt with sessions."""

    def prepared(self, spec: Sent) -> Sent:
        """Return a request as it is sent."""
        sent = super().prepared(spec)
        if "session" in spec:
            sent["new"] = sum(length for _, length, *_ in spec["prompt"])
            sent["session"] = wire_name(spec["session"], self.nonce)
        return sent

    def close_session(self, name: str, *, aborted: bool) -> None:
        """End a session."""
        self.client.close_session(wire_name(name, self.nonce), aborted=aborted)


@flag("SESSIONS", alone=True)
def has_sessions(about: ScriptCase) -> bool:
    """Return whether some requests are turns of sessions."""
    return any(request.session for request in about.requests)


@flag("CRASHES")
def may_end_the_engine(about: ScriptCase) -> bool:
    """Return whether there are sessions and drafts: a turn that is wrongly taken for computed may end the engine."""
    return has_sessions(about) and DRAFTING in about.command


@step_call.register(CloseSession)
def close_call(step: CloseSession, _loaded: set[str]) -> str:
    """Return the end of a session as a call."""
    return f"story.close_session({step.name!r}, aborted={step.aborted!r})"


attempt_with("SESSIONS", SessionStory)

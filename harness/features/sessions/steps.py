"""Ends of sessions."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from coldproof.harness.workload.kinds.kind import State, StepKind


class CloseSession(StepKind, frozen=True, omit_defaults=True, tag="close_session"):
    """End a session: say that no input follows or, with `aborted`, disconnect."""

    spares_sessions: ClassVar[bool] = True

    name: str
    aborted: bool = False

    @property
    def ended_session(self) -> str | None:
        """Return its session."""
        return self.name

    def describe(self) -> str:
        """Return the step in one line."""
        return f"{'abort' if self.aborted else 'close'} session '{self.name}'"

    def after(self, now: State) -> State | None:
        """Return the state in which the session, which must have a turn, takes no more of them."""
        return msgspec.structs.replace(now, ended=now.ended | {self.name}) if self.name in now.turns else None

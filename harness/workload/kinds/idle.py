"""A time without requests."""

from __future__ import annotations

from typing import ClassVar

from coldproof.harness.workload.kinds.kind import State, StepKind


class Idle(StepKind, frozen=True, tag="idle"):
    """Send nothing for `ms` milliseconds. Then the engine must report that no request holds blocks."""

    varies: ClassVar[bool] = True

    ms: int

    def describe(self) -> str:
        """Return the step in one line."""
        return f"idle for {self.ms} ms"

    def after(self, now: State) -> State | None:
        """Return the state, which stays the same. The time must not be negative."""
        return now if self.ms >= 0 else None

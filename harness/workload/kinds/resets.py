"""Resets of caches."""

from __future__ import annotations

from typing import ClassVar

from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.workload.kinds.kind import Mark, State, StepKind


class Reset(StepKind, frozen=True, omit_defaults=True, tag="reset"):
    """Reset the prefix cache and everything in `scope`. Without `prefix`, the prefix cache stays as it is."""

    reaches_every_rank: ClassVar[bool] = True
    varies: ClassVar[bool] = True

    scope: tuple[ResetScope, ...] = ()
    prefix: bool = True

    def describe(self) -> str:
        """Return the step in one line."""
        return f"reset {', '.join((*(('the prefix cache',) if self.prefix else ()), *self.scope))}"

    def after(self, now: State) -> State | None:
        """Return the state, which stays the same. A reset names each scope once, and resets something."""
        once = len(set(self.scope)) == len(self.scope)
        return now if once and (self.prefix or self.scope) else None

    def mark(self) -> Mark:
        """Return the row."""
        return Mark(kind="reset" if self.prefix else "reset of", name=", ".join(self.scope), resets=True)

    def clears_cache(self) -> bool:
        """Return whether the prefix cache is reset."""
        return self.prefix

"""Saves and restores of the whole cache."""

from __future__ import annotations

import msgspec

from coldproof.harness.workload.kinds.kind import State, StepKind


class SaveState(StepKind, frozen=True, tag="save_state"):
    """Save the whole cache under a name, and replace what was saved under it."""

    name: str

    def describe(self) -> str:
        """Return the step in one line."""
        return f"save the cache as '{self.name}'"

    def after(self, now: State) -> State:
        """Return the state with the name saved."""
        return msgspec.structs.replace(now, saved=now.saved | {self.name})


class RestoreState(StepKind, frozen=True, tag="restore_state"):
    """Replace the whole cache by what was saved under a name."""

    name: str

    def describe(self) -> str:
        """Return the step in one line."""
        return f"restore the cache saved as '{self.name}'"

    def after(self, now: State) -> State | None:
        """Return the state, which stays the same. The name must be saved."""
        return now if self.name in now.saved else None

"""What few engines offer, and why the others do not: said once, for all of them.

An engine that does offer one of these says so itself, with what it has seen.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from adapters.base import Capability

NOT_OFFERED = {
    Capability.SAVED_STATE: "nothing saves what is cached under a name, or restores it",
    Capability.MOVED_PIECES: "only a prompt's beginning is reused, where it stands",
    Capability.CONTEXT_SHIFT: "an answer ends where the context does",
}


@runtime_checkable
class Saves(Protocol):
    """An engine that saves what its cache holds, and restores it (SAVED_STATE). Nothing of it may be lost on the way,
    nor may it serve anybody whom it would not have served where it was.

    Both raise EngineDied when the engine is gone and RequestRefused when it says no.
    """

    def save_state(self, name: str) -> int:
        """Save all that is cached now under a name, over what was saved under it; the tokens that the engine says it
        saved. Not while requests run."""

    def restore_state(self, name: str) -> int:
        """Put what was saved under a name in place of all that is cached now; the tokens that the engine says it
        restored. Not while requests run."""

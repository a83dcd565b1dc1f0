"""Capabilities that few engines have, and the evidence text for all engines without them.

An engine that has one of these capabilities reports it with its own evidence.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from coldproof.adapters.protocol.capabilities import Capability

OPTIONAL_ABSENT = {
    Capability.SAVED_STATE: "the engine cannot save its cache under a name and restore it",
    Capability.MOVED_PIECES: "the engine reuses prefixes only",
    Capability.CONTEXT_SHIFT: "an answer ends at the context limit",
}


@runtime_checkable
class SavesState(Protocol):
    """An engine that can save its cache under a name and restore it (SAVED_STATE).

    Restored KV must be complete, and it must not serve a request that could not have used it before it was saved. Both
    methods raise EngineDied when the engine terminated and RequestRefused when it refuses. No request may be running.
    """

    def save_state(self, name: str) -> int:
        """Save the whole cache under a name, replacing an earlier save. Return the number of tokens reported saved."""

    def restore_state(self, name: str) -> int:
        """Replace the whole cache by a saved one. Return the number of tokens that the engine reports as restored."""

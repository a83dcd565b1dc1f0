"""What can be different about two engines that use the same storage one after the other."""

from __future__ import annotations

import enum


class EngineChange(enum.StrEnum):
    """What is different about an engine. KV that it computed must not be used by the engine without the difference, but
    for an implementation that computes the same (see `Cell.twin`).
    """

    NOTHING = "nothing"
    WEIGHTS = "other weights at the same path"
    KV_FORMAT = "another KV format"
    ROPE = "other rope settings"
    IMPLEMENTATION = "the other implementation of one part"

    @property
    def of_kv(self) -> bool:
        """Return whether it changes the KV that the engine computes, so that none of it may be used without it."""
        return self not in (EngineChange.NOTHING, EngineChange.IMPLEMENTATION)


OF_KV = tuple(one for one in EngineChange if one.of_kv)

"""What can be different about two engines that use the same storage one after the other."""

from __future__ import annotations

import enum


class EngineChange(enum.StrEnum):
    """What is different about an engine. KV that it computed must not be used by the engine without the difference."""

    NOTHING = "nothing"
    WEIGHTS = "other weights at the same path"
    KV_FORMAT = "another KV format"
    ROPE = "other rope settings"

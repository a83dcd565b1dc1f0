"""What a cache reset can cover besides the prefix cache, and how an engine offers it."""

from __future__ import annotations

import enum
from typing import Protocol, runtime_checkable

from coldproof.adapters.protocol.capabilities import Capability


class ResetScope(enum.StrEnum):
    """What a reset covers in addition to the prefix cache."""

    RUNNING = "running requests"
    SECOND_TIER = "the second tier"
    ENCODER = "the encoder cache"
    PROCESSOR = "the multimodal processor's cache"
    RANKS = "all ranks"


SCOPE_CAPABILITIES = {
    ResetScope.RUNNING: Capability.RESET_RUNNING,
    ResetScope.SECOND_TIER: Capability.RESET_SECOND_TIER,
    ResetScope.ENCODER: Capability.RESET_ENCODER,
    ResetScope.PROCESSOR: Capability.RESET_PROCESSOR,
    ResetScope.RANKS: Capability.RESET_RANKS,
}


@runtime_checkable
class ResetsMore(Protocol):
    """An engine whose reset can cover more than its prefix cache (the capabilities of SCOPE_CAPABILITIES).

    With RUNNING, the KV of running requests is discarded as well, and they continue from their tokens.
    """

    def reset_more(self, scope: tuple[ResetScope, ...]) -> bool:
        """Request an empty prefix cache and that everything in `scope` is reset. Return True only if the engine
        confirms all of it. Raises EngineDied, and RequestRefused when the engine refuses.
        """


@runtime_checkable
class ResetsBeside(Protocol):
    """An engine that can reset a cache beside its prefix cache alone (ENCODER or PROCESSOR, by their capabilities)."""

    def reset_beside(self, scope: tuple[ResetScope, ...]) -> bool:
        """Reset what is in `scope`, and leave the prefix cache as it is. Return True only if the engine confirms all
        of it. Raises EngineDied, and RequestRefused when the engine refuses.
        """

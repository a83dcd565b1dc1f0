"""Methods of `Engine` for features that an engine lacks: empty results, and refusals with the capability's evidence.

An adapter overrides the methods of the features that its engine has.
"""

from __future__ import annotations

from collections.abc import Mapping

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.kv_events import Published
from coldproof.adapters.protocol.provenance import WrongRead
from coldproof.adapters.protocol.requests import Message


class AbsentFeatures:
    """The base class of an adapter. The evidence of its `capabilities` says why a feature is absent."""

    capabilities: Mapping[Capability, Support]

    def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Raise RequestRefused: there are no chats."""
        raise RequestRefused(501, f"{len(messages)} messages: {self.capabilities[Capability.CHAT].evidence}")

    def switch_adapter(self, name: str, path: str) -> None:
        """Raise RequestRefused: an adapter cannot be switched on for all requests."""
        raise RequestRefused(501, f"{name}, {path}: {self.capabilities[Capability.ADAPTER_SWITCH].evidence}")

    def reset_cache(self) -> bool:
        """Raise RequestRefused: the cache cannot be emptied."""
        raise RequestRefused(501, self.capabilities[Capability.CACHE_RESET].evidence)

    def take_events(self) -> Published:
        """Return no events: the engine publishes none."""
        return Published()

    def wrong_reads(self) -> tuple[WrongRead, ...]:
        """Return nothing: keys and values do not identify their writer."""
        return ()

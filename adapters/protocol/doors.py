"""The doors of a server: the routes at which a request can enter the same engine."""

from __future__ import annotations

import enum

from coldproof.adapters.protocol.capabilities import Capability


class Door(enum.StrEnum):
    """One route for generation. Its value is the route's path on vLLM's server."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"
    GENERATE = "/inference/v1/generate"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"

    @property
    def takes_ids(self) -> bool:
        """Return whether it takes token ids. The others take messages."""
        return self in (Door.COMPLETIONS, Door.GENERATE)


# What an engine needs for a door. The first two are the doors of requests that name none.
DOOR_CAPABILITIES = {
    Door.COMPLETIONS: Capability.TOKEN_PROMPTS,
    Door.CHAT: Capability.CHAT,
    Door.GENERATE: Capability.GENERATE_DOOR,
    Door.RESPONSES: Capability.RESPONSES_DOOR,
    Door.MESSAGES: Capability.MESSAGES_DOOR,
}
# Outside the range of 64 bits, which servers document. A door that answers a request with it has not read the field.
IMPOSSIBLE_PRIORITY = 2**63

"""The endpoints of a server: the routes at which a request can enter the same engine."""

from __future__ import annotations

import enum

from coldproof.adapters.protocol.capabilities import Capability


class Endpoint(enum.StrEnum):
    """One route for generation. Its value is the route's path on vLLM's server."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"
    GENERATE = "/inference/v1/generate"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"

    @property
    def takes_ids(self) -> bool:
        """Return whether it takes token ids. The others take messages."""
        return self in (Endpoint.COMPLETIONS, Endpoint.GENERATE)


# What an engine needs for an endpoint. The first two are the endpoints of requests that name none.
ENDPOINT_CAPABILITIES = {
    Endpoint.COMPLETIONS: Capability.TOKEN_PROMPTS,
    Endpoint.CHAT: Capability.CHAT,
    Endpoint.GENERATE: Capability.GENERATE_ENDPOINT,
    Endpoint.RESPONSES: Capability.RESPONSES_ENDPOINT,
    Endpoint.MESSAGES: Capability.MESSAGES_ENDPOINT,
}
# Outside the range of 64 bits, which servers document. An endpoint that answers such a request did not read the field.
IMPOSSIBLE_PRIORITY = 2**63

"""Any OpenAI-compatible server, attached by its URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coldproof.adapters.endpoint.client import EndpointClient
from coldproof.adapters.endpoint.cold import ColdWay
from coldproof.adapters.endpoint.reproducer import COLD_WAY, DISPLACING, FORM
from coldproof.adapters.protocol.engine import Served
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest
from coldproof.adapters.server.engine import ServerEngine


class EndpointEngine(ServerEngine):
    """An attached server whose requests may be asked to find nothing in its cache."""

    client: EndpointClient

    def __init__(self, *, client: EndpointClient, config: Mapping[str, str], **others: Any) -> None:
        way = {} if client.cold_way is None else {COLD_WAY: client.cold_way.value, DISPLACING: str(client.displacing)}
        super().__init__(client=client, config={**config, FORM: client.form.value, **way}, **others)

    def complete(self, request: CompletionRequest) -> Completion:
        """Send one generation, once, and return its answer.

        One that must be cold is sent again if it hits, after twice as many other prompts as the probes needed. If its
        answer has no count, that is no miss.
        """
        if not request.cold:
            return super().complete(request)
        self.client.clear(request)
        answer = self.client.complete(request)
        if answer.cached_tokens and self.client.cold_way is ColdWay.DISPLACED:
            self.client.displace(2 * self.client.displacing, request)
            answer = self.client.complete(request)
        return answer

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Serve requests with a thread and a connection for each."""
        if cold := [arrival.request for arrival in arrivals if arrival.request.cold]:
            self.client.clear(*cold)
        return super().serve(arrivals, on_token, between)

"""The routes that a server lists in its own description. Nothing else is called."""

from __future__ import annotations

import msgspec

from coldproof.adapters.protocol.engine import EngineError
from coldproof.adapters.server.answers import UNREADABLE
from coldproof.adapters.server.client import HttpClient

OPENAPI = "/openapi.json"


class Description(msgspec.Struct, frozen=True):
    """The part of the description that lists the routes."""

    paths: dict[str, msgspec.Raw] = {}


def listed_routes(client: HttpClient) -> set[str]:
    """Return the routes that the server lists; none if it has no description or one of another form."""
    try:
        answer = client.get(OPENAPI)
        if answer.status_code != 200:
            return set()
        return set(msgspec.json.decode(answer.content, type=Description).paths)
    except (EngineError, *UNREADABLE):
        return set()

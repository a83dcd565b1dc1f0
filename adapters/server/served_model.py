"""The base model that a server lists, and the server's version."""

from __future__ import annotations

import msgspec

from coldproof.adapters.common.redact import KEY_VARIABLE
from coldproof.adapters.protocol.engine import EngineError
from coldproof.adapters.server.answers import decoded, malformed
from coldproof.adapters.server.client import HttpClient

BASE_MODEL_EXPECTED = "a list with a model that is not an adapter: check that this is an OpenAI-compatible server"


class ListedModel(msgspec.Struct, frozen=True):
    """A model or adapter in the server's list. `parent`: an adapter's base model. `root`: the path of its files."""

    id: str
    parent: str | None = None
    max_model_len: int | None = None
    root: str | None = None

    @property
    def max_tokens(self) -> int:
        """Return the maximum number of tokens of a request; 2048 if the server does not report it."""
        return self.max_model_len or 2048


class ModelList(msgspec.Struct, frozen=True):
    """The answer of /v1/models."""

    data: list[ListedModel]


def served_model(client: HttpClient) -> ListedModel:
    """Return the first model that is not an adapter. Raises EngineError if there is none."""
    response = client.get("/v1/models")
    if response.status_code == 401:
        raise EngineError(f"the server requires a valid API key: set {KEY_VARIABLE}")
    listed = decoded(response, ModelList, BASE_MODEL_EXPECTED) if response.status_code == 200 else ModelList([])
    model = next((model for model in listed.data if not model.parent), None)
    if model is None:
        raise malformed(response, response.text, BASE_MODEL_EXPECTED)
    return model


def server_version(client: HttpClient) -> str | None:
    """Return the version that /version reports, or None."""
    response = client.get("/version")
    if response.status_code != 200:
        return None
    try:
        return str(response.json()["version"])
    except (ValueError, KeyError, TypeError):
        return None

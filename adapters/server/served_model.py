"""The base model that a server lists, and the server's version."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from coldproof.adapters.common.redact import KEY_VARIABLE, redacted
from coldproof.adapters.protocol.engine import EngineError, printable
from coldproof.adapters.server.answers import UNREADABLE, decoded, malformed
from coldproof.adapters.server.client import HttpClient

BASE_MODEL_EXPECTED = "a list with a model that is not an adapter: check that this is an OpenAI-compatible server"


Name = Annotated[str, Meta(min_length=1, max_length=1024)]  # each recorded request has the name of its model
Path = Annotated[str, Meta(max_length=4096)]
GUESSED_LIMIT = 2048  # tokens
LONGEST_VERSION = 100  # characters


class Version(msgspec.Struct, frozen=True):
    """The answer of /version."""

    version: str


class Facts(msgspec.Struct, frozen=True):
    """What llama.cpp's server says about a model."""

    n_ctx: Annotated[int, Meta(ge=1, lt=2**31)] | None = None


class ListedModel(msgspec.Struct, frozen=True):
    """A model or adapter in the server's list. `parent`: an adapter's base model. `root`: the path of its files."""

    id: Name
    parent: str | None = None
    max_model_len: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    root: Path | None = None
    meta: Facts | None = None

    @property
    def limit(self) -> int | None:
        """Return the maximum number of tokens of a request; None if the server does not report it."""
        return self.max_model_len or (None if self.meta is None else self.meta.n_ctx)

    @property
    def max_tokens(self) -> int:
        """Return how many tokens a request may have at most: the limit, or a guess."""
        return self.limit or GUESSED_LIMIT


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
        return printable(redacted(msgspec.json.decode(response.content, type=Version).version), LONGEST_VERSION)
    except UNREADABLE:
        return None

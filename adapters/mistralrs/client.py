"""The HTTP client of mistral.rs' process. Prompts are texts, whose printable characters are tokens of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.completions import Reader
from coldproof.adapters.server.plain_answers import PlainReader, text_fields

BASE_MODEL = "base"


class MistralrsClient(HttpClient):
    """A client for one process."""

    generate_path = "/v1/completions"

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        """Return the JSON of a request. Raises RequestRefused for a prompt that has no text."""
        adapter = {} if request.model == BASE_MODEL else {"adapter": request.model}
        return text_fields(request) | adapter

    def is_whole(self, _request: CompletionRequest) -> bool:
        """Return False: scores are streamed, too."""
        return False

    def reader(self, on_token: Callable[[int], None] | None) -> Reader:
        """Return a reader for one answer."""
        return PlainReader(on_token)

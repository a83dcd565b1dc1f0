"""The HTTP client of llama-cpp-python's server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coldproof.adapters.common.registered_adapters import RegisteredAdapters
from coldproof.adapters.llamapython.setup import BASE_MODEL
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.completions import TOP_LOGPROBS, Reader
from coldproof.adapters.server.plain_answers import OTHER_TOKENS, text_of


class ModelAliases(RegisteredAdapters):
    """The server's models with an adapter, by their aliases: the digests of the adapters."""

    def __init__(self, digests: Sequence[str]) -> None:
        super().__init__(digests)
        self.digests = tuple(digests)

    def alias(self, name: str) -> str:
        """Return the model of a request to a served name. Raises RequestRefused for an unknown name."""
        return BASE_MODEL if name == BASE_MODEL else self.digests[self.bound_to(name)]


class LlamaPythonClient(HttpClient):
    """A client for one server. `longest`: tokens of its context."""

    generate_path = "/v1/completions"

    def __init__(self, url: str, *, alive: Callable[[], bool], adapters: ModelAliases, longest: int) -> None:
        super().__init__(url, alive=alive)
        self.adapters, self.longest = adapters, longest

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        """Return the JSON of a request. Raises RequestRefused for a prompt that has no text, or an unknown model.

        The server's default is a penalty for repeated tokens.
        """
        fields: dict[str, Any] = {
            "model": self.adapters.alias(request.model),
            "prompt": text_of(request.prompt),
            "max_tokens": request.max_tokens,
            "temperature": 0.0,
            "repeat_penalty": 1.0,
            "stream": not self.is_whole(request),
        }
        return fields | ({"logprobs": TOP_LOGPROBS} if request.options.logprobs else {})

    def is_whole(self, request: CompletionRequest) -> bool:
        """Return whether a prompt does not fit: the server refuses it with a reason only if no stream is asked for."""
        return len(request.prompt) >= self.longest

    def reader(self, on_token: Callable[[int], None] | None) -> Reader:
        """Return a reader for one answer."""
        return PromptReader(on_token)


class PromptReader(Reader):
    """Reads an answer whose prompt, as the server read it, must be that of the request."""

    def expect(self, request: CompletionRequest) -> None:
        """Expect the answer to a request."""
        super().expect(request)
        self.sent = request.prompt

    def take_event(self, data: str) -> None:
        """Read one event in JSON."""
        super().take_event(data)
        if self.prompt is not None and self.prompt != tuple(self.sent):
            self.error, self.status = OTHER_TOKENS.format(len(self.prompt), "prompt", len(self.sent)), 501

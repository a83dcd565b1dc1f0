"""The HTTP client of MAX's server, which has OpenAI's routes with fields of vLLM's."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.server.answers import safe_start
from coldproof.adapters.server.client import HttpClient


class MaxClient(HttpClient):
    """A client for one server."""

    generate_path = "/v1/completions"

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        """Return the JSON of a request. MAX refuses fields that it does not know."""
        return {name: value for name, value in super().body(request).items() if name != "request_id"}

    def chosen(self, _path: str) -> Metrics:
        """Return no metrics: see `setup.NO_METRICS`."""
        return Metrics()

    def reset(self, scope: tuple[ResetScope, ...] = ()) -> tuple[bool, str]:
        """Ask for an empty cache. Return whether the server confirms it, and its answer: it says Success."""
        body = self.post(self.reset_path).text
        return not scope and body == "Success", safe_start(body)

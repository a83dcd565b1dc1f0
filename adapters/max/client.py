"""The HTTP client of MAX's server, which has OpenAI's routes with fields of vLLM's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.server.answers import safe_start
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.metrics_page import families_of

# Those of the server's own process. The engine's are counted in another one, some time after the answer.
GAUGES = {"maxserve_num_requests_running": "running", "maxserve_num_requests_queued": "waiting"}


class MaxClient(HttpClient):
    """A client for one server. `metrics_url`: of its process for metrics."""

    generate_path = "/v1/completions"
    counters = GAUGES
    labelled = ()

    def __init__(self, url: str, *, alive: Callable[[], bool], metrics_url: str) -> None:
        super().__init__(url, alive=alive)
        self.metrics_page = HttpClient(metrics_url, alive=alive)

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        """Return the JSON of a request. MAX refuses fields that it does not know."""
        return {name: value for name, value in super().body(request).items() if name != "request_id"}

    def chosen(self, _path: str) -> Metrics:
        """Return all metrics: the page cannot be asked for some."""
        response = self.metrics_page.get("/metrics")
        return self.metrics_of(families_of(response, self.counters) if response.status_code == 200 else None)

    def reset(self, scope: tuple[ResetScope, ...] = ()) -> tuple[bool, str]:
        """Ask for an empty cache. Return whether the server confirms it, and its answer: it says Success."""
        body = self.post(self.reset_path).text
        return not scope and body == "Success", safe_start(body)

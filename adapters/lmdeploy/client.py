"""The HTTP client of LMDeploy's api_server: `/v1/chat/completions` with `input_ids` instead of messages.

This is its only route that takes and returns token ids and reports cached tokens (0.16: serve/openai/protocol.py).
`/generate` does not report them, and `/v1/completions` returns no ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import CompletionRequest, Message
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.completions import SEED, TOP_LOGPROBS, Reader
from coldproof.adapters.server.lacking import Lacks

NO_SALT = "LMDeploy has no cache salts"
NO_RESET = "no route empties the cache and leaves requests alone: /sleep discards it and aborts all requests"
NO_CHAT = "no route returns the token ids of a chat's prompt"
NO_PROMPT_SCORES = "no route returns token ids and the scores of the prompt"
NO_PRIORITY = "requests have no priority"
NO_LOADING = "adapters are given to the server at its start (--adapters); none can be loaded at run time"
COUNTERS = {
    "lmdeploy:num_requests_running": "running",
    "lmdeploy:num_requests_waiting": "waiting",
    "lmdeploy:gpu_cache_usage_perc": "pool_usage",
}

LACKS = Lacks(chats=NO_CHAT, salts=NO_SALT, prompt_scores=NO_PROMPT_SCORES, priorities=NO_PRIORITY)


class LmdeployClient(HttpClient):
    """A client for one LMDeploy server."""

    generate_path = "/v1/chat/completions"
    counters = COUNTERS
    labelled = ()
    filters_metrics = False

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        """Return the JSON body of a request, which is streamed. Raises RequestRefused for what LMDeploy lacks."""
        surface = request.surface
        LACKS.refuse(request)
        fields: dict[str, Any] = {
            "model": request.model,
            "messages": "",  # with messages, the ids would be refused
            "input_ids": list(request.prompt),
            "max_tokens": request.max_tokens,
            "seed": SEED,
            "ignore_eos": not surface.stop and surface.pattern is None,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        # A temperature of 0 alone is not documented to be greedy.
        fields |= {"temperature": 0, "top_k": 1} if surface.answers == 1 else {"temperature": 1, "n": surface.answers}
        if surface.stop:
            fields["stop"] = list(surface.stop)
        if surface.pattern is not None:
            fields["response_format"] = {"type": "regex_schema", "regex_schema": surface.pattern}
        if surface.logprobs:
            fields |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        return fields

    def reader(self, on_token: Callable[[int], None] | None) -> Reader:
        """Return a reader for one answer."""
        return LmdeployReader(on_token)

    def render(self, model: str, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Raise RequestRefused: a chat's prompt is not known."""
        raise RequestRefused(501, f"{len(messages)} messages for {model}: {NO_CHAT}")

    def reset(self, _scope: tuple[ResetScope, ...] = ()) -> tuple[bool, str]:
        """Raise RequestRefused: there is no reset."""
        raise RequestRefused(501, NO_RESET)

    def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> None:
        """Raise RequestRefused: adapters are fixed."""
        raise RequestRefused(501, f"{name}, {path}, in place {in_place}: {NO_LOADING}")

    def unload_adapter(self, name: str) -> None:
        """Raise RequestRefused: adapters are fixed."""
        raise RequestRefused(501, f"{name}: {NO_LOADING}")


class LmdeployReader(Reader):
    """Collects an answer from LMDeploy's events, which have two differences from OpenAI's.

    The new ids are in `output_ids`, and `top_logprobs` leaves out the token that was chosen.
    """

    expected = "a JSON object whose choices have output_ids"

    def take_event(self, data: str) -> None:
        """Read one event in JSON. Raises the errors of decoding or indexing if it has another form."""
        event = msgspec.json.decode(data, type=dict[str, Any])
        for choice in event.get("choices", ()):
            choice["token_ids"] = choice.get("output_ids")
            for score in (choice.get("logprobs") or {}).get("content") or ():
                score["top_logprobs"].append({"logprob": score["logprob"]})
        super().take_event(msgspec.json.encode(event).decode())

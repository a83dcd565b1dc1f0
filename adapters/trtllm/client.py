"""The HTTP client of `trtllm-serve`: `/v1/completions` with token ids, without text.

The server refuses fields that it does not know (serve/openai_protocol.py: `extra="forbid"`), so that only its own are
sent. With `detokenize` off it returns token ids. A request carries its adapter: a name, an id and a folder. KV is keyed
by the id, so that each load gets an id of its own.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import CompletionRequest, Message
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.completions import SEED, TOP_LOGPROBS, Reader
from coldproof.adapters.server.lacking import Lacks
from coldproof.adapters.server.metrics_page import Families
from coldproof.adapters.server.vllm_metrics import METRICS_PATH

NO_SALT = "only /v1/chat/completions has cache_salt, and its answers have no token ids"
NO_RESET = "no route empties the cache of a server that is not built for reinforcement learning"
NO_CHAT = "no route returns the token ids of a chat's prompt"
NO_PROMPT_SCORES = "the server returns no scores of the prompt's tokens"
NO_PRIORITY = "priorities are numbers from 0 to 1, which need waiting_queue_policy: Coldproof sends none"


LOADING_PROMPT = (1,)  # shorter than a block, so that nothing of it is cached

LACKS = Lacks(chats=NO_CHAT, salts=NO_SALT, prompt_scores=NO_PROMPT_SCORES, priorities=NO_PRIORITY)


class LoraRequest(msgspec.Struct, frozen=True):
    """The adapter of a request, as the server's own class has it."""

    lora_name: str
    lora_int_id: int
    lora_path: str


class TrtllmClient(HttpClient):
    """A client for one server. `adapters`: those that were loaded, which only the client knows."""

    generate_path = "/v1/completions"
    base_model = ""  # set by the probes

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.adapters: dict[str, LoraRequest] = {}
        self.ids = itertools.count(1)
        self.lock = threading.Lock()

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        """Return the JSON body of a request, which is streamed. Raises RequestRefused for what the server lacks."""
        surface = request.surface
        LACKS.refuse(request)
        fields: dict[str, Any] = {
            "model": request.model,
            "prompt": list(request.prompt),
            "max_tokens": request.max_tokens,
            "temperature": 0 if surface.answers == 1 else 1,
            "seed": SEED,
            "ignore_eos": not surface.stop and surface.pattern is None,
            "add_special_tokens": False,
            "detokenize": False,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.model != self.base_model:
            fields["lora_request"] = msgspec.to_builtins(self.adapter(request.model))
        if surface.answers > 1:
            fields["n"] = surface.answers
        if surface.stop:
            fields["stop"] = list(surface.stop)
        if surface.pattern is not None:
            fields["response_format"] = {"type": "regex", "regex": surface.pattern}
        if surface.logprobs:
            fields["logprobs"] = TOP_LOGPROBS
        return fields

    def reader(self, on_token: Callable[[int], None] | None) -> Reader:
        """Return a reader for one answer."""
        return Reader(on_token)

    def adapter(self, name: str) -> LoraRequest:
        """Return the adapter of a name. Raises RequestRefused: the server would answer as its base model."""
        adapter = self.adapters.get(name)
        if adapter is None:
            raise RequestRefused(404, f"no adapter is loaded as {name}")
        return adapter

    def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> None:  # noqa: ARG002 - always new
        """Give the name an id that no request has used, and send a request with it, at which the server loads it.

        Raises RequestRefused with the server's reason; the name keeps its adapter.
        """
        with self.lock:
            before, self.adapters[name] = self.adapters.get(name), LoraRequest(name, next(self.ids), path)
        try:
            self.complete(CompletionRequest(model=name, prompt=LOADING_PROMPT, max_tokens=1))
        except RequestRefused:
            with self.lock:
                self.adapters.pop(name)
                if before is not None:
                    self.adapters[name] = before
            raise

    def unload_adapter(self, name: str) -> None:
        """Forget a name. Raises RequestRefused for an unknown one. The server evicts adapters by itself."""
        with self.lock:
            self.adapter(name)
            self.adapters.pop(name)

    def render(self, model: str, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Raise RequestRefused: a chat's prompt is not known."""
        raise RequestRefused(501, f"{len(messages)} messages for {model}: {NO_CHAT}")

    def reset(self, _scope: tuple[ResetScope, ...] = ()) -> tuple[bool, str]:
        """Raise RequestRefused: there is no reset."""
        raise RequestRefused(501, NO_RESET)

    def scrape(self, path: str = METRICS_PATH) -> Families | None:  # noqa: ARG002 - whichever
        """Return nothing: /metrics has statistics of iterations in JSON, not counters."""
        return None

"""The HTTP client of a server that nobody has told us about: it sends what the probes found that the server takes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import requests

from coldproof.adapters.endpoint.cold import CACHE_FIELD, ColdWay
from coldproof.adapters.endpoint.forms import NO_FIELD, OWN_FIELDS, Form, form_body
from coldproof.adapters.protocol.engine import EngineDied, EngineError, RequestRefused
from coldproof.adapters.protocol.requests import CompletionRequest, Message
from coldproof.adapters.server.answers import safe_start
from coldproof.adapters.server.client import SCRAPE_SECONDS, HttpClient
from coldproof.adapters.server.completions import Reader
from coldproof.adapters.server.plain_answers import PlainReader
from coldproof.adapters.server.transport import BROKEN, CONNECT_SECONDS

HEALTH = "/health"
POLLS, POLL_SECONDS = 3, 0.3
UNKNOWN = "{} is no model of this server"
OF_FILLERS, FILLER_TOKENS = range(33, 126), 8


class EndpointClient(HttpClient):
    """A client for one server. `form`, `base_model`, `cold_way`, `displacing`: set by the probes.

    `displacing`: how many other prompts are sent before a request that must be cold, where they displace it.
    """

    form = Form.FIELDS
    base_model = ""
    cold_way: ColdWay | None = None
    displacing = 0

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.loaded: set[str] = set()  # adapters

    def use(self, form: Form) -> None:
        """Use this form from now on."""
        self.form, self.names_tokens = form, form is Form.NAMES
        self.leave_connection()

    def new_session(self) -> requests.Session:
        """Return a session. Servers that are not vLLM may close a connection after a stream without notice, as
        llama.cpp's does: each request then needs one of its own.
        """
        session = super().new_session()
        if self.form not in OWN_FIELDS:
            session.headers["Connection"] = "close"
        return session

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        """Return the JSON body of a generation request. Raises RequestRefused for what the form cannot say, and for a
        model that is not served: llama.cpp's server ignores its name.
        """
        if self.form in OWN_FIELDS:
            fields = super().body(request)
        elif request.model in (self.base_model, *self.loaded):
            fields = form_body(self.form, request)
        else:
            raise RequestRefused(404, UNKNOWN.format(request.model))
        return fields | (CACHE_FIELD if request.cold and self.cold_way is ColdWay.FIELD else {})

    def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> None:
        """Load or replace an adapter. Raises RequestRefused with the server's reason."""
        super().load_adapter(name, path, in_place=in_place)
        self.loaded.add(name)

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter. Raises RequestRefused with the server's reason."""
        super().unload_adapter(name)
        self.loaded.discard(name)

    def render(self, model: str, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Return the token ids of messages. Raises RequestRefused: only vLLM's route is known to render a chat."""
        if self.form not in OWN_FIELDS:
            raise RequestRefused(501, NO_FIELD.format("chats"))
        return super().render(model, messages)

    def watch_health(self) -> None:
        """Take the server for ended from now on when it is not healthy, if it says so at all."""
        if self.is_healthy():
            self.alive = self.is_healthy

    def is_healthy(self) -> bool:
        """Return whether /health answers. A server that is too busy for that is not known to have ended, nor is one
        that says so once.
        """
        for _ in range(POLLS):
            try:
                if self.session().get(self.url + HEALTH, timeout=(CONNECT_SECONDS, SCRAPE_SECONDS)).ok:
                    return True
            except requests.ReadTimeout:
                return True
            except BROKEN:
                pass
            time.sleep(POLL_SECONDS)
        return False

    def _failed(self, status: int, said: str) -> EngineError:
        """Return the error for a status of failure. A server that was healthy and is not any more has ended, whatever
        the status: that of mlx-lm, whose thread for generation has ended, is 404.
        """
        if not self.alive():
            return EngineDied(f"the server says at {HEALTH} that it is not healthy any more: {safe_start(said)[:200]}")
        return super()._failed(status, said)

    def reader(self, on_token: Callable[[int], None] | None) -> Reader:
        """Return a reader for one answer."""
        if self.form in OWN_FIELDS:
            return super().reader(on_token)
        return PlainReader(on_token, characters=self.form is Form.CHARACTERS)

    def is_whole(self, request: CompletionRequest) -> bool:
        """Return whether the answer to a request is one response."""
        if self.form is Form.CHARACTERS:
            return request.options.logprobs
        return super().is_whole(request)

    def clear(self, *cold: CompletionRequest) -> None:
        """Make sure that these requests find nothing that was sent before: by a reset, or by other prompts."""
        if self.cold_way is ColdWay.RESET:
            self.reset()
        if self.cold_way is ColdWay.DISPLACED:
            self.displace(self.displacing, *cold)

    def displace(self, count: int, *cold: CompletionRequest) -> None:
        """Send so many prompts that no server has seen, of which none begins as those of these requests."""
        taken = {token for request in cold for token in request.prompt[:1]}
        first = [token for token in OF_FILLERS if token not in taken]
        for _ in range(count):
            prompt = (random.choice(first), *random.choices(OF_FILLERS, k=FILLER_TOKENS - 1))
            self.complete(CompletionRequest(model=cold[0].model, prompt=prompt, max_tokens=1))

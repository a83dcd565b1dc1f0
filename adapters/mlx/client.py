"""The HTTP client of mlx-lm's server. It takes texts, and returns token ids with scores, but not in a stream.

Each printable character is one token of a generated model, whose id is the character's code. So a prompt of printable
tokens is a text, and the ids of a streamed answer are its characters. The counts in `usage` show whether that holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coldproof.adapters.common.registered_adapters import RegisteredAdapters
from coldproof.adapters.protocol.engine import EngineDied, EngineError, RequestRefused
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.completions import Reader
from coldproof.adapters.server.plain_answers import PlainReader, text_fields

BASE_MODEL = "base"
DEFAULT_MODEL = "default_model"  # the server's name of the model with which it was started
TOO_LONG = "a prompt of {} tokens: the model has positions for {}, and mlx-lm's server has no limit of its own"


class MlxAdapters(RegisteredAdapters):
    """The server's adapters, each in a folder of its own. A request names its folder in the field `adapters`.

    `folders`: in the order of the digests. `model`: the path of the model, by which such a request names it, or the
    server's own name of it.
    """

    def __init__(self, digests: Sequence[str], folders: Sequence[str], model: str = DEFAULT_MODEL) -> None:
        super().__init__(digests)
        self.folders, self.model = folders, model

    def choice(self, name: str) -> dict[str, str]:
        """Return the fields of a request to a served name. Raises RequestRefused for an unknown one."""
        if name == BASE_MODEL:
            return {"model": DEFAULT_MODEL}
        return {"model": self.model, "adapters": self.folders[self.bound_to(name)]}


class MlxClient(HttpClient):
    """A client for one server. `longest`: tokens of a prompt. The server has no limit, but the model has positions."""

    generate_path = "/v1/completions"

    def __init__(self, url: str, *, alive: Callable[[], bool], adapters: MlxAdapters, longest: int) -> None:
        super().__init__(url, alive=alive)
        self.adapters, self.longest = adapters, longest

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        """Return the JSON of a request. Raises RequestRefused for a prompt that has no text, or no position in the
        model, or for an unknown model.

        It has no seed, with which the server serves requests one by one (`_is_batchable`).
        """
        if len(request.prompt) > self.longest:
            raise RequestRefused(400, TOO_LONG.format(len(request.prompt), self.longest))
        return text_fields(request) | self.adapters.choice(request.model)

    def is_whole(self, request: CompletionRequest) -> bool:
        """Return whether the answer to a request is one response: scores are not streamed."""
        return request.options.logprobs

    def _failed(self, status: int, said: str) -> EngineError:
        """Return the error for a status of failure. Where the thread that generates has ended, it is 404."""
        if not self.alive():
            return EngineDied(f"the thread that generates has ended: {said[:200]}")
        return super()._failed(status, said)

    def reader(self, on_token: Callable[[int], None] | None) -> Reader:
        """Return a reader for one answer."""
        return PlainReader(on_token)

"""The HTTP client of mlx-lm's server. It takes texts, and returns token ids with scores, but not in a stream.

Each printable character is one token of a generated model, whose id is the character's code. So a prompt of printable
tokens is a text, and the ids of a streamed answer are its characters. The counts in `usage` show whether that holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from coldproof.adapters.common.registered_adapters import RegisteredAdapters
from coldproof.adapters.common.tiny_model import PRINTABLE
from coldproof.adapters.protocol.engine import EngineDied, EngineError, RequestRefused
from coldproof.adapters.protocol.requests import CompletionRequest, Token
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.completions import TOP_LOGPROBS, Reader, gap

BASE_MODEL = "base"
DEFAULT_MODEL = "default_model"  # the server's name of the model with which it was started
OTHER_TEXT = (
    "mlx-lm's server takes texts: a token of this prompt is no printable character of the generated model's vocabulary"
)
TOO_LONG = "a prompt of {} tokens: the model has positions for {}, and mlx-lm's server has no limit of its own"
OTHER_TOKENS = "mlx-lm's server counted {} tokens in the {}, which has {} characters: its tokenizer has other tokens"


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


class Candidate(msgspec.Struct, frozen=True):
    """The score of a candidate token."""

    logprob: float


class Score(msgspec.Struct, frozen=True):
    """A token of the answer with its score, and the best candidates at its position."""

    id: int
    logprob: float
    top_logprobs: list[Candidate] = []


class Scores(msgspec.Struct, frozen=True):
    """The tokens of an answer."""

    content: list[Score] = []


class Choice(msgspec.Struct, frozen=True):
    """A part of an answer, or all of it."""

    text: str = ""
    finish_reason: str | None = None
    logprobs: Scores | None = None


class PromptDetails(msgspec.Struct, frozen=True):
    """How many tokens of a prompt came from the cache."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """What the server counted."""

    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptDetails | None = None


class Event(msgspec.Struct, frozen=True):
    """An event of a stream, or a whole response."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: str | None = None


def text_of(prompt: Sequence[int]) -> str:
    """Return a prompt as a text. Raises RequestRefused for a token that is no printable character."""
    if not all(token in PRINTABLE for token in prompt):
        raise RequestRefused(501, OTHER_TEXT)
    return "".join(map(chr, prompt))


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
        fields = {"prompt": text_of(request.prompt), "max_tokens": request.max_tokens, "temperature": 0.0}
        if request.options.logprobs:
            fields |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        else:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        return fields | self.adapters.choice(request.model)

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
        return MlxReader(on_token)


class MlxReader(Reader):
    """Collects an answer from the server's events, or from a whole response."""

    expected = "a JSON object with choices and usage"

    def expect(self, request: CompletionRequest) -> None:
        """Expect the answer to a request."""
        super().expect(request)
        self.prompt_tokens = len(request.prompt)

    def take_event(self, data: str) -> None:
        """Read one event in JSON. Raises MsgspecError if it has another form."""
        event = msgspec.json.decode(data, type=Event)
        if event.error is not None:
            self.error = event.error
            return
        for choice in event.choices:
            self.take_choice(choice)
        if event.usage is not None:
            self.take_usage(event.usage)

    def take_choice(self, choice: Choice) -> None:
        """Add the tokens of a part of the answer: those with scores, else its characters."""
        known, at = self.answers.setdefault(0, []), round(time.monotonic() - self.start_time, 6)
        if choice.logprobs is None:
            known.extend(Token(id=ord(character), at=at) for character in choice.text)
        else:
            for one in choice.logprobs.content:
                best = gap([candidate.logprob for candidate in one.top_logprobs])
                known.append(Token(id=one.id, at=at, logprob=one.logprob, gap=best))
        self.text += choice.text
        self.finish_reason = choice.finish_reason or self.finish_reason
        if self.on_token is not None and known:
            self.on_token(len(known))

    def take_usage(self, usage: Usage) -> None:
        """Read the counts, which must be those of the characters: else these are no tokens.

        A space at the start of a text is the only character that the server leaves out (`_maybe_trim_space`).
        """
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens
        known = self.answers.setdefault(0, [])
        if usage.completion_tokens == len(known) + 1:
            at = known[0].at if known else round(time.monotonic() - self.start_time, 6)
            known.insert(0, Token(id=ord(" "), at=at))
        counts = {"prompt": (usage.prompt_tokens, self.prompt_tokens), "answer": (usage.completion_tokens, self.count)}
        for name, (told, ours) in counts.items():
            if told != ours:
                self.error, self.status = OTHER_TOKENS.format(told, name, ours), 501

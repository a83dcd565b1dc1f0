"""Answers of servers without a field for token ids: the ids stand beside the scores, or each character is a token.

Whether that is so, the counts in `usage` show: an answer with other counts is refused, not judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from coldproof.adapters.common.tiny_model import PRINTABLE
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import CompletionRequest, Token
from coldproof.adapters.server.completions import TOP_LOGPROBS, Count, PromptDetails, Reader, gap

OTHER_TEXT = "the server takes texts: a token of this prompt is no printable character, which a text would need"
NO_COUNTS = "a streamed answer without usage: the counts of its tokens are not known"
OTHER_TOKENS = "the server counted {} tokens in the {}, of which {} are known: its tokenizer has other tokens"

MOST_EVENTS = 64  # for each token that was requested: an answer whose tokens are not known may have no end


class Candidate(msgspec.Struct, frozen=True):
    """The score of a candidate token."""

    logprob: float


class Score(msgspec.Struct, frozen=True):
    """A token of the answer with its score, and the best candidates at its position."""

    id: Count
    logprob: float | None = None
    top_logprobs: list[Candidate] | None = None


class Scores(msgspec.Struct, frozen=True):
    """The tokens of an answer, or of a part of it."""

    content: list[Score] | None = None


class Choice(msgspec.Struct, frozen=True):
    """A part of an answer, or all of it."""

    text: str | None = None
    finish_reason: str | None = None
    logprobs: Scores | None = None


class Usage(msgspec.Struct, frozen=True):
    """What the server counted."""

    prompt_tokens: Count
    completion_tokens: Count
    prompt_tokens_details: PromptDetails | None = None


class Event(msgspec.Struct, frozen=True):
    """An event of a stream, or a whole response."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: object = None


def text_of(prompt: Sequence[int]) -> str:
    """Return a prompt as a text. Raises RequestRefused for a token that is no printable character."""
    if not all(token in PRINTABLE for token in prompt):
        raise RequestRefused(501, OTHER_TEXT)
    return "".join(map(chr, prompt))


def text_fields(request: CompletionRequest) -> dict[str, Any]:
    """Return the fields of a request whose prompt is a text, by OpenAI's names. Scores come in a whole response.

    Raises RequestRefused for a prompt that has no text.
    """
    fields = {"prompt": text_of(request.prompt), "max_tokens": request.max_tokens, "temperature": 0.0}
    if request.options.logprobs:
        return fields | {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
    return fields | {"stream": True, "stream_options": {"include_usage": True}}


class PlainReader(Reader):
    """Collects an answer from the server's events, or from a whole response. `characters`: without scores, each
    character of the text is a token.
    """

    expected = "a JSON object with choices and usage"

    def __init__(self, on_token: Callable[[int], None] | None, *, characters: bool = True) -> None:
        super().__init__(on_token)
        self.characters = characters
        self.prompt_tokens = 0
        self.counted = False

    def expect(self, request: CompletionRequest) -> None:
        """Expect the answer to a request."""
        super().expect(request)
        self.prompt_tokens = len(request.prompt)

    def take(self, data: str) -> None:
        """Read one payload. A stream without counts is refused: nothing says that its characters are tokens."""
        super().take(data)
        self.overlong = self.overlong or self.events > MOST_EVENTS * (self.most_tokens + 1)
        if data == "[DONE]" and not self.counted and self.error is None:
            self.error, self.status = NO_COUNTS, 501

    def take_event(self, data: str) -> None:
        """Read one event in JSON. Raises MsgspecError if it has another form."""
        event = msgspec.json.decode(data, type=Event)
        if event.error is not None:
            self.error = event.error if isinstance(event.error, str) else msgspec.json.encode(event.error).decode()
            return
        for choice in event.choices:
            self.take_choice(choice)
        if event.usage is not None:
            self.take_usage(event.usage)

    def take_choice(self, choice: Choice) -> None:
        """Add the tokens of a part of the answer: those with scores, else its characters if they are tokens."""
        known, at = self.answers.setdefault(0, []), round(time.monotonic() - self.start_time, 6)
        text, scores = choice.text or "", None if choice.logprobs is None else choice.logprobs.content
        if scores is None and self.characters:
            known.extend(Token(id=ord(character), at=at) for character in text)
        for one in scores or ():
            best = gap([candidate.logprob for candidate in one.top_logprobs or ()])
            known.append(Token(id=one.id, at=at, logprob=one.logprob if self.with_scores else None, gap=best))
        self.text += text
        self.finish_reason = choice.finish_reason or self.finish_reason
        if self.on_token is not None and known:
            self.on_token(len(known))

    def take_usage(self, usage: Usage) -> None:
        """Read the counts, which must be those of the tokens.

        mlx-lm leaves out a space at the start of a text, and no other character (`_maybe_trim_space`).
        """
        self.counted = True
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens
        known = self.answers.setdefault(0, [])
        left_out = usage.completion_tokens == len(known) + 1 == len(self.text) + 1
        if left_out and self.finish_reason == "length":  # otherwise it is the token that ended the answer
            at = known[0].at if known else round(time.monotonic() - self.start_time, 6)
            known.insert(0, Token(id=ord(" "), at=at))
            if self.on_token is not None:
                self.on_token(len(known))
        counts = {"prompt": (usage.prompt_tokens, self.prompt_tokens), "answer": (usage.completion_tokens, self.count)}
        for name, (told, ours) in counts.items():
            if told != ours:
                self.error, self.status = OTHER_TOKENS.format(told, name, ours), 501

"""The endpoints of vLLM's server beside completions and chats: bodies of requests, and what their answers say.

Answers are read as a whole. An endpoint that returns only text is asked for the token ids of this text by /tokenize.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from coldproof.adapters.protocol.endpoints import Endpoint
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, Message, Token
from coldproof.adapters.server.completions import SEED, Count, PromptDetails, Usage

Retokenize = Callable[[str], tuple[int, ...]]
ENDS = {"max_tokens": "length", "end_turn": "stop", "stop_sequence": "stop"}
NOT_EXACT = "an answer of {said} tokens has {long} characters, and {read} tokens by /tokenize"


class NotExact(Exception):
    """The tokens of an answer do not follow from its text. They do if each token is one character."""


def body(request: CompletionRequest, endpoint: Endpoint) -> dict[str, Any]:
    """Return the JSON body of a request at an endpoint."""
    fields: dict[str, Any] = {"model": request.model, **BODIES[endpoint](request)}
    if request.cache_salt is not None:
        fields["cache_salt"] = request.cache_salt
    if request.priority:
        fields["priority"] = request.priority
    return fields


def generate_body(request: CompletionRequest) -> dict[str, Any]:
    """Return the fields of a prompt of token ids."""
    sampling = {"max_tokens": request.max_tokens, "temperature": 0, "seed": SEED, "ignore_eos": True}
    return {
        "token_ids": list(request.prompt),
        "sampling_params": sampling,
        "output_mode": "text",
        "return_token_ids": True,
    }


def responses_body(request: CompletionRequest) -> dict[str, Any]:
    """Return the fields of a response. The server is asked for the tokens, and not to store the response."""
    return {
        "input": as_dicts(request.messages or ()),
        "max_output_tokens": request.max_tokens,
        "temperature": 0,
        "seed": SEED,
        "ignore_eos": True,
        "store": False,
        "enable_response_messages": True,
    }


def messages_body(request: CompletionRequest) -> dict[str, Any]:
    """Return the fields of messages: the system's are one text. There is no field against an early end."""
    system = "".join(message.content for message in request.messages or () if message.role == "system")
    others = tuple(message for message in request.messages or () if message.role != "system")
    return {"system": system, "messages": as_dicts(others), "max_tokens": request.max_tokens, "temperature": 0}


def as_dicts(messages: tuple[Message, ...]) -> list[dict[str, str]]:
    """Return messages as a body has them."""
    return [{"role": message.role, "content": message.content} for message in messages]


class GeneratedChoice(msgspec.Struct, frozen=True):
    """An answer in tokens and text."""

    token_ids: list[Count]
    text: str
    finish_reason: str | None


class GenerateAnswer(msgspec.Struct, frozen=True):
    """An answer of the endpoint for token ids."""

    choices: list[GeneratedChoice]
    usage: Usage | None = None
    prompt_token_ids: list[Count] | None = None


class TextAndTokens(msgspec.Struct, frozen=True):
    """A prompt or an answer in text and tokens."""

    message: str
    tokens: list[Count]


class ResponsesUsage(msgspec.Struct, frozen=True):
    """The counts of a response."""

    input_tokens_details: PromptDetails | None = None


class ResponsesAnswer(msgspec.Struct, frozen=True):
    """An answer of the endpoint for responses."""

    input_messages: list[TextAndTokens]
    output_messages: list[TextAndTokens]
    status: str
    usage: ResponsesUsage | None = None


class TextBlock(msgspec.Struct, frozen=True):
    """A part of a message."""

    text: str | None = None


class MessagesUsage(msgspec.Struct, frozen=True):
    """The counts of messages."""

    output_tokens: Count
    cache_read_input_tokens: Count | None = None


class MessagesAnswer(msgspec.Struct, frozen=True):
    """An answer of the endpoint for messages."""

    content: list[TextBlock]
    stop_reason: str | None
    usage: MessagesUsage


def read_generate(content: bytes, at: float, _retokenize: Retokenize) -> Completion:
    """Return the answer of the endpoint for token ids."""
    answer = msgspec.json.decode(content, type=GenerateAnswer)
    choice = answer.choices[0]
    return Completion(
        tokens=tokens_at(choice.token_ids, at),
        text=choice.text,
        finish_reason=choice.finish_reason,
        cached_tokens=None if answer.usage is None else cached(answer.usage.prompt_tokens_details),
        prompt=None if answer.prompt_token_ids is None else tuple(answer.prompt_token_ids),
    )


def read_responses(content: bytes, at: float, _retokenize: Retokenize) -> Completion:
    """Return the answer of the responses endpoint. An incomplete response has all tokens that were allowed."""
    answer = msgspec.json.decode(content, type=ResponsesAnswer)
    prompt, said = answer.input_messages[0], answer.output_messages[0]
    return Completion(
        tokens=tokens_at(said.tokens, at),
        text=said.message,
        finish_reason="length" if answer.status == "incomplete" else "stop",
        cached_tokens=None if answer.usage is None else cached(answer.usage.input_tokens_details),
        prompt=tuple(prompt.tokens),
    )


def read_messages(content: bytes, at: float, retokenize: Retokenize) -> Completion:
    """Return the answer of the endpoint for messages, with the tokens of its text. Raises NotExact."""
    answer = msgspec.json.decode(content, type=MessagesAnswer)
    text = "".join(block.text or "" for block in answer.content)
    return Completion(
        tokens=tokens_at(exact_tokens(text, answer.usage.output_tokens, retokenize), at),
        text=text,
        finish_reason=ENDS.get(answer.stop_reason or "", answer.stop_reason),
        cached_tokens=answer.usage.cache_read_input_tokens,
    )


def exact_tokens(text: str, said: int, retokenize: Retokenize) -> tuple[int, ...]:
    """Return the token ids of an answer by its text. `said`: how many tokens it has. Raises NotExact."""
    tokens = retokenize(text)
    if not len(tokens) == len(text) == said:
        raise NotExact(NOT_EXACT.format(said=said, long=len(text), read=len(tokens)))
    return tokens


def tokens_at(ids: list[int] | tuple[int, ...], at: float) -> tuple[Token, ...]:
    """Return tokens that arrived together."""
    return tuple(Token(id=token, at=at) for token in ids)


def cached(details: PromptDetails | None) -> int | None:
    """Return the number of cached tokens."""
    return None if details is None else details.cached_tokens


BODIES = {Endpoint.GENERATE: generate_body, Endpoint.RESPONSES: responses_body, Endpoint.MESSAGES: messages_body}
READERS = {Endpoint.GENERATE: read_generate, Endpoint.RESPONSES: read_responses, Endpoint.MESSAGES: read_messages}
EXPECTED = "an answer of this endpoint with text or token ids, and usage"

"""The doors of SGLang's server beside /generate: bodies of requests, what their answers say, and which of them it has.

Answers are read as a whole: chats report token ids only so. Responses and messages report text, whose ids /tokenize
returns.

An adapter has two names: its own, which /v1/models lists, and `BASE:ADAPTER`, which SGLang's documentation of adapters
has. Completions get the first one, the others the second, so that both are tested.
"""

from __future__ import annotations

from typing import Any

import msgspec

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.doors import DOOR_CAPABILITIES, Door
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, Token
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.completions import Reader, option_fields
from coldproof.adapters.server.doors import (
    ResponsesUsage,
    Retokenize,
    TextBlock,
    as_dicts,
    cached,
    exact_tokens,
    messages_body,
    read_messages,
    tokens_at,
)
from coldproof.adapters.server.probe_doors import TOKENS, TURNS, probe_door

WHOLE = (Door.COMPLETIONS, Door.CHAT, Door.RESPONSES, Door.MESSAGES)
HEADROOM = 2  # tokens by which /v1/responses shortens what it allows (0.5.23: ResponsesRequest.to_sampling_params)
NO_SAMPLING_SEED = "sampled answers have no seed, so that a second request cannot repeat them"
ONLY_TOKENS = "prompt logprobs are requested at /generate only"


def body(request: CompletionRequest, door: Door, base: str, salt_field: str) -> dict[str, Any]:
    """Return the JSON body of a request at a door. `base`: the base model's name.

    Raises RequestRefused for options that no body has.
    """
    if request.surface.answers > 1:
        raise RequestRefused(501, NO_SAMPLING_SEED)
    if request.surface.prompt_logprobs:
        raise RequestRefused(501, ONLY_TOKENS)
    own = request.model == base or door is Door.COMPLETIONS
    fields: dict[str, Any] = {"model": request.model if own else f"{base}:{request.model}", **BODIES[door](request)}
    if request.cache_salt is not None:
        fields[salt_field] = request.cache_salt
    if request.priority:
        fields["priority"] = request.priority
    return fields


def completion_body(request: CompletionRequest) -> dict[str, Any]:
    """Return the fields of a prompt of token ids."""
    return {"prompt": list(request.prompt), **sampling(request, chat=False)}


def chat_body(request: CompletionRequest) -> dict[str, Any]:
    """Return the fields of a chat."""
    return {"messages": as_dicts(request.messages or ()), **sampling(request, chat=True)}


def sampling(request: CompletionRequest, *, chat: bool) -> dict[str, Any]:
    """Return the fields that completions and chats have in common."""
    surface = request.surface
    early = bool(surface.stop) or surface.pattern is not None
    options = option_fields(surface, chat=chat)
    options.pop("structured_outputs", None)
    options.pop("return_tokens_as_token_ids", None)
    return {
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "ignore_eos": not early,
        "return_token_ids": True,
        **options,
        **({} if surface.pattern is None else {"regex": surface.pattern}),
    }


def responses_body(request: CompletionRequest) -> dict[str, Any]:
    """Return the fields of a response, which is not to be stored. There is no field against an early end."""
    return {
        "input": as_dicts(request.messages or ()),
        "max_output_tokens": request.max_tokens + HEADROOM,
        "temperature": 0,
        "store": False,
    }


class Item(msgspec.Struct, frozen=True):
    """A part of a response: a message has texts."""

    content: list[TextBlock] | None = None


class ResponsesCounts(ResponsesUsage, frozen=True):
    """The counts of a response, with that of its tokens."""

    output_tokens: int = 0


class ResponsesAnswer(msgspec.Struct, frozen=True):
    """An answer of the door for responses."""

    output: list[Item]
    status: str
    usage: ResponsesCounts


def read(door: Door, content: bytes, at: float, retokenize: Retokenize, *, counts: bool) -> Completion:
    """Return the answer of a door. `at`: its time. `counts`: the server reports cached tokens at these doors.

    Messages leave out a count of 0. Raises NotExact, and the errors of decoding or indexing for another form.
    """
    match door:
        case Door.RESPONSES:
            return read_responses(content, at, retokenize)
        case Door.MESSAGES:
            answer = read_messages(content, at, retokenize)
            missed = counts and answer.cached_tokens is None
            return msgspec.structs.replace(answer, cached_tokens=0) if missed else answer
    return read_openai(content, at)


def read_openai(content: bytes, at: float) -> Completion:
    """Return a completion or a chat, whose field for token ids has another name."""
    page = msgspec.json.decode(content, type=dict[str, Any])
    for choice in page["choices"]:
        choice["token_ids"] = choice.pop("response_token_ids", None) or choice["token_ids"]
    reader = Reader(None)
    reader.take_event(msgspec.json.encode(page).decode())
    answer = reader.completion()
    return msgspec.structs.replace(answer, tokens=tuple(arrived(token, at) for token in answer.tokens))


def arrived(token: Token, at: float) -> Token:
    """Return a token with the time of its answer."""
    return msgspec.structs.replace(token, at=at)


def read_responses(content: bytes, at: float, retokenize: Retokenize) -> Completion:
    """Return the answer of the door for responses, with the tokens of its text. Raises NotExact."""
    answer = msgspec.json.decode(content, type=ResponsesAnswer)
    text = "".join(block.text or "" for item in answer.output for block in item.content or ())
    return Completion(
        tokens=tokens_at(exact_tokens(text, answer.usage.output_tokens, retokenize), at),
        text=text,
        finish_reason="length" if answer.status == "incomplete" else "stop",
        cached_tokens=cached(answer.usage.input_tokens_details),
    )


def probe_doors(client: HttpClient, model: str, found: dict[Capability, Support]) -> dict[Capability, Support]:
    """Return which doors render the same messages to the same prompt, and give the same answer as /generate.

    The doors for completions and chats are always two of several, so that there are none if one gives another answer.
    """
    needed = (Capability.DOORS, *(DOOR_CAPABILITIES[door] for door in (Door.GENERATE, Door.RESPONSES, Door.MESSAGES)))
    chat = found[Capability.CHAT]
    if chat.present is not True:
        return dict.fromkeys(needed, chat)
    prompt = client.render(model, TURNS)
    alone = CompletionRequest(model=model, prompt=prompt, max_tokens=TOKENS)
    expected = client.complete(alone)
    at = {door: probe_door(client, model, door, prompt, expected, client.path(alone)) for door in WHOLE}
    usual = next((at[door] for door in (Door.CHAT, Door.COMPLETIONS) if at[door].present is not True), None)
    if usual is not None:
        return dict.fromkeys(needed, usual)
    return {
        Capability.DOORS: at[Door.CHAT],
        Capability.GENERATE_DOOR: at[Door.COMPLETIONS],
        Capability.RESPONSES_DOOR: at[Door.RESPONSES],
        Capability.MESSAGES_DOOR: at[Door.MESSAGES],
    }


BODIES = {
    Door.COMPLETIONS: completion_body,
    Door.CHAT: chat_body,
    Door.RESPONSES: responses_body,
    Door.MESSAGES: messages_body,
}

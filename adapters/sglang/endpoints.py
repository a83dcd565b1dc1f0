"""SGLang's endpoints beside /generate: bodies of requests, what their answers say, and which of them a server has.

Answers are read as a whole: chats report token ids only so. Responses and messages report text, whose ids /tokenize
returns.

An adapter has two names: its own, which /v1/models lists, and `BASE:ADAPTER`, which SGLang's documentation of adapters
has. Completions get the first one, the others the second, so that both are tested.
"""

from __future__ import annotations

from typing import Any

import msgspec

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.endpoints import ENDPOINT_CAPABILITIES, Endpoint
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, Token
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.completions import Reader, option_fields
from coldproof.adapters.server.endpoints import (
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
from coldproof.adapters.server.probe_endpoints import TOKENS, TURNS, probe_endpoint

WHOLE = (Endpoint.COMPLETIONS, Endpoint.CHAT, Endpoint.RESPONSES, Endpoint.MESSAGES)
HEADROOM = 2  # tokens by which /v1/responses shortens what it allows (0.5.23: ResponsesRequest.to_sampling_params)
NO_SAMPLING_SEED = "sampled answers have no seed, so that a second request cannot repeat them"
ONLY_TOKENS = "prompt logprobs are requested at /generate only"


def body(request: CompletionRequest, endpoint: Endpoint, base: str, salt_field: str) -> dict[str, Any]:
    """Return the JSON body of a request at an endpoint. `base`: the base model's name.

    Raises RequestRefused for options that no body has.
    """
    if request.options.answers > 1:
        raise RequestRefused(501, NO_SAMPLING_SEED)
    if request.options.prompt_logprobs:
        raise RequestRefused(501, ONLY_TOKENS)
    own = request.model == base or endpoint is Endpoint.COMPLETIONS
    fields: dict[str, Any] = {"model": request.model if own else f"{base}:{request.model}", **BODIES[endpoint](request)}
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
    response_options = request.options
    early = bool(response_options.stop) or response_options.pattern is not None
    options = option_fields(response_options, chat=chat)
    options.pop("structured_outputs", None)
    options.pop("return_tokens_as_token_ids", None)
    return {
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "ignore_eos": not early,
        "return_token_ids": True,
        **options,
        **({} if response_options.pattern is None else {"regex": response_options.pattern}),
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
    """An answer of the endpoint for responses."""

    output: list[Item]
    status: str
    usage: ResponsesCounts


def read(endpoint: Endpoint, content: bytes, at: float, retokenize: Retokenize, *, counts: bool) -> Completion:
    """Return the answer of an endpoint. `at`: its time. `counts`: the server reports cached tokens at these endpoints.

    Messages leave out a count of 0. Raises NotExact, and the errors of decoding or indexing for another form.
    """
    match endpoint:
        case Endpoint.RESPONSES:
            return read_responses(content, at, retokenize)
        case Endpoint.MESSAGES:
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
    """Return the answer of the endpoint for responses, with the tokens of its text. Raises NotExact."""
    answer = msgspec.json.decode(content, type=ResponsesAnswer)
    text = "".join(block.text or "" for item in answer.output for block in item.content or ())
    return Completion(
        tokens=tokens_at(exact_tokens(text, answer.usage.output_tokens, retokenize), at),
        text=text,
        finish_reason="length" if answer.status == "incomplete" else "stop",
        cached_tokens=cached(answer.usage.input_tokens_details),
    )


def probe_endpoints(client: HttpClient, model: str, found: dict[Capability, Support]) -> dict[Capability, Support]:
    """Return which endpoints render the same messages to the same prompt, and give the same answer as /generate.

    Completions and chats are always two of several endpoints, so that there are none if one gives another answer.
    """
    needed = (
        Capability.ENDPOINTS,
        *(ENDPOINT_CAPABILITIES[endpoint] for endpoint in (Endpoint.GENERATE, Endpoint.RESPONSES, Endpoint.MESSAGES)),
    )
    chat = found[Capability.CHAT]
    if chat.present is not True:
        return dict.fromkeys(needed, chat)
    prompt = client.render(model, TURNS)
    alone = CompletionRequest(model=model, prompt=prompt, max_tokens=TOKENS)
    expected = client.complete(alone)
    at = {endpoint: probe_endpoint(client, model, endpoint, prompt, expected, client.path(alone)) for endpoint in WHOLE}
    usual = next(
        (at[endpoint] for endpoint in (Endpoint.CHAT, Endpoint.COMPLETIONS) if at[endpoint].present is not True), None
    )
    if usual is not None:
        return dict.fromkeys(needed, usual)
    return {
        Capability.ENDPOINTS: at[Endpoint.CHAT],
        Capability.GENERATE_ENDPOINT: at[Endpoint.COMPLETIONS],
        Capability.RESPONSES_ENDPOINT: at[Endpoint.RESPONSES],
        Capability.MESSAGES_ENDPOINT: at[Endpoint.MESSAGES],
    }


BODIES = {
    Endpoint.COMPLETIONS: completion_body,
    Endpoint.CHAT: chat_body,
    Endpoint.RESPONSES: responses_body,
    Endpoint.MESSAGES: messages_body,
}

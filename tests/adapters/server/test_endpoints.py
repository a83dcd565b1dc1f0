"""Requests are complete on every endpoint, and answers of every endpoint are read in full."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.fake_reply import MODEL, Counts, ServerBehaviour, answer, rendered
from support.fake_server import FakeServer, serving

from coldproof.adapters.protocol.endpoints import Endpoint
from coldproof.adapters.protocol.engine import MalformedAnswer, RequestRefused
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, Message
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.endpoints import NotExact, body
from coldproof.adapters.server.probe_endpoints import TURNS

MESSAGES = tuple({"role": message.role, "content": message.content} for message in TURNS)
PROMPT = rendered(list(MESSAGES))
NEW = (Endpoint.GENERATE, Endpoint.RESPONSES, Endpoint.MESSAGES)


def new_request(endpoint: Endpoint | None, **changes: Any) -> CompletionRequest:
    """Return a chat of four messages for an endpoint, as the runner sends it."""
    messages = None if endpoint is not None and endpoint.takes_ids else TURNS
    facts = {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "messages": messages, "endpoint": endpoint}
    return CompletionRequest(**{**facts, **changes})


def client_of(fake: FakeServer) -> HttpClient:
    """Return a client of a stand-in that stays alive."""
    return HttpClient(fake.url, alive=lambda: True)


def complete(endpoint: Endpoint | None, behaviour: ServerBehaviour | None = None, **changes: Any) -> Completion:
    """Return the answer to one request on an endpoint of a new server."""
    with serving(behaviour) as fake:
        return client_of(fake).complete(new_request(endpoint, **changes))


@pytest.mark.parametrize("endpoint", NEW)
def test_every_endpoint_gets_the_salt_and_the_priority(endpoint: Endpoint) -> None:
    """Fields without a value are left out."""
    said = body(new_request(endpoint, cache_salt="red", priority=3), endpoint)
    assert (said["model"], said["cache_salt"], said["priority"]) == (MODEL, "red", 3)
    assert not {"cache_salt", "priority"} & set(body(new_request(endpoint), endpoint))


@pytest.mark.parametrize("endpoint", NEW)
def test_a_request_is_greedy_on_every_endpoint(endpoint: Endpoint) -> None:
    """Sampling parameters may be in a field of their own. No end token ends an answer before its length."""
    said = body(new_request(endpoint), endpoint)
    sampling = said.get("sampling_params", said)
    assert sampling["temperature"] == 0
    assert sampling.get("max_tokens", sampling.get("max_output_tokens")) == 6


@pytest.mark.parametrize("endpoint", [None, Endpoint.COMPLETIONS, Endpoint.CHAT, *NEW])
def test_the_same_prompt_has_the_same_answer_on_every_endpoint(endpoint: Endpoint | None) -> None:
    """All endpoints give the same tokens, text and finish reason, and nothing was cached."""
    got = complete(endpoint)
    expected = answer(MODEL, PROMPT, 6)
    assert [token.id for token in got.tokens] == expected
    assert (got.text, got.finish_reason, got.cached_tokens) == ("".join(map(chr, expected)), "length", 0)


@pytest.mark.parametrize("first", [Endpoint.COMPLETIONS, Endpoint.CHAT, *NEW])
@pytest.mark.parametrize("then", [Endpoint.COMPLETIONS, Endpoint.CHAT, *NEW])
def test_a_hit_is_read_from_every_endpoint(first: Endpoint, then: Endpoint) -> None:
    """A prompt hits what any endpoint computed under the same salt, and nothing under another."""
    with serving() as fake:
        client = client_of(fake)
        client.complete(new_request(first, cache_salt="red"))
        assert client.complete(new_request(then, cache_salt="blue")).cached_tokens == 0
        hit = client.complete(new_request(then, cache_salt="red")).cached_tokens
    assert hit is not None
    assert hit > 0


@pytest.mark.parametrize("endpoint", NEW)
def test_a_count_that_is_not_reported_is_none(endpoint: Endpoint) -> None:
    """A missing count is None, not zero."""
    assert complete(endpoint, ServerBehaviour(counts=Counts.NEVER)).cached_tokens is None


@pytest.mark.parametrize("endpoint", NEW)
def test_a_refusal_is_a_refusal(endpoint: Endpoint) -> None:
    """The refusal has the server's status."""
    with pytest.raises(RequestRefused, match="too large") as refused:
        complete(endpoint, priority=2**63)
    assert refused.value.status == 400


@pytest.mark.parametrize("endpoint", NEW)
@pytest.mark.parametrize("said", ["<html>", "{}", '{"choices": []}', '{"content": 3}'])
def test_another_answer_is_malformed(endpoint: Endpoint, said: str) -> None:
    """The error names the endpoint and quotes the response."""
    with pytest.raises(MalformedAnswer, match=endpoint.value):
        complete(endpoint, ServerBehaviour(bodies={endpoint.value: said}))


def test_a_text_without_exact_tokens_is_not_compared() -> None:
    """With two tokens per character the generated tokens are unknown, so they cannot be called wrong."""
    with pytest.raises(NotExact, match="6 tokens has 6 characters, and 12 tokens"):
        complete(Endpoint.MESSAGES, ServerBehaviour(wordy=True))


def test_finish_reasons_of_messages_are_named_as_those_of_other_endpoints() -> None:
    """Reasons that exist on /v1/messages alone are kept."""
    for said, read in (("max_tokens", "length"), ("end_turn", "stop"), ("tool_use", "tool_use")):
        usage = {"input_tokens": 3, "output_tokens": 1}
        page = json.dumps({"content": [{"type": "text", "text": "a"}], "stop_reason": said, "usage": usage})
        assert complete(Endpoint.MESSAGES, ServerBehaviour(bodies={"/v1/messages": page})).finish_reason == read


def test_token_counts_are_reported() -> None:
    """These endpoints do not stream, so the count is reported once."""
    seen: list[int] = []
    with serving() as fake:
        client_of(fake).complete(new_request(Endpoint.RESPONSES), seen.append)
    assert seen == [6]


def test_several_system_messages_are_one_text() -> None:
    """/v1/messages has one field for system messages."""
    said = body(
        new_request(Endpoint.MESSAGES, messages=(Message("system", "a"), Message("user", "b"))), Endpoint.MESSAGES
    )
    assert (said["system"], said["messages"]) == ("a", [{"role": "user", "content": "b"}])

"""Probe at which endpoints a server takes the same prompt."""

from __future__ import annotations

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.endpoints import ENDPOINT_CAPABILITIES, Endpoint
from coldproof.adapters.protocol.engine import MalformedAnswer, RequestRefused
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, Message
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.endpoints import READERS, NotExact
from coldproof.adapters.server.probe_options import refusal

# With spaces at both ends, and an answer in the middle: an endpoint may change either.
TURNS = (
    Message("system", " Be brief."),
    Message("user", "Hello. "),
    Message("assistant", " Yes? "),
    Message("user", "Go on."),
)
TOKENS = 8


def probe_endpoints(client: HttpClient, model: str, found: dict[Capability, Support]) -> dict[Capability, Support]:
    """Return which endpoints render the same messages to the same prompt, and give the same answer as completions.

    Several endpoints are there if chats are: the ids to which a chat is rendered can be sent as a completion.
    """
    chat = found[Capability.CHAT]
    if chat.present is not True:
        return dict.fromkeys((Capability.ENDPOINTS, *map(ENDPOINT_CAPABILITIES.__getitem__, READERS)), chat)
    prompt = client.render(model, TURNS)
    expected = client.complete(CompletionRequest(model=model, prompt=prompt, max_tokens=TOKENS))
    endpoints = {
        ENDPOINT_CAPABILITIES[endpoint]: probe_endpoint(client, model, endpoint, prompt, expected)
        for endpoint in READERS
    }
    return {Capability.ENDPOINTS: Support(True, "a chat's prompt can be sent as token ids as well"), **endpoints}


def probe_endpoint(
    client: HttpClient,
    model: str,
    endpoint: Endpoint,
    prompt: tuple[int, ...],
    expected: Completion,
    usual: str = Endpoint.COMPLETIONS.value,
) -> Support:
    """Return whether a prompt has the same answer at an endpoint. `usual`: the route of the expected answer."""
    messages = None if endpoint.takes_ids else TURNS
    asked = CompletionRequest(model=model, prompt=prompt, max_tokens=TOKENS, messages=messages, endpoint=endpoint)
    try:
        answer = client.complete(asked)
    except RequestRefused as problem:
        return refusal(problem)
    except (MalformedAnswer, NotExact) as problem:
        return Support(False, str(problem))
    if answer.prompt not in (None, prompt):
        return Support(False, f"{endpoint.value} renders messages to {len(answer.prompt or ())} other token ids")
    same = [token.id for token in answer.tokens] == [token.id for token in expected.tokens]
    how = f"{endpoint.value} gives {'the same answer as' if same else 'another answer than'} {usual}"
    return Support(same and answer.cached_tokens is not None, f"{how}; cached tokens {answer.cached_tokens}")

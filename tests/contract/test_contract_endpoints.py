"""How an adapter reports its endpoints: a prompt has the same answer on all of them, and salts and counts are real."""

from __future__ import annotations

from itertools import permutations

import pytest
from contract.rules import can, check, ids, need, new_name, prompt

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.endpoints import ENDPOINT_CAPABILITIES, Endpoint
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, Message
from coldproof.harness.workload.tokens import text_of

WHERE = "CompletionRequest.endpoint"
# Where an engine, and not its adapter, drops what a request says: with the finding about it.
DROPPED_SALTS = {("sglang", Endpoint.MESSAGES): "sglang/messages-ignore-the-salt"}


def endpoints(engine: CheckedEngine) -> list[Endpoint]:
    """Return the endpoints that the engine reports."""
    need(engine, Capability.ENDPOINTS)
    return [endpoint for endpoint in Endpoint if can(engine, ENDPOINT_CAPABILITIES[endpoint])]


def sent(engine: CheckedEngine, endpoint: Endpoint, text: str, **fields: str) -> Completion:
    """Return the answer to a chat on an endpoint."""
    messages = (Message("system", text), Message("user", "Go on."))
    request = CompletionRequest(
        model=engine.base_model,
        prompt=engine.render(messages),
        max_tokens=6,
        messages=None if endpoint.takes_ids else messages,
        endpoint=endpoint,
        **fields,  # type: ignore[arg-type]
    )
    return engine.complete(request)


def text(engine: CheckedEngine) -> str:
    """Return the text of a prompt of a few blocks that was never sent."""
    return text_of(prompt(min(3 * (engine.shape.block_size or 16), engine.shape.max_model_tokens // 2)))


def test_one_prompt_has_one_answer_on_every_endpoint(engine: CheckedEngine) -> None:
    """All endpoints give the same tokens and the same text, because a next turn continues from either."""
    said, usual = text(engine), endpoints(engine)[0]
    expected = sent(engine, usual, said)
    for endpoint in endpoints(engine):
        got = sent(engine, endpoint, said)
        check(ids(got) == ids(expected), WHERE, f"{endpoint.value} answers as {usual.value}", ids(got))
        check(got.text == expected.text, WHERE, f"{endpoint.value} gives the text of its tokens", got.text)
        check(got.finish_reason == "length", "Completion.finish_reason", "length at max_tokens", got.finish_reason)


def test_every_endpoint_hits_what_another_one_computed(engine: CheckedEngine) -> None:
    """A prompt hits what another endpoint computed under the same salt, in either order, and nothing under another
    salt.
    """
    need(engine, Capability.CACHED_TOKENS, Capability.CACHE_SALT)
    if engine.shape.prefix_caching is not True:
        return
    dropping = [endpoint for endpoint in endpoints(engine) if (engine.name, endpoint) in DROPPED_SALTS]
    for first, then in permutations([endpoint for endpoint in endpoints(engine) if endpoint not in dropping], 2):
        said, salt = text(engine), new_name()
        sent(engine, first, said, cache_salt=salt)
        other = sent(engine, then, said, cache_salt=new_name()).cached_tokens
        check(other == 0, WHERE, f"nothing of {first.value} is hit at {then.value} under another salt", other)
        same = sent(engine, then, said, cache_salt=salt).cached_tokens
        check(bool(same), WHERE, f"what {first.value} computed is hit at {then.value} under its salt", same)
    if dropping:
        pytest.skip(f"at {dropping[0].value} the engine drops salts: {DROPPED_SALTS[engine.name, dropping[0]]}")

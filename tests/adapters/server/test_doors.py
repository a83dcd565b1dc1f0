"""What a request says is said at every door, and what a door answers is read in full."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.fake_reply import MODEL, Counts, ServerBehaviour, answer, rendered
from support.fake_server import FakeServer, serving

from coldproof.adapters.protocol.doors import Door
from coldproof.adapters.protocol.engine import MalformedAnswer, RequestRefused
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, Message
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.doors import NotExact, body
from coldproof.adapters.server.probe_doors import TURNS

MESSAGES = tuple({"role": message.role, "content": message.content} for message in TURNS)
PROMPT = rendered(list(MESSAGES))
NEW = (Door.GENERATE, Door.RESPONSES, Door.MESSAGES)


def asked(door: Door | None, **changes: Any) -> CompletionRequest:
    """A chat of four messages at a door, as the runner sends it."""
    messages = None if door is not None and door.takes_ids else TURNS
    facts = {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "messages": messages, "door": door}
    return CompletionRequest(**{**facts, **changes})


def client_of(fake: FakeServer) -> HttpClient:
    """A client of a stand-in that stays alive."""
    return HttpClient(fake.url, alive=lambda: True)


def complete(door: Door | None, behaviour: ServerBehaviour | None = None, **changes: Any) -> Completion:
    """The answer to one request at a door of a new server."""
    with serving(behaviour) as fake:
        return client_of(fake).complete(asked(door, **changes))


@pytest.mark.parametrize("door", NEW)
def test_every_door_is_told_the_salt_and_the_priority(door: Door) -> None:
    """As the usual doors are: only what is not given is not said."""
    said = body(asked(door, cache_salt="red", priority=3), door)
    assert (said["model"], said["cache_salt"], said["priority"]) == (MODEL, "red", 3)
    assert not {"cache_salt", "priority"} & set(body(asked(door), door))


@pytest.mark.parametrize("door", NEW)
def test_a_request_is_greedy_at_every_door(door: Door) -> None:
    """Where a door's parameters have a field of their own, too. Nothing ends an answer before its length."""
    said = body(asked(door), door)
    sampling = said.get("sampling_params", said)
    assert sampling["temperature"] == 0
    assert sampling.get("max_tokens", sampling.get("max_output_tokens")) == 6


@pytest.mark.parametrize("door", [None, Door.COMPLETIONS, Door.CHAT, *NEW])
def test_the_same_prompt_has_the_same_answer_at_every_door(door: Door | None) -> None:
    """Tokens, text and the reason for the end, and none of it was cached."""
    got = complete(door)
    expected = answer(MODEL, PROMPT, 6)
    assert [token.id for token in got.tokens] == expected
    assert (got.text, got.finish_reason, got.cached_tokens) == ("".join(map(chr, expected)), "length", 0)


@pytest.mark.parametrize("first", [Door.COMPLETIONS, Door.CHAT, *NEW])
@pytest.mark.parametrize("then", [Door.COMPLETIONS, Door.CHAT, *NEW])
def test_a_hit_is_read_from_every_door(first: Door, then: Door) -> None:
    """On what any door computed under the same salt, and not under another."""
    with serving() as fake:
        client = client_of(fake)
        client.complete(asked(first, cache_salt="red"))
        assert client.complete(asked(then, cache_salt="blue")).cached_tokens == 0
        hit = client.complete(asked(then, cache_salt="red")).cached_tokens
    assert hit is not None
    assert hit > 0


@pytest.mark.parametrize("door", NEW)
def test_a_count_that_is_not_told_is_none(door: Door) -> None:
    """Missing is not zero."""
    assert complete(door, ServerBehaviour(counts=Counts.NEVER)).cached_tokens is None


@pytest.mark.parametrize("door", NEW)
def test_a_refusal_is_a_refusal(door: Door) -> None:
    """With the server's status."""
    with pytest.raises(RequestRefused, match="too large") as refused:
        complete(door, priority=2**63)
    assert refused.value.status == 400


@pytest.mark.parametrize("door", NEW)
@pytest.mark.parametrize("said", ["<html>", "{}", '{"choices": []}', '{"content": 3}'])
def test_another_answer_is_malformed(door: Door, said: str) -> None:
    """It names the door and quotes what came."""
    with pytest.raises(MalformedAnswer, match=door.value):
        complete(door, ServerBehaviour(bodies={door.value: said}))


def test_a_text_without_exact_tokens_is_not_compared() -> None:
    """Two tokens for each character: nobody knows which tokens were generated, so nobody may call them wrong."""
    with pytest.raises(NotExact, match="6 tokens has 6 characters, and 12 tokens"):
        complete(Door.MESSAGES, ServerBehaviour(wordy=True))


def test_the_end_of_messages_is_named_as_that_of_other_doors() -> None:
    """What no other door has stays as it is."""
    for said, read in (("max_tokens", "length"), ("end_turn", "stop"), ("tool_use", "tool_use")):
        usage = {"input_tokens": 3, "output_tokens": 1}
        page = json.dumps({"content": [{"type": "text", "text": "a"}], "stop_reason": said, "usage": usage})
        assert complete(Door.MESSAGES, ServerBehaviour(bodies={"/v1/messages": page})).finish_reason == read


def test_whoever_waits_for_tokens_is_told() -> None:
    """All at once, because these doors answer as a whole."""
    seen: list[int] = []
    with serving() as fake:
        client_of(fake).complete(asked(Door.RESPONSES), seen.append)
    assert seen == [6]


def test_several_system_messages_are_one_text() -> None:
    """The door for messages has one field for them."""
    said = body(asked(Door.MESSAGES, messages=(Message("system", "a"), Message("user", "b"))), Door.MESSAGES)
    assert (said["system"], said["messages"]) == ("a", [{"role": "user", "content": "b"}])

"""Probe at which doors a server takes the same prompt."""

from __future__ import annotations

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.doors import DOOR_CAPABILITIES, Door
from coldproof.adapters.protocol.engine import MalformedAnswer, RequestRefused
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, Message
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.doors import READERS, NotExact
from coldproof.adapters.server.probe_options import refusal

# With spaces at both ends, and an answer in the middle: a door may change either.
TURNS = (
    Message("system", " Be brief."),
    Message("user", "Hello. "),
    Message("assistant", " Yes? "),
    Message("user", "Go on."),
)
TOKENS = 8


def probe_doors(client: HttpClient, model: str, found: dict[Capability, Support]) -> dict[Capability, Support]:
    """Return which doors render the same messages to the same prompt, and give the same answer as completions.

    Several doors are there if chats are: the ids to which a chat is rendered can be sent as a completion.
    """
    chat = found[Capability.CHAT]
    if chat.present is not True:
        return dict.fromkeys((Capability.DOORS, *map(DOOR_CAPABILITIES.__getitem__, READERS)), chat)
    prompt = client.render(model, TURNS)
    expected = client.complete(CompletionRequest(model=model, prompt=prompt, max_tokens=TOKENS))
    doors = {DOOR_CAPABILITIES[door]: probe_door(client, model, door, prompt, expected) for door in READERS}
    return {Capability.DOORS: Support(True, "a chat's prompt can be sent as token ids as well"), **doors}


def probe_door(
    client: HttpClient,
    model: str,
    door: Door,
    prompt: tuple[int, ...],
    expected: Completion,
    usual: str = Door.COMPLETIONS.value,
) -> Support:
    """Return whether a prompt has the same answer at a door. `usual`: the route of the expected answer."""
    messages = None if door.takes_ids else TURNS
    asked = CompletionRequest(model=model, prompt=prompt, max_tokens=TOKENS, messages=messages, door=door)
    try:
        answer = client.complete(asked)
    except RequestRefused as problem:
        return refusal(problem)
    except (MalformedAnswer, NotExact) as problem:
        return Support(False, str(problem))
    if answer.prompt not in (None, prompt):
        return Support(False, f"{door.value} renders messages to {len(answer.prompt or ())} other token ids")
    same = [token.id for token in answer.tokens] == [token.id for token in expected.tokens]
    how = f"{door.value} gives {'the same answer as' if same else 'another answer than'} {usual}"
    return Support(same and answer.cached_tokens is not None, f"{how}; cached tokens {answer.cached_tokens}")

"""What an adapter says of its doors: one prompt has one answer at all of them, and the salt and the count are real."""

from __future__ import annotations

from itertools import permutations

from contract.rules import can, hold, ids, need, new_name, prompt

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.doors import DOOR_CAPABILITIES, Door
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, Message
from coldproof.harness.workload.tokens import text_of

WHERE = "CompletionRequest.door"


def doors(engine: CheckedEngine) -> list[Door]:
    """The doors that the engine says it has."""
    need(engine, Capability.DOORS)
    return [door for door in Door if can(engine, DOOR_CAPABILITIES[door])]


def sent(engine: CheckedEngine, door: Door, text: str, **fields: str) -> Completion:
    """The answer to a chat at a door."""
    messages = (Message("system", text), Message("user", "Go on."))
    request = CompletionRequest(
        model=engine.base_model,
        prompt=engine.render(messages),
        max_tokens=6,
        messages=None if door.takes_ids else messages,
        door=door,
        **fields,  # type: ignore[arg-type]
    )
    return engine.complete(request)


def text(engine: CheckedEngine) -> str:
    """The text of a prompt of a few blocks that was never sent."""
    return text_of(prompt(min(3 * (engine.shape.block_size or 16), engine.shape.max_model_tokens // 2)))


def test_one_prompt_has_one_answer_at_every_door(engine: CheckedEngine) -> None:
    """Token by token, and in text, as a next turn continues from either."""
    said, usual = text(engine), doors(engine)[0]
    expected = sent(engine, usual, said)
    for door in doors(engine):
        got = sent(engine, door, said)
        hold(ids(got) == ids(expected), WHERE, f"{door.value} answers as {usual.value}", ids(got))
        hold(got.text == expected.text, WHERE, f"{door.value} gives the text of its tokens", got.text)
        hold(got.finish_reason == "length", "Completion.finish_reason", "length at max_tokens", got.finish_reason)


def test_every_door_counts_what_another_one_computed(engine: CheckedEngine) -> None:
    """Under the same salt, whichever of the two came first, and nothing under another."""
    need(engine, Capability.CACHED_TOKENS, Capability.CACHE_SALT)
    if engine.shape.prefix_caching is not True:
        return
    for first, then in permutations(doors(engine), 2):
        said, salt = text(engine), new_name()
        sent(engine, first, said, cache_salt=salt)
        other = sent(engine, then, said, cache_salt=new_name()).cached_tokens
        hold(other == 0, WHERE, f"nothing of {first.value} is hit at {then.value} under another salt", other)
        same = sent(engine, then, said, cache_salt=salt).cached_tokens
        hold(bool(same), WHERE, f"what {first.value} computed is hit at {then.value} under its salt", same)

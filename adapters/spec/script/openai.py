"""Reads answers in OpenAI's form for scripts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coldproof.adapters.spec.script.client import Event
from coldproof.adapters.spec.script.given import CHATS, ENDS, SCORES, SEVERAL
from coldproof.adapters.spec.script.http import CannotSay


def parts_of(answer: Any) -> Iterator[Event]:
    """Yield an answer, or an event of a streamed one, as parts of it. Text without token ids is no answer."""
    cached = ((answer.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
    if cached is not None:
        yield {"cached": cached}
    if SCORES:
        yield prompt_scores(answer)
    for choice in answer.get("choices", ()):
        part = {"ids": choice.get("token_ids") or []}
        message = choice.get("delta") or choice.get("message") or {}
        if (choice.get("text") or message.get("content")) and choice.get("token_ids") is None:
            raise CannotSay("the server's answers have no token ids")
        if SEVERAL:
            part["index"] = choice.get("index")
        if ENDS:
            part["end"] = choice.get("finish_reason")
        if CHATS:
            said = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
            part["text"] = said.get("content")
        if SCORES:
            part |= {"logprobs": choice.get("logprobs"), **prompt_scores(choice)}
        yield part


def prompt_scores(part: Any) -> Event:
    """Return the scores of the prompt's tokens, which are in the choices of completions."""
    return {name: part.get(name) for name in ("prompt_logprobs", "prompt_token_ids")}

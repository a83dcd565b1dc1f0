"""An OpenAI-compatible server by URL for scripts, without fields for token ids and without salts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from coldproof.adapters.spec.script.client import Event, Sent
from coldproof.adapters.spec.script.given import CHARACTERS, COLD_WAY, DISPLACING, STALL_SECONDS
from coldproof.adapters.spec.script.http import CannotSay, Started, cold_server, events, get, has_ended, post


class UrlServer(Started):
    """The server whose URL is the script's argument."""

    def __init__(self) -> None:
        super().__init__()
        self.base = next(one["id"] for one in get(self.url + "/v1/models")["data"] if not one.get("parent"))

    def answers(self, sent: Sent, patience: float = STALL_SECONDS) -> Iterator[Event]:
        """Send a request and yield its answer."""
        return self.stream(self.url, sent, patience)

    def cold(self, sent: Sent) -> Iterator[Event]:
        """Send a request so that it finds nothing of its prompt in a cache. Raises CannotSay if it does."""
        if not COLD_WAY:
            return self.stream(cold_server(), sent, STALL_SECONDS)
        if COLD_WAY == "RESET":
            post(self.url + "/reset_prefix_cache", {})
        if COLD_WAY == "DISPLACED":
            first = [token for token in range(33, 126) if token not in sent["ids"][:1]]
            for _ in range(2 * DISPLACING):
                other = [random.choice(first), *random.choices(range(33, 126), k=7)]
                list(self.stream(self.url, {"ids": other, "tokens": 1}, STALL_SECONDS))
        extra = {"cache_prompt": False} if COLD_WAY == "FIELD" else {}
        return is_cold(self.stream(self.url, sent, STALL_SECONDS, extra))

    def stream(self, url: str, sent: Sent, patience: float, extra: dict[str, Any] | None = None) -> Iterator[Event]:
        """Yield the events of an answer."""
        body = {"model": self.base, "max_tokens": sent["tokens"], "temperature": 0, "stream": True, **(extra or {})}
        body["stream_options"] = {"include_usage": True}
        if CHARACTERS:
            body["prompt"] = "".join(map(chr, sent["ids"]))
        else:
            body |= {"prompt": sent["ids"], "logprobs": 2, "seed": 0, "ignore_eos": True}
        for event in events(url + "/v1/completions", body, patience):
            for choice in event.get("choices", ()):
                end = {"end": choice["finish_reason"]} if choice.get("finish_reason") else {}
                yield {"ids": ids_of(choice), **end}
            details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
            if "cached_tokens" in details:
                yield {"ids": [], "cached": details["cached_tokens"]}

    def ended(self) -> bool:
        """Return whether the server has ended."""
        return has_ended(self.url)


def ids_of(choice: Any) -> list[int]:
    """Return the token ids of a part of an answer."""
    if CHARACTERS:
        return list(map(ord, choice.get("text") or ""))
    return [one["id"] for one in (choice.get("logprobs") or {}).get("content") or ()]


def is_cold(answer: Iterator[Event]) -> Iterator[Event]:
    """Yield an answer. Raises CannotSay if the server counted cached tokens, or none at all."""
    counted = False
    for event in answer:
        if event.get("cached"):
            raise CannotSay(f"{event['cached']} tokens of a prompt that should be cold were cached")
        counted = counted or "cached" in event
        yield event
    if not counted:
        raise CannotSay("the server did not say how many tokens of a prompt that should be cold were cached")

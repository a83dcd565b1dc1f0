"""The answer to one request, as a script keeps it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coldproof.adapters.spec.script.client import Event
from coldproof.adapters.spec.script.given import CHATS, ENDS, FAILS, MEANWHILE, NOISY, POOLED, SCORES, SEVERAL


class Reply:
    """The answer to one request, as far as it has arrived."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.ids: list[int] = []
        self.cached: int | None = None
        if FAILS:
            self.failed = ""
        if MEANWHILE:
            self.over = False
        if SEVERAL:
            self.others: dict[int, list[int]] = {}
        if ENDS:
            self.end: str | None = None
        if CHATS:
            self.text = ""
        if POOLED:
            self.vectors: list[list[float]] = []
        if SCORES:
            self.scores: list[float] = []
            self.prompt_scores: list[float | None] = []
        if NOISY:
            self.leads: list[float] = []
            self.prompt_best: list[float | None] = []
        for event in events:
            self.add(event)

    def shown(self) -> str:
        """Return what is printed of the answer."""
        if POOLED and self.vectors:
            return str([vector[:4] for vector in self.vectors[:3]])
        return str(self.ids)

    def add(self, event: Event) -> None:
        """Add a part of the answer."""
        self.cached = event.get("cached", self.cached)
        if FAILS:
            self.failed = event.get("failed", self.failed)
        if SEVERAL:
            if event.get("index"):
                self.others.setdefault(event["index"], []).extend(event["ids"])
                return
        self.ids += event.get("ids", ())
        if ENDS:
            self.end = event.get("end") or self.end
        if CHATS:
            self.text += event.get("text") or ""
        if POOLED:
            self.vectors = event.get("vectors", self.vectors)
        if SCORES:
            self.add_prompt_scores(event)
            self.add_scores(event.get("logprobs") or {})

    def add_prompt_scores(self, event: Event) -> None:
        """Add the scores of the prompt's tokens, each with the best score at its position."""
        for row, token in zip(event.get("prompt_logprobs") or (), event.get("prompt_token_ids") or (), strict=False):
            by_name = {name: one["logprob"] for name, one in (row or {}).items()}
            self.prompt_scores.append(by_name.get(str(token)))
            if NOISY:
                self.prompt_best.append(max(by_name.values(), default=None))

    def add_scores(self, given: dict[str, Any]) -> None:
        """Add the scores of tokens, and by how much each best token leads."""
        rows = given.get("content") or ()  # of a chat
        self.scores += given.get("token_logprobs") or [one["logprob"] for one in rows]
        if NOISY:
            best = [sorted((row or {}).values()) for row in given.get("top_logprobs") or ()]
            best = best or [sorted(top["logprob"] for top in one.get("top_logprobs") or ()) for one in rows]
            self.leads += [row[-1] - row[-2] if len(row) > 1 else 0.0 for row in best]

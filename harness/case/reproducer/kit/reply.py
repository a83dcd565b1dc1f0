"""The answer to one request, as a script keeps it."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.script.given import CHATS, ENDS, FAILS, MEANWHILE, POOLED, SCORES, SEVERAL


class Reply:
    """The answer to one request, as far as it has arrived."""

    def __init__(self) -> None:
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
            self.leads: list[float] = []
            self.prompt_scores: list[float | None] = []
            self.prompt_best: list[float | None] = []

    def __str__(self) -> str:
        if POOLED and self.vectors:
            return str([vector[:4] for vector in self.vectors[:3]])
        return str(self.ids)

    def add(self, event: dict[str, Any]) -> None:
        """Add one event of a stream, or a whole response."""
        cached = ((event.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
        self.cached = self.cached if cached is None else cached
        if POOLED:
            self.vectors = event.get("vectors", self.vectors)
        if SCORES:
            for part in (event, *event.get("choices", ())):
                self.add_prompt_scores(part)
        for choice in event.get("choices", ()):
            if SEVERAL and choice.get("index"):
                self.others.setdefault(choice["index"], []).extend(choice.get("token_ids") or ())
                continue
            self.ids += choice.get("token_ids") or ()
            if ENDS:
                self.end = choice.get("finish_reason") or self.end
            if CHATS:
                said = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
                self.text += said.get("content") or ""
            if SCORES:
                self.add_scores(choice.get("logprobs") or {})

    def add_prompt_scores(self, part: dict[str, Any]) -> None:
        """Add the scores of the prompt's tokens, each with the best score at its position."""
        for row, token in zip(part.get("prompt_logprobs") or (), part.get("prompt_token_ids") or (), strict=False):
            by_name = {name: one["logprob"] for name, one in (row or {}).items()}
            self.prompt_scores.append(by_name.get(str(token)))
            self.prompt_best.append(max(by_name.values(), default=None))

    def add_scores(self, given: dict[str, Any]) -> None:
        """Add the scores of tokens, and by how much each best token leads."""
        rows = given.get("content") or ()  # of a chat
        self.scores += given.get("token_logprobs") or [one["logprob"] for one in rows]
        best = [sorted((row or {}).values()) for row in given.get("top_logprobs") or ()]
        best = best or [sorted(top["logprob"] for top in one.get("top_logprobs") or ()) for one in rows]
        self.leads += [row[-1] - row[-2] if len(row) > 1 else 0.0 for row in best]

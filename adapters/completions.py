"""What is said on the OpenAI-compatible wire: bodies of generation requests, and how their answers are read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from adapters.base import PLAIN, Completion, CompletionRequest, Stage, Surface, Token

SEED = 0
FARTHEST = 9999.0  # nats: what a grammar forbids scores -inf, which no JSON holds; vLLM's server writes -9999 for it
TOP_LOGPROBS = 2  # the answer and its runner-up: their gap is what the margin rule goes by


def path(request: CompletionRequest) -> str:
    """The entry point."""
    return "/v1/completions" if request.messages is None else "/v1/chat/completions"


def body(request: CompletionRequest) -> dict[str, Any]:
    """The request's JSON. Streamed, except where prompt logprobs are asked for: vLLM streams none."""
    surface = request.surface
    said: dict[str, Any] = {
        "model": request.model,
        "max_tokens": request.max_tokens,
        "temperature": 0 if surface.answers == 1 else 1,
        "seed": SEED,
        # An answer that may end early is to end where it should; any other is to be as long as was asked.
        "ignore_eos": not surface.stop and surface.pattern is None,
        "return_token_ids": True,
    }
    if request.messages is None:
        said["prompt"] = list(request.prompt)
    else:
        said["messages"] = [{"role": m.role, "content": m.content} for m in request.messages]
    if not surface.prompt_logprobs:
        said |= {"stream": True, "stream_options": {"include_usage": True}}
    if request.cache_salt is not None:
        said["cache_salt"] = request.cache_salt
    if request.tag:
        said["request_id"] = request.tag
    if request.priority:
        said["priority"] = request.priority
    if surface != PLAIN:
        said |= asked_for(surface, chat=request.messages is not None)
    return said


def asked_for(surface: Surface, *, chat: bool) -> dict[str, Any]:
    """The fields of whatever is not plain."""
    fields: dict[str, Any] = {}
    if surface.answers > 1:
        fields["n"] = surface.answers
    if surface.stop:
        fields["stop"] = list(surface.stop)
    if surface.pattern is not None:
        fields["structured_outputs"] = {"regex": surface.pattern}
    if surface.prompt_logprobs:
        fields["prompt_logprobs"] = 1
    if surface.logprobs:
        fields |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS} if chat else {"logprobs": TOP_LOGPROBS}
        fields["return_tokens_as_token_ids"] = True
    return fields


class Reader:
    """Collects an answer from the events of a stream or from one whole response."""

    def __init__(self, on_token: Callable[[int], None] | None) -> None:
        self.on_token = on_token
        self.began = time.monotonic()
        self.answers: dict[int, list[Token]] = {}
        self.text = ""
        self.finish_reason: str | None = None
        self.cached_tokens: int | None = None
        self.prompt: tuple[int, ...] | None = None
        self.prompt_logprobs: tuple[float | None, ...] | None = None
        self.prompt_best: tuple[float | None, ...] | None = None
        self.error: str | None = None
        self.status = 500  # that goes with the error
        self.done = False

    @property
    def count(self) -> int:
        """Tokens of the first answer so far."""
        return len(self.answers.get(0, ()))

    def completion(self, aborted: Stage | None = None) -> Completion:
        """What was collected."""
        return Completion(
            tokens=tuple(self.answers.get(0, ())),
            finish_reason=self.finish_reason,
            cached_tokens=self.cached_tokens,
            text=self.text,
            others=tuple(tuple(self.answers[i]) for i in sorted(self.answers) if i != 0),
            prompt_logprobs=self.prompt_logprobs,
            prompt=self.prompt,
            aborted=aborted,
            prompt_best=self.prompt_best,
        )

    def take(self, data: str) -> None:
        """One `data:` payload, or a whole response's text."""
        if data == "[DONE]":
            self.done = True
            return
        try:
            self.take_event(json.loads(data))
        except (ValueError, TypeError, AttributeError, LookupError) as problem:
            self.error = f"an event that is none ({type(problem).__name__}): {data[:200]}"

    def take_event(self, event: dict[str, Any]) -> None:
        """One decoded event. Raises what indexing into something of another shape raises."""
        if "error" in event:
            self.error = json.dumps(event["error"])
            return
        details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
        if details.get("cached_tokens") is not None:
            self.cached_tokens = int(details["cached_tokens"])
        self.note_prompt(event)
        for choice in event.get("choices", ()):
            self.note_prompt(choice)
            self.add(choice)

    def note_prompt(self, part: dict[str, Any]) -> None:
        """The prompt's ids and scores; completions tell them with a choice, chats with the whole."""
        if part.get("prompt_token_ids"):
            self.prompt = tuple(int(i) for i in part["prompt_token_ids"])
        if part.get("prompt_logprobs"):
            rows = part["prompt_logprobs"]
            ids = self.prompt or ()
            self.prompt_logprobs = tuple(
                None if row is None else float(row[str(ids[i])]["logprob"]) for i, row in enumerate(rows)
            )
            self.prompt_best = tuple(
                None if row is None else max(float(entry["logprob"]) for entry in row.values()) for row in rows
            )

    def add(self, choice: dict[str, Any]) -> None:
        """One choice of an event: zero or more tokens."""
        at = round(time.monotonic() - self.began, 6)
        index = int(choice.get("index") or 0)
        tokens = self.answers.setdefault(index, [])
        scores = scored(choice.get("logprobs") or {})
        for i, token in enumerate(choice.get("token_ids") or ()):
            logprob, gap = scores[i] if i < len(scores) else (None, None)
            tokens.append(Token(id=int(token), at=at, logprob=logprob, gap=gap))
        if index == 0:
            part = choice.get("delta") or choice.get("message") or {}
            self.text += choice.get("text") or part.get("content") or ""
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            if self.on_token is not None and tokens:
                self.on_token(len(tokens))


def scored(logprobs: dict[str, Any]) -> list[tuple[float | None, float | None]]:
    """(logprob, gap to the runner-up) of each token, from either entry point's form."""
    if logprobs.get("content") is not None:
        chat = logprobs["content"]
        return [(entry["logprob"], gap([top["logprob"] for top in entry.get("top_logprobs") or ()])) for entry in chat]
    chosen, top = logprobs.get("token_logprobs") or [], logprobs.get("top_logprobs") or []
    return [(score, gap(list(top[i].values()) if i < len(top) and top[i] else [])) for i, score in enumerate(chosen)]


def gap(scores: list[float]) -> float | None:
    """Between the best and the second best, in nats."""
    best = sorted(scores, reverse=True)[:2]
    return min(best[0] - best[1], FARTHEST) if len(best) == 2 else None

"""The OpenAI-compatible format: bodies of generation requests, and a reader of their answers."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from coldproof.adapters.protocol.requests import PLAIN, Completion, CompletionRequest, ResponseOptions, Stage, Token
from coldproof.adapters.server.answers import UNREADABLE

SEED = 0
TRANSFER_FIELD = "kv_transfer_params"  # of vLLM: what its connector is told about one request
RANK_HEADER = "X-data-parallel-rank"  # of vLLM's server, which then does not balance
HAND_OVER_HEADER = "X-hand-over-ms"  # of the router of a pair: see adapters/vllm/prefill_decode.py
# The largest logprob margin, in nats. A token that a grammar forbids has -inf, which JSON cannot hold; vLLM's server
# writes -9999.
LARGEST_GAP = 9999.0
SPARE_TOKENS = 16  # beyond those requested that are read: a server with a wrong count ends its answer soon, with usage
NAMES_FIELD = "return_tokens_as_token_ids"  # of vLLM: in logprobs, a token's name is its id
TOKEN_NAME = re.compile(r"token_id:([0-9]{1,15})")
TOP_LOGPROBS = 2  # the best token and the second best: the margin rule compares by their difference


def path(request: CompletionRequest) -> str:
    """Return the route of a request."""
    return "/v1/completions" if request.messages is None else "/v1/chat/completions"


def body(request: CompletionRequest, *, named: bool = False) -> dict[str, Any]:
    """Return the JSON body of a request. Streamed, except with prompt logprobs, which vLLM does not stream.

    `named`: ask for logprobs with tokens named by their ids. vLLM has no `return_token_ids` before 0.10.2.
    """
    response_options = request.options
    fields: dict[str, Any] = {
        "model": request.model,
        "max_tokens": request.max_tokens,
        "temperature": 0 if response_options.answers == 1 else 1,
        "seed": SEED,
        # Stop strings and patterns may end an answer early. Every other answer must have `max_tokens` tokens.
        "ignore_eos": not response_options.stop and response_options.pattern is None,
        "return_token_ids": True,
    }
    if request.messages is None:
        fields["prompt"] = list(request.prompt)
    else:
        fields["messages"] = [{"role": m.role, "content": m.content} for m in request.messages]
    if not response_options.prompt_logprobs:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    if request.cache_salt is not None:
        fields["cache_salt"] = request.cache_salt
    if request.tag:
        fields["request_id"] = request.tag
    if request.priority:
        fields["priority"] = request.priority
    if response_options != PLAIN:
        fields |= option_fields(response_options, chat=request.messages is not None)
    if named and not response_options.logprobs:
        fields |= {"logprobs": 1 if request.messages is None else True, NAMES_FIELD: True}
    return fields


def headers(rank: int | None, hand_over_ms: int) -> dict[str, str]:
    """Return the headers of a request: its rank, if it names one, and how late the decoder gets it."""
    late = {HAND_OVER_HEADER: str(hand_over_ms)} if hand_over_ms else {}
    return late if rank is None else {RANK_HEADER: str(rank), **late}


def option_fields(response_options: ResponseOptions, *, chat: bool) -> dict[str, Any]:
    """Return the body's fields for response options."""
    fields: dict[str, Any] = {}
    if response_options.answers > 1:
        fields["n"] = response_options.answers
    if response_options.stop:
        fields["stop"] = list(response_options.stop)
    if response_options.pattern is not None:
        fields["structured_outputs"] = {"regex": response_options.pattern}
    if response_options.prompt_logprobs:
        fields["prompt_logprobs"] = 1
    if response_options.logprobs:
        fields |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS} if chat else {"logprobs": TOP_LOGPROBS}
        fields[NAMES_FIELD] = True
    if limits := transfer_limits(response_options):
        fields[TRANSFER_FIELD] = limits
    return fields


def transfer_limits(response_options: ResponseOptions) -> dict[str, int]:
    """Return vLLM's fields for limits on the transfers of a request from and to a second tier."""
    limits = {"max_load_tokens": response_options.most_loaded, "max_offload_tokens": response_options.most_stored}
    return {name: limit for name, limit in limits.items() if limit is not None}


Count = Annotated[int, Meta(ge=0, lt=2**53)]  # a number of tokens or a token's id, exact in every reader of JSON


class Score(msgspec.Struct, frozen=True):
    """The score of one candidate token, and its rank among all tokens if the server reports it."""

    logprob: float
    rank: int | None = None


PromptScores = list[dict[str, Score] | None]  # for each prompt token: a candidate's token id -> its score


class ChatScore(msgspec.Struct, frozen=True):
    """The score of a token of a chat answer, and the scores of the best candidates at its position."""

    logprob: float | None
    top_logprobs: list[Score] | None = None
    token: str | None = None


class Scores(msgspec.Struct, frozen=True):
    """The scores of a choice's tokens. Chats have `content`; completions have the other fields. `tokens`: names."""

    content: list[ChatScore] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class Part(msgspec.Struct, frozen=True):
    """A chat message or a part of one."""

    content: str | None = None


class Choice(msgspec.Struct, frozen=True):
    """Some or all tokens of one answer. `index`: the number of the answer."""

    index: Count | None = None
    token_ids: list[Count] | None = None
    text: str | None = None
    delta: Part | None = None
    message: Part | None = None
    finish_reason: str | None = None
    logprobs: Scores | None = None
    prompt_token_ids: list[Count] | None = None
    prompt_logprobs: PromptScores | None = None


class PromptDetails(msgspec.Struct, frozen=True):
    """The number of prompt tokens from the cache."""

    cached_tokens: Count | None = None


class Usage(msgspec.Struct, frozen=True):
    """The token counts of a request."""

    prompt_tokens_details: PromptDetails | None = None


class Event(msgspec.Struct, frozen=True):
    """One event of a stream, or a whole response."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None
    prompt_token_ids: list[Count] | None = None
    prompt_logprobs: PromptScores | None = None


class Reader:
    """Collects an answer from the events of a stream or from one whole response. `expected`: describes an event."""

    expected = "a JSON object whose choices have token_ids"

    def __init__(self, on_token: Callable[[int], None] | None) -> None:
        self.on_token = on_token
        self.start_time = time.monotonic()
        self.answers: dict[int, list[Token]] = {}
        self.text = ""
        self.finish_reason: str | None = None
        self.cached_tokens: int | None = None
        self.prompt: tuple[int, ...] | None = None
        self.prompt_logprobs: tuple[float | None, ...] | None = None
        self.prompt_best: tuple[float | None, ...] | None = None
        self.error: str | None = None
        self.status = 500  # of the error
        self.start = bytearray()  # the first bytes of the stream
        self.malformed: str | None = None  # the first event that could not be read
        self.events = 0  # the number of events that could be read
        self.done = False
        self.with_scores = True  # whether scores were asked for, and not the names of tokens alone
        self.most_answers: float = math.inf
        self.most_tokens: float = math.inf  # of each answer
        self.overlong = False  # whether an answer has so many more that its end is not awaited

    def expect(self, request: CompletionRequest) -> None:
        """Expect the answer to a request: no more answers, and no more tokens, than it allows."""
        self.most_answers, self.most_tokens = request.options.answers, request.max_tokens
        self.with_scores = request.options.logprobs

    @property
    def count(self) -> int:
        """Return the number of tokens of the first answer so far."""
        return len(self.answers.get(0, ()))

    def completion(self, aborted: Stage | None = None) -> Completion:
        """Return the collected answer."""
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
        """Read one `data:` payload, or the text of a whole response."""
        if data == "[DONE]":
            self.done = True
            return
        try:
            self.take_event(data)
            if (self.cached_tokens or 0) < 0 or any(tokens and tokens[-1].id < 0 for tokens in self.answers.values()):
                raise ValueError("a negative number of tokens, or token id")
            self.events += 1
        except UNREADABLE:
            self.malformed = data if self.malformed is None else self.malformed
        longest = max(map(len, self.answers.values()), default=0)
        self.overlong = longest > self.most_tokens + SPARE_TOKENS

    def take_event(self, data: str) -> None:
        """Read one event in JSON. Raises the errors of decoding or indexing if it has another form."""
        event = msgspec.json.decode(data, type=Event)
        if event.error is not None:
            self.error = msgspec.json.encode(event.error).decode()
            return
        details = None if event.usage is None else event.usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            self.cached_tokens = details.cached_tokens
        self.record_prompt(event)
        for choice in event.choices:
            self.record_prompt(choice)
            self.add(choice)

    def record_prompt(self, part: Event | Choice) -> None:
        """Record the prompt's ids and scores. Completions report them in a choice, chats in the event."""
        if part.prompt_token_ids:
            self.prompt = tuple(part.prompt_token_ids)
        if part.prompt_logprobs:
            ids, rows = self.prompt or (), part.prompt_logprobs
            self.prompt_logprobs = tuple(
                None if row is None else row[str(ids[i])].logprob for i, row in enumerate(rows)
            )
            self.prompt_best = tuple(None if row is None else best_score(row) for row in rows)

    def add(self, choice: Choice) -> None:
        """Add the tokens of one choice."""
        at = round(time.monotonic() - self.start_time, 6)
        if (choice.index or 0) >= self.most_answers:
            raise ValueError("an answer that was not requested")
        tokens = self.answers.setdefault(choice.index or 0, [])
        scores = token_scores(choice.logprobs) if choice.logprobs is not None and self.with_scores else []
        ids = named_ids(choice.logprobs) if choice.token_ids is None else choice.token_ids
        for i, token in enumerate(ids):
            logprob, gap = scores[i] if i < len(scores) else (None, None)
            tokens.append(Token(id=token, at=at, logprob=logprob, gap=gap))
        if not choice.index:
            part = choice.delta or choice.message or Part()
            self.text += choice.text or part.content or ""
            self.finish_reason = choice.finish_reason or self.finish_reason
            if self.on_token is not None and tokens:
                self.on_token(len(tokens))


def best_score(row: Mapping[Any, Any]) -> float | None:
    """Return the best score at a position; None if the row has one candidate that is not said to be the best.

    `row`: token -> `Score`, or vLLM's own object with the same fields. It has the prompt's own token and the best one.
    A row with only one of them does not contain the other one's score.
    """
    best = max(row.values(), key=lambda candidate: float(candidate.logprob))
    return float(best.logprob) if len(row) > 1 or best.rank == 1 else None


def token_scores(logprobs: Scores) -> list[tuple[float | None, float | None]]:
    """Return (logprob, logprob margin) of each token, from the form of either route."""
    if logprobs.content is not None:
        return [(one.logprob, gap([top.logprob for top in one.top_logprobs or ()])) for one in logprobs.content]
    chosen, top = logprobs.token_logprobs or [], logprobs.top_logprobs or []
    best = [list((row or {}).values()) for row in top] + [[]] * (len(chosen) - len(top))
    return [(score, gap(scores)) for score, scores in zip(chosen, best, strict=False)]


def named_ids(logprobs: Scores | None) -> list[int]:
    """Return the token ids that are the names of the tokens with scores; none if they have other names."""
    if logprobs is None:
        return []
    names = logprobs.tokens or [one.token or "" for one in logprobs.content or ()]
    found = [TOKEN_NAME.fullmatch(name) for name in names]
    return [int(one[1]) for one in found if one is not None] if all(found) else []


def gap(scores: list[float]) -> float | None:
    """Return the logprob margin: the best score minus the second best, in nats. None for fewer than two scores."""
    best = sorted(scores, reverse=True)[:2]
    return min(best[0] - best[1], LARGEST_GAP) if len(best) == 2 else None

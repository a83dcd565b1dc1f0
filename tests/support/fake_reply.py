"""What the stand-in server of `support.fake_server` offers, how it fails, and what it answers."""

from __future__ import annotations

import enum
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from coldproof.harness.session.selftest.scripted_engine import BlindModel

MODEL, VERSION, BLOCK = "tiny", "9.9", 16
SCORES = itertools.count()  # of tokens so far
METRICS = """\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",enable_prefix_caching="True"} 1
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0"} 40
vllm:prefix_cache_queries_total{engine="1"} 2
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0"} 16
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{engine="0"} 1700000000
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0"} 0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0
"""
BARE_METRICS = "# TYPE http_requests_total counter\nhttp_requests_total 3\n"


class Fault(enum.Enum):
    """Ways in which a generation fails."""

    NONE = "answers"
    SILENT = "accepts the request and never sends anything"
    STALLS = "sends nothing after the first token"
    BREAKS = "closes the socket after the first token"
    ENDS_EARLY = "ends the stream in good order but without [DONE]"
    REFUSES = "HTTP 400"
    ERROR_EVENT = "an error event in the middle of the stream"
    GARBLED = "a data line that is no JSON"
    SPEECHLESS = "closes the socket instead of any response"


class Counts(enum.Enum):
    """Ways to report cached tokens."""

    ALWAYS = "a number, 0 for a miss"
    NULL_ON_MISS = "null for a miss"
    NEVER = "not at all"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerBehaviour:
    """The behaviour of a server. By default it is a vLLM that offers everything; None and False take something away."""

    fault: Fault = Fault.NONE
    counts: Counts = Counts.ALWAYS
    token_ids: bool = True
    names: bool = False  # the tokens of scores have their ids as names, on request
    token_prompts: bool = True
    salts: bool = True
    caches: bool = True  # off: there is never a hit
    chats: bool = True
    reports_prompts: bool = True
    refuses: tuple[str, ...] = ()  # fields of a body that are answered with 400
    ignores: tuple[str, ...] = ()  # fields that change nothing
    endpoints: tuple[str, ...] = ("/inference/v1/generate", "/v1/responses", "/v1/messages")  # beside the usual two
    drops: tuple[tuple[str, str], ...] = ()  # (path, field): fields that change nothing at one endpoint
    pools: tuple[str, ...] = ()  # paths for vectors
    wordy: bool = False  # a text has more tokens than it has characters
    corrupt: str = ""  # what is wrong on a hit: tokens, others, scores or end
    every: int = 1  # it is wrong on one hit of so many
    blind: BlindModel | None = None  # what the answers depend on, if not on the whole prompt
    margin: float = 1.5  # nats between a token and the second best
    jitter: float = 0.0  # nats by which the same score varies
    behind: float | None = None  # nats by which another token would have been better than each of a prompt
    keeps: bool = False  # a reset keeps everything, whatever it reports
    delay: float = 0.0  # seconds before the first token
    late_headers: bool = False  # they come with the first token
    pace: float = 0.0  # between two
    before: Callable[[], object] = lambda: None  # called before the first token
    after: Callable[[int], object] = lambda _: None  # called after each token, with their number
    holds_after: int | None = None  # this many tokens, then none until the client disconnects
    at_once: bool = False  # the whole answer in one write with its headers
    one_by_one: bool = False  # a connection for each request
    key: str | None = None
    version: str | None = VERSION
    metrics: str | None = METRICS
    gauges: str | None = None  # the body if gauges are requested by name
    models: str | None = json.dumps({"data": [{"id": MODEL, "root": "/models/tiny", "max_model_len": 2048}]})
    reset: str | None = '{"success": true}'
    lora: tuple[int, str] = (200, "Success")
    in_place: tuple[int, str] = (200, "Success")
    ended: bool = False  # the engine behind the server, which /health reports with 503
    dropped_gets: int = 0
    bodies: dict[str, str] = field(default_factory=dict)  # path -> the body that is sent there with 200 for any request


def answer(model: str, prompt: tuple[int, ...], count: int, blind: BlindModel | None = None) -> list[int]:
    """Return the tokens of a cold start, which the cache must not change.

    Each token follows from all tokens before it, so that a prompt with half an answer is continued with the other
    half, unless the model is blind to parts of its prompt.
    """
    tokens = list(prompt)
    for _ in range(count):
        seen = f"{model} {tokens}".encode() if blind is None else blind.seen(tokens)
        tokens.append(32 + hashlib.sha256(seen).digest()[0] % 95)
    return tokens[len(prompt) :]


def vector(model: str, prompt: tuple[int, ...]) -> list[float]:
    """Return the vector that a cold start computes for a prompt."""
    return [byte / 256 for byte in hashlib.sha256(f"{model} {prompt}".encode()).digest()[:4]]


def rendered(messages: list[dict[str, str]]) -> tuple[int, ...]:
    """Return the tokens that the chat template makes of messages: each message after a token for its role."""
    return tuple(token for m in messages for token in (ord(m["role"][0]), 10, *m["content"].encode()))


def plain_body(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return a request of any endpoint in the form of a completion or a chat."""
    shared = {name: body[name] for name in ("model", "cache_salt", "priority") if name in body}
    match path:
        case "/inference/v1/generate":
            return shared | {"prompt": body["token_ids"], "max_tokens": body["sampling_params"]["max_tokens"]}
        case "/v1/responses":
            return shared | {"messages": body["input"], "max_tokens": body["max_output_tokens"]}
        case "/v1/messages":
            system = {"role": "system", "content": body["system"]}
            return shared | {"messages": [system, *body["messages"]], "max_tokens": body["max_tokens"]}
    return body


def of_endpoint(path: str, reply: Reply) -> dict[str, Any]:
    """Return an answer in the form of an endpoint."""
    (tokens, _), prompt, details = reply.answers()[0], list(reply.prompt), reply.usage().get("prompt_tokens_details")
    text, cached = "".join(map(chr, tokens)), (details or {}).get("cached_tokens")
    match path:
        case "/inference/v1/generate":
            choice = {"index": 0, "token_ids": tokens, "text": text, "finish_reason": "length"}
            return {"choices": [choice], "usage": reply.usage(), "prompt_token_ids": prompt}
        case "/v1/responses":
            said = {"message": text, "tokens": tokens}
            return {
                "status": "incomplete",
                "input_messages": [{"message": "", "tokens": prompt}],
                "output_messages": [said],
                "usage": {"input_tokens_details": {"cached_tokens": cached}},
            }
    left = {"input_tokens": len(prompt) - (cached or 0), "output_tokens": len(tokens)}
    usage = left if cached is None else {**left, "cache_read_input_tokens": cached}
    return {"content": [{"type": "text", "text": text}], "stop_reason": "max_tokens", "usage": usage}


def prompt_scores(prompt: tuple[int, ...]) -> list[float]:
    """Return the log probability of each prompt token."""
    return [-0.01 * token for token in prompt]


class Reply:
    """The response to one request. `None` among its events means that the stream breaks there."""

    def __init__(
        self,
        behaviour: ServerBehaviour,
        who: str,
        body: dict[str, Any],
        prompt: tuple[int, ...],
        hit: int,
        *,
        corrupted: bool,
    ) -> None:
        self.behaviour, self.who, self.body, self.prompt, self.hit = behaviour, who, body, prompt, hit
        self.chat, self.corrupted = "messages" in body, corrupted

    def wrong(self, what: str) -> bool:
        """Return whether this part of the answer is wrong."""
        return self.behaviour.corrupt == what and self.corrupted

    def answers(self) -> list[tuple[list[int], str]]:
        """Return tokens and finish reason of each requested answer."""
        stops, found = tuple(self.body.get("stop", ())), []
        for i in range(self.body.get("n", 1)):
            stale = " stale" if self.wrong("others" if i else "tokens") else ""
            who = f"{self.who}{f' {i}' if i else ''}{stale}"
            tokens = answer(who, self.prompt, self.body["max_tokens"], self.behaviour.blind)
            end = next((k + 1 for k, token in enumerate(tokens) if chr(token) in stops), None)
            found.append((tokens[:end], "length" if end is None or self.wrong("end") else "stop"))
        return found

    def events(self) -> Iterator[str | None]:
        """Yield the stream's data lines, one answer after another. The first line reports the prompt."""
        said, fault = self.about_prompt(), self.behaviour.fault
        for index, (tokens, reason) in enumerate(self.answers()):
            for i, token in enumerate(tokens):
                choice = self.choice(index, [token], "delta", reason if i == len(tokens) - 1 else None)
                yield json.dumps({"choices": [choice], **said} if self.chat else {"choices": [{**choice, **said}]})
                said = {}
                if fault in (Fault.STALLS, Fault.BREAKS):
                    yield None
                if fault is Fault.ERROR_EVENT:
                    yield '{"error": {"message": "EngineCore encountered an issue"}}'
                if fault is Fault.GARBLED:
                    yield "<html>Bad Gateway</html>"
        yield json.dumps({"choices": [], "usage": self.usage()})
        if fault is not Fault.ENDS_EARLY:
            yield "[DONE]"

    def whole(self) -> dict[str, Any]:
        """Return the answer in one piece."""
        said = self.about_prompt()
        if "prompt_logprobs" in self.body:
            scores = list(zip(self.prompt, prompt_scores(self.prompt), strict=True))[self.hit * self.wrong("scores") :]
            said["prompt_logprobs"] = [None, *(self.scored(token, score) for token, score in scores[1:])]
        choices = [self.choice(i, ids, "message", end) for i, (ids, end) in enumerate(self.answers())]
        if self.chat:
            return {"choices": choices, "usage": self.usage(), **said}
        return {"choices": [{**choice, **said} for choice in choices], "usage": self.usage()}

    def scored(self, token: int, score: float) -> dict[str, dict[str, float]]:
        """Return a prompt token with its score, and with a better token where there is one."""
        behind = self.behaviour.behind
        best = {} if behind is None else {"1": {"logprob": score + behind}}
        return {str(token): {"logprob": score}, **best}

    def about_prompt(self) -> dict[str, Any]:
        """Return the prompt's ids where the server reports them."""
        return {"prompt_token_ids": list(self.prompt)} if self.behaviour.reports_prompts else {}

    def choice(self, index: int, ids: list[int], part: str, end: str | None) -> dict[str, Any]:
        """Return tokens of one answer in the endpoint's form, with scores if they were requested."""
        text = "".join(map(chr, ids))
        choice: dict[str, Any] = {"index": index, "finish_reason": end}
        choice |= {part: {"content": text}} if self.chat else {"text": text}
        if self.behaviour.token_ids:
            choice["token_ids"] = ids
        if self.body.get("logprobs"):
            score = -0.5 - self.behaviour.jitter * (next(SCORES) % 7) / 7
            second = score - self.behaviour.margin
            top = [{f"token_id:{token}": score, "token_id:1": second} for token in ids]
            choice["logprobs"] = {"token_logprobs": [score] * len(ids), "top_logprobs": top}
            named = self.behaviour.names and self.body.get("return_tokens_as_token_ids")
            names = [f"token_id:{token}" if named else chr(token) for token in ids]
            choice["logprobs"]["tokens"] = names
            if self.chat:
                both = [{"logprob": score}, {"logprob": second}]
                content = [{"token": name, "logprob": score, "top_logprobs": both} for name in names]
                choice["logprobs"] = {"content": content}
        return choice

    def usage(self) -> dict[str, Any]:
        """Return the prompt's length and, where it is reported, the number of its cached tokens."""
        usage: dict[str, Any] = {"prompt_tokens": len(self.prompt)}
        if self.behaviour.counts is Counts.NULL_ON_MISS and self.hit == 0:
            return {**usage, "prompt_tokens_details": None}
        return (
            usage
            if self.behaviour.counts is Counts.NEVER
            else {**usage, "prompt_tokens_details": {"cached_tokens": self.hit}}
        )

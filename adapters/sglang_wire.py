"""SGLang's own wire: `/generate` takes and gives token ids, and its stream tells all tokens so far, or the new ones.

One body, one reader and one scrape beside those of the OpenAI-compatible wire; sending, hanging up and what becomes of
a broken connection are shared with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from adapters.base import Completion, CompletionRequest, Message, Metrics, RequestRefused, Stage, Token
from adapters.completions import TOP_LOGPROBS, Reader, gap
from adapters.openai_http import Wire

HITS, QUERIES, RETRACTIONS = "sglang:cached_tokens", "sglang:prompt_tokens", "sglang:num_retracted_requests"
COUNTERS = {HITS: "hit_tokens", QUERIES: "queried_tokens", RETRACTIONS: "preemptions"}
OTHER_LAYERS = tuple(f"sglang:{layer}_{what}_tokens" for layer in ("swa", "mamba") for what in ("available", "used"))
NO_CHAT = "/generate takes token ids and knows no messages"
NO_SEED = "sampled answers have no seed that a second asking could repeat"


class SglangWire(Wire):
    """HTTP to one SGLang server. `salt_field`: what keeps requests apart, `cache_salt` or, before that, `extra_key`."""

    generate_path = "/generate"
    counters = COUNTERS
    labelled = OTHER_LAYERS
    reset_path, load_path, unload_path = "/flush_cache", "/load_lora_adapter", "/unload_lora_adapter"
    base_model = "default"
    salt_field = "cache_salt"
    tells_loads = True  # until it turns out not to

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        """The request's JSON. Streamed, except where prompt logprobs are asked for. Raises RequestRefused for what
        this wire cannot say."""
        surface = request.surface
        if request.messages is not None:
            raise RequestRefused(501, NO_CHAT)
        if surface.answers > 1:
            raise RequestRefused(501, NO_SEED)
        sampling: dict[str, Any] = {
            "max_new_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": not surface.stop and surface.pattern is None,
        }
        if surface.stop:
            sampling["stop"] = list(surface.stop)
        if surface.pattern is not None:
            sampling["regex"] = surface.pattern
        said: dict[str, Any] = {"input_ids": list(request.prompt), "sampling_params": sampling}
        said["stream"] = not surface.prompt_logprobs
        if surface.prompt_logprobs or surface.logprobs:
            said |= {"return_logprob": True, "top_logprobs_num": TOP_LOGPROBS}
        if surface.prompt_logprobs:
            said["logprob_start_len"] = 0
        if request.model != self.base_model:
            said["lora_path"] = request.model
        if request.cache_salt is not None:
            said[self.salt_field] = request.cache_salt
        if request.priority:
            said["priority"] = request.priority
        return said

    def reader(self, on_token: Callable[[int], None] | None) -> Reader:
        """Reads one answer."""
        return SglangReader(on_token)

    def render(self, model: str, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """There are no chats on this wire. Raises RequestRefused."""
        raise RequestRefused(501, f"{len(messages)} messages for {model}: {NO_CHAT}")

    def reset(self) -> tuple[bool, str]:
        """POST /flush_cache. Under load it says no with status 400, which is an answer."""
        try:
            return True, self.post(self.reset_path).text
        except RequestRefused as problem:
            if problem.status != 400:
                raise
            return False, problem.body

    def metrics(self) -> Metrics:
        """The counters of /metrics, and the scheduler's own word on what it holds now: its gauges in /metrics are of
        some earlier step. A counter is not published before it has counted: then nothing was retracted."""
        families = self.scrape() or {}
        told: dict[str, float | None] = {
            field: sum(value for _, value in families[name])
            for name, field in self.counters.items()
            if families.get(name)
        }
        if families.get(QUERIES):
            told.setdefault("preemptions", 0.0)
        return Metrics(**told, **self.held())

    def gauges(self) -> Metrics:
        """The scheduler's word alone."""
        return Metrics(**self.held())

    def held(self) -> dict[str, float | None]:
        """Who runs, who waits, and how much of the pool they have; empty from a server that does not tell."""
        loads = self.loads()
        if not loads:
            return {}
        used, most = (sum(load[key] for load in loads) for key in ("num_used_tokens", "max_total_num_tokens"))
        return {
            "running": float(sum(load["num_running_reqs"] + between_chunks(load) for load in loads)),
            "waiting": float(sum(load["num_waiting_reqs"] for load in loads)),
            "pool_usage": used / most if most else None,
        }

    def loads(self) -> list[dict[str, Any]]:
        """GET /v1/loads: what each replica's scheduler says when it is asked; empty from a server without it."""
        response = self.get("/v1/loads") if self.tells_loads else None
        if response is None or response.status_code != 200:
            self.tells_loads = False
            return []
        return list(response.json()["loads"])

    def most_requests(self) -> int | None:
        """How many requests run at a time."""
        told = [load.get("max_running_requests") for load in self.loads()]
        return sum(int(most) for most in told if most) if told and None not in told else None


def between_chunks(load: dict[str, Any]) -> bool:
    """Whether somebody is in the midst of its prefill: SGLang counts it neither as running nor as waiting, and has
    tokens of it to come all the same."""
    return not load["num_waiting_reqs"] and bool(load.get("num_waiting_uncached_tokens"))


class SglangReader(Reader):
    """Collects an answer from SGLang's events, or from one whole response: they have the same form."""

    retractions: int | None = None

    def completion(self, aborted: Stage | None = None) -> Completion:
        """What was collected, with how often the scheduler took its tokens away."""
        return msgspec.structs.replace(super().completion(aborted), preemptions=self.retractions)

    def take_event(self, event: dict[str, Any]) -> None:
        """One decoded event. Raises what indexing into something of another shape raises."""
        if "error" in event:
            self.refuse(event["error"].get("code"), event["error"]["message"])
            return
        about = event["meta_info"]
        reason = about.get("finish_reason") or {}
        if reason.get("type") == "abort" and reason.get("status_code"):  # comes with a token that nobody computed
            self.refuse(reason["status_code"], reason.get("message", "aborted"))
            return
        if about.get("cached_tokens") is not None:
            self.cached_tokens = int(about["cached_tokens"])
        if about.get("num_retractions") is not None:
            self.retractions = int(about["num_retractions"])
        if about.get("input_token_logprobs"):
            self.prompt_logprobs = tuple(row[0] for row in about["input_token_logprobs"])
        self.extend(event, about)
        self.finish_reason = reason.get("type") or self.finish_reason

    def refuse(self, status: object, message: str) -> None:
        """Note that there is no answer, and why."""
        self.error, self.status = message, int(str(status or 500))

    def extend(self, event: dict[str, Any], about: dict[str, Any]) -> None:
        """Add the new tokens: behind those known where the event tells all, or all of them where it tells the new."""
        known, told = self.answers.setdefault(0, []), event["output_ids"]
        all_of_them = len(told) == about.get("completion_tokens", len(told))
        new = told[len(known) :] if all_of_them else told
        self.text = event["text"] if all_of_them else self.text + event["text"]
        at = round(time.monotonic() - self.began, 6)
        scores = scored(about, len(new))
        known += [Token(id=int(i), at=at, logprob=s, gap=g) for i, (s, g) in zip(new, scores, strict=True)]
        if self.on_token is not None and new:
            self.on_token(len(known))


def scored(about: dict[str, Any], count: int) -> list[tuple[float | None, float | None]]:
    """(logprob, gap to the runner-up) of the last so many tokens; rows are logprob, id, text."""
    if not about.get("output_token_logprobs") or count == 0:
        return [(None, None)] * count
    chosen, top = about["output_token_logprobs"][-count:], about["output_top_logprobs"][-count:]
    return [(row[0], gap([one[0] for one in best or ()])) for row, best in zip(chosen, top, strict=True)]

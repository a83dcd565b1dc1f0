"""The one protocol behind which every engine hides.

An adapter knows processes and wires and no requirement. It reports what it saw and invents nothing: a count that the
engine does not give is None, never 0, and a lever (load, reset) returns what it proves about its effect.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec


class Capability(enum.StrEnum):
    """What an engine may or may not offer. A requirement names what it needs; what is missing makes it UNSUPPORTED."""

    TOKEN_PROMPTS = "token-id prompts"
    TOKEN_OUTPUTS = "returned token ids"
    STREAMING = "streamed tokens"
    CACHED_TOKENS = "cached-token counts"
    LOGPROBS = "logprobs"
    RUNTIME_LORA = "adapter load and unload at run time"
    LORA_IN_PLACE = "in-place adapter reload"
    CACHE_SALT = "cache salt"
    CACHE_RESET = "cache reset"
    METRICS = "metrics"
    VERSION = "engine version"
    BLOCK_SIZE = "cache block size"
    POOL_SIZE = "cache pool size"
    SPAWNABLE = "spawned by Coldproof"


class Support(msgspec.Struct, frozen=True):
    """Whether a capability is there (None: could not be told) and the observation that says so."""

    present: bool | None
    evidence: str


class Token(msgspec.Struct, frozen=True):
    """One generated token: its id, seconds since the request was sent, and top-2 logprob gap in nats if asked for."""

    id: int
    at: float
    logprob: float | None = None
    gap: float | None = None


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One greedy request. `model` is a served name: the base model's or an adapter's."""

    model: str
    prompt: tuple[int, ...]
    max_tokens: int
    cache_salt: str | None = None
    logprobs: bool = False


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """What came back. `cached_tokens` is None when the engine gave no count: missing is not zero."""

    tokens: tuple[Token, ...]
    finish_reason: str | None
    cached_tokens: int | None


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Monotonic counters and gauges of the engine at one moment; None where it publishes none."""

    queried_tokens: float | None = None
    hit_tokens: float | None = None
    preemptions: float | None = None
    running: float | None = None
    waiting: float | None = None
    pool_usage: float | None = None


class EngineShape(msgspec.Struct, frozen=True, kw_only=True):
    """What the generators size workloads by. Token counts; None is unknown, never a guess."""

    block_size: int | None
    pool_blocks: int | None
    max_model_tokens: int
    adapter_slots: int | None
    prefix_caching: bool | None


class EngineError(Exception):
    """Something about the engine that stops an action. The message says what happened and what to do."""


class EngineStartError(EngineError):
    """The engine did not become ready; the message carries the tail of its log."""


class EngineDied(EngineError):
    """The engine's process ended, or its socket is gone."""


class EngineSilent(EngineError):
    """No byte came for longer than the request's patience while the process is still there."""


class RequestRefused(EngineError):
    """The engine answered with an error status: an answer, not a fault of the wire."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"the engine answered HTTP {status}: {body[:400]}")
        self.status = status
        self.body = body


class Engine(Protocol):
    """A live engine. Methods block; `complete` may be called from many threads at once.

    All methods raise EngineDied when the engine is gone and RequestRefused when it says no.
    """

    @property
    def name(self) -> str:
        """The adapter's name."""

    @property
    def version(self) -> str | None:
        """The engine's own version string."""

    @property
    def base_model(self) -> str:
        """The served name of the model without any adapter."""

    @property
    def shape(self) -> EngineShape:
        """Block size, pool and limits as the engine states them."""

    @property
    def config(self) -> Mapping[str, str]:
        """The configuration to print in a report, secrets redacted."""

    @property
    def capabilities(self) -> Mapping[Capability, Support]:
        """Every capability with its evidence."""

    def complete(self, request: CompletionRequest, on_token: Callable[[int], None] | None = None) -> Completion:
        """Answer one request; `on_token(count)` is called as tokens arrive. Must never retry: a retry warms the cache.

        Raises EngineSilent when nothing comes within the adapter's patience.
        """

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Load or, `in_place`, replace an adapter under a name. Returning means the engine acknowledged it."""

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter name."""

    def reset_cache(self) -> bool:
        """Ask for an empty prefix cache; True only when the engine says that it did it."""

    def metrics(self) -> Metrics:
        """Scrape the counters now."""

    def alive(self) -> bool:
        """Whether the engine still answers or, for a spawned one, whether its process still runs."""

    def log_tail(self) -> str:
        """The last lines of the engine's log; empty when the log is not ours to read."""

    def stop(self) -> None:
        """End a spawned engine and all its processes; detach from an attached one. Safe to call twice."""

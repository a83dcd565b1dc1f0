"""The one protocol behind which every engine hides.

An adapter knows processes and wires and no requirement. It reports what it saw and invents nothing: a count that the
engine does not give is None, never 0, and a lever (load, reset) returns what it proves about its effect.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from adapters.kv_events import Published
from adapters.provenance import WrongRead


class Capability(enum.StrEnum):
    """What an engine may or may not offer. A requirement names what it needs; what is missing makes it UNSUPPORTED."""

    TOKEN_PROMPTS = "token-id prompts"
    TOKEN_OUTPUTS = "returned token ids"
    STREAMING = "streamed tokens"
    CACHED_TOKENS = "cached-token counts"
    LOGPROBS = "logprobs"
    ADAPTER_CHOICE = "adapters chosen request by request"
    MIXED_ADAPTERS = "requests of several adapters side by side"
    ADAPTER_SWITCH = "an adapter switched on for every request"
    RUNTIME_LORA = "adapter load and unload at run time"
    LORA_IN_PLACE = "in-place adapter reload"
    CACHE_SALT = "cache salt"
    CHAT = "chat completions with known prompt ids"
    PRIORITY = "request priorities"
    ABORT = "requests that the client can abort"
    PROMPT_LOGPROBS = "prompt logprobs"
    SEVERAL_ANSWERS = "several sampled answers to a prompt"
    STOP_STRINGS = "stop strings"
    STRUCTURED_OUTPUT = "structured output"
    CACHE_RESET = "cache reset"
    METRICS = "metrics"
    HIT_COUNTERS = "counters of tokens looked up and hit"
    PREEMPTION_COUNTS = "preemption counts"
    POOL_USAGE = "a gauge of the pool in use"
    KV_EVENTS = "published KV events"
    VERSION = "engine version"
    BLOCK_SIZE = "cache block size"
    POOL_SIZE = "cache pool size"
    SECOND_TIER = "a second KV tier"
    SAVED_STATE = "KV saved under a name and restored"
    MOVED_PIECES = "pieces of prompts reused at other places"
    CONTEXT_SHIFT = "answers that outgrow the context"
    SPAWNABLE = "spawned by Coldproof"
    PROVENANCE = "block provenance"
    SEVERAL_GROUPS = "several groups of KV-cache blocks"


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


class Surface(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request asks for beside plain greedy tokens.

    `answers` > 1 are drawn at temperature 1 from a fixed seed: greedy copies would be one answer. `pattern` is a
    regular expression that structured output has to match.
    """

    answers: int = 1
    stop: tuple[str, ...] = ()
    pattern: str | None = None
    prompt_logprobs: bool = False
    logprobs: bool = False

    def with_scores(self) -> Surface:
        """The same with scores of its tokens asked for; several sampled answers have none that could be compared."""
        return msgspec.structs.replace(self, logprobs=True) if self.answers == 1 else self


PLAIN = Surface()


class Stage(enum.StrEnum):
    """How far the engine had come with a request when its client hung up, as far as could be seen."""

    QUEUED = "queued"
    PREFILL = "in prefill"
    DECODE = "while decoding"
    UNSEEN = "unseen"


class Abort(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When the client hangs up: after so many tokens or, with 0, after so many milliseconds without one.

    `at`: and not before the engine says that the request is queued or in prefill, which one machine does sooner than
    another; at the first token where it never does.
    """

    after_tokens: int = 0
    after_ms: int = 0
    at: Stage | None = None

    def is_due(self, tokens: int, waited_ms: int, stage: Callable[[], Stage]) -> bool:
        """Whether the client hangs up now. `stage` tells where the request is, and is asked where that matters."""
        if tokens:
            return tokens >= max(1, self.after_tokens)
        waited = self.after_tokens == 0 and waited_ms >= self.after_ms
        return waited and (self.at is None or stage() is self.at)


class Message(msgspec.Struct, frozen=True):
    """One message of a chat."""

    role: str
    content: str


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, greedy unless its surface says otherwise. `model` is a served name: base model or adapter.

    With `messages` it goes through the chat entry point and template; `prompt` is then what that renders to.
    """

    model: str
    prompt: tuple[int, ...]
    max_tokens: int
    cache_salt: str | None = None
    priority: int = 0
    messages: tuple[Message, ...] | None = None
    surface: Surface = PLAIN
    abort: Abort | None = None
    tag: str = ""  # part of the engine's name for the request, where it tells whose KV was read


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """What came back. `cached_tokens` is None when the engine gave no count: missing is not zero.

    `finish_reason`: "length" where `max_tokens` ended it, None where the client saw no end.
    `cached_between`: at least and at most so many, where something else than a count says so, such as the number of
    steps that the prompt took.
    `prompt_best`: the score of the best token in each prompt token's place, where that is told with `prompt_logprobs`.
    `text`: the first answer's. `others`: the answers after it, where several were asked for. `prompt_logprobs`: one for
    each prompt token, None for the first. `prompt`: the ids that the engine says it used, if it
    says so. `aborted`: the client hung up here, before the end. `preemptions`: of this request, where the engine tells
    them one by one; `preempted_at`: seconds since it was sent, where it tells when.
    """

    tokens: tuple[Token, ...]
    finish_reason: str | None
    cached_tokens: int | None
    cached_between: tuple[int, int] | None = None
    text: str = ""
    others: tuple[tuple[Token, ...], ...] = ()
    prompt_logprobs: tuple[float | None, ...] | None = None
    prompt: tuple[int, ...] | None = None
    aborted: Stage | None = None
    preemptions: int | None = None
    preempted_at: tuple[float, ...] = ()
    prompt_best: tuple[float | None, ...] | None = None


class Arrival(msgspec.Struct, frozen=True):
    """A request and when it is sent, in milliseconds after the burst began."""

    request: CompletionRequest
    offset_ms: int = 0


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Monotonic counters and gauges of the engine at one moment; None where it publishes none.

    `external_hit_tokens`: loaded from a second tier, not among `hit_tokens`; `resumed_hit_tokens`: the same for
    requests that had been preempted, which neither counts.
    """

    queried_tokens: float | None = None
    hit_tokens: float | None = None
    external_queried_tokens: float | None = None
    external_hit_tokens: float | None = None
    resumed_hit_tokens: float | None = None
    failed_loads: float | None = None
    preemptions: float | None = None
    running: float | None = None
    waiting: float | None = None
    pool_usage: float | None = None

    def since(self, start: Metrics) -> Metrics:
        """The same with counters counted from `start`; gauges are of the moment."""
        return msgspec.structs.replace(self, **{n: grown(getattr(start, n), getattr(self, n)) for n in COUNTED})


COUNTED = (
    "queried_tokens",
    "hit_tokens",
    "external_queried_tokens",
    "external_hit_tokens",
    "resumed_hit_tokens",
    "failed_loads",
    "preemptions",
)


def grown(before: float | None, after: float | None) -> float | None:
    """How far a counter went; unknown if either reading is."""
    return None if before is None or after is None else after - before


class GroupShape(msgspec.Struct, frozen=True):
    """Layers that share a block table: tokens of a block, and the most blocks that one request holds of it at a time,
    as with sliding windows and states; None: a block for all of its tokens.
    """

    block: int
    most_blocks: int | None = None

    def blocks(self, tokens: int) -> int:
        """The blocks that a request of so many tokens needs of it."""
        whole = -(-tokens // self.block)
        return whole if self.most_blocks is None else min(whole, self.most_blocks)


class EngineShape(msgspec.Struct, frozen=True, kw_only=True):
    """What the generators size workloads by. Token counts; None is unknown, never a guess.

    `block_size`: the unit that hits come in. Where groups of layers have blocks of several sizes, whole blocks of all.
    """

    block_size: int | None
    pool_blocks: int | None
    max_model_tokens: int
    adapter_slots: int | None
    prefix_caching: bool | None
    uniform: bool = True  # every layer keeps every block; otherwise only a whole prompt sent again is owed its blocks
    most_requests: int | None = None  # that run at a time
    # So many whole sequences are kept instead of blocks; what the request just before left is all that is promised.
    sequences: int | None = None
    second_tier: bool = False  # blocks that the pool gives up, or loses in a reset, may come back from elsewhere
    failed_load_ends_request: bool = False  # with an error; otherwise it has to be answered all the same
    groups: tuple[GroupShape, ...] = ()  # empty: unknown
    drops_all_below: int | None = None  # free blocks: with fewer, all that nobody uses goes at once; None: bit by bit
    moves_pieces_of: int | None = None  # so many tokens and more are reused wherever they stand; None: no such thing
    shifts_context: bool = False  # an answer may outgrow the context: its oldest tokens go, and the others move up
    counts_first_lookups: bool = False  # each prompt once among the queries, as it is let in, and its hits then alone


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


class Served(msgspec.Struct, frozen=True):
    """What became of an arrival: when it was sent and over, by the engine's clock, and its answer or why none."""

    sent: float
    finished: float
    result: Completion | EngineError


class Engine(Protocol):
    """A live engine. Methods block; `complete` may be called from many threads at once.

    All methods raise EngineDied when the engine is gone and RequestRefused when it says no, also to what it has no
    capability for. Nothing else gets out of them. What is said here is tried by tests/contract.
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

    def clock(self) -> float:
        """Seconds, from any origin: the wall's, or the engine's own where it is stepped by hand and must repeat."""

    def complete(self, request: CompletionRequest) -> Completion:
        """Answer one request. Must never retry: a retry warms the cache.

        Raises EngineSilent when nothing comes within the adapter's patience.
        """

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Answer requests side by side, each sent at its offset, and return what became of each, in order.

        `on_token(i, count)` is called as request i's tokens arrive, from any thread. `between()` is called again and
        again while requests are in flight, from the caller's thread: there the caller may change adapters, look at the
        metrics, or stop the engine.
        """

    def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """The token ids that the chat template makes of these messages, ready for an answer."""

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Load or, `in_place`, replace an adapter under a name. Returning means the engine acknowledged it.

        An engine that takes adapters at its start only (no RUNTIME_LORA, but ADAPTER_CHOICE) has the name bound to the
        one with these files, which requests to the name then choose.
        """

    def switch_adapter(self, name: str, path: str) -> None:
        """Switch an adapter on for every request that chooses none (ADAPTER_SWITCH): requests to this name, the only
        one of its kind, are sent without a choice from now on. `unload_adapter` switches it off again.
        """

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter name."""

    def reset_cache(self) -> bool:
        """Ask for an empty prefix cache; True only when the engine says that it did it."""

    def metrics(self) -> Metrics:
        """Scrape the counters now."""

    def take_events(self) -> Published:
        """What was published about the cache since this was last called, or since the start; not while requests run.

        Must not leave anything out or put it right. Without the capability there is nothing to take.
        """

    def wrong_reads(self) -> tuple[WrongRead, ...]:
        """Requests that read KV which was not theirs, since this was last asked: the first wrong read of each. Empty
        for an engine whose KV does not say whose it is.
        """

    def alive(self) -> bool:
        """Whether the engine still answers or, for a spawned one, whether its process still runs."""

    def log_tail(self) -> str:
        """The last lines of the engine's log; empty when the log is not ours to read."""

    def stop(self) -> None:
        """End a spawned engine and all its processes; detach from an attached one. Safe to call twice."""

"""A small scripted engine with a real prefix cache and, on request, a planted bug.

It serves the detector's self-test and the harness's unit tests; no claim about any engine rests on it. A token's KV is
a digest of the tokens before it and of the adapter's content, the next token is drawn from the KV that the request
reads, so a stale or foreign block changes the answer just as it would in a model.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from adapters.base import (
    Arrival,
    Capability,
    Completion,
    CompletionRequest,
    EngineDied,
    EngineError,
    EngineShape,
    Message,
    Metrics,
    RequestRefused,
    Served,
    Stage,
    Support,
    Token,
)
from adapters.kv_events import Published
from adapters.provenance import WrongRead
from adapters.rare import NOT_OFFERED
from harness.models.adapters import AdapterError, digest_of
from harness.oracle.base import Answer, Question
from harness.workload import FIRST_TOKEN, LAST_TOKEN

BLOCK = 8
WITHOUT = {
    Capability.KV_EVENTS: "it publishes nothing",
    Capability.PRIORITY: "requests are answered in the order of their arrival",
    Capability.PROVENANCE: "its blocks do not say whose they are",
    Capability.SECOND_TIER: "it has one pool",
    Capability.SEVERAL_ANSWERS: "it gives one answer",
    Capability.SEVERAL_GROUPS: "it has one kind of block",
    **NOT_OFFERED,
    Capability.STOP_STRINGS: "answers end at their length",
    Capability.STRUCTURED_OUTPUT: "answers follow no pattern",
}


class Plant(enum.StrEnum):
    """Bugs to plant. Each is a mechanism of real engines, one for every checker that has to notice it."""

    CLEAN = "none"
    NAME_ONLY_KEY = "cache key holds the adapter's name instead of its content"
    NO_ADAPTER_KEY = "cache key leaves out the adapter"
    SALT_DROPPED = "cache key leaves out the salt"
    LAST_TOKEN_UNHASHED = "block hash leaves out the block's last token"
    OVERCOUNT = "tells of one block more than it hit"
    NEVER_HITS = "never hits"
    COUNTER_TWICE = "counts every hit twice in its metrics"
    GARBLED_BLOCK = "hands out a block whose last slot was never written"
    STALE_WEIGHTS = "answers with the old adapter after a reload"
    DIES = "dies at a warm request"
    RESET_LIES = "says that it reset its cache and keeps it"
    ABORT_PUBLISHES = "publishes the blocks of an aborted request that it never wrote"
    LEAKS = "keeps the blocks of an aborted request for ever"
    SCORES_CUT = "returns prompt scores only for what it computed"


class ScriptedEngine:
    """An engine in a few lines. Adapters are read from their files when loaded, as a server reads them."""

    name, version, base_model = "scripted", "1", "base"

    def __init__(self, plant: Plant = Plant.CLEAN, *, caching: bool = True) -> None:
        self.plant, self.caching = plant, caching
        self.shape = EngineShape(
            block_size=BLOCK, pool_blocks=100_000, max_model_tokens=4096, adapter_slots=4, prefix_caching=caching
        )
        self.config: dict[str, str] = {"plant": plant.value}
        self.capabilities = {c: Support(c not in WITHOUT, WITHOUT.get(c, "scripted")) for c in Capability}
        self.contents: dict[str, str] = {}
        self.switched_on: str | None = None
        self.blocks: dict[object, tuple[bytes, ...]] = {}
        self.queried = self.hit = self.leaked = 0
        self.dead = False
        self.lock = threading.Lock()

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Read the adapter's files now."""
        if name in self.contents and not in_place:
            raise RequestRefused(400, f"{name} is loaded already")
        if not (in_place and self.plant is Plant.STALE_WEIGHTS):
            self.contents[name] = read_digest(path)

    def switch_adapter(self, name: str, path: str) -> None:
        """Read the adapter's files now; the name is the only one of its kind."""
        digest = read_digest(path)
        if self.switched_on is not None:
            self.contents.pop(self.switched_on, None)
        self.contents[name], self.switched_on = digest, name

    def unload_adapter(self, name: str) -> None:
        """Forget a name."""
        if self.contents.pop(name, None) is None:
            raise RequestRefused(404, f"{name} is not loaded")
        self.switched_on = None if name == self.switched_on else self.switched_on

    def clock(self) -> float:
        """The wall's."""
        return time.monotonic()

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """One after another, in the order of their arrival."""
        served: dict[int, Served] = {}
        began = self.clock()
        for i, arrival in sorted(enumerate(arrivals), key=lambda pair: pair[1].offset_ms):
            sent = began + arrival.offset_ms / 1000
            time.sleep(max(0.0, sent - self.clock()))
            try:
                result: Completion | EngineError = self.answer(arrival.request, functools.partial(on_token, i))
            except EngineError as problem:
                result = problem
            served[i] = Served(sent, self.clock(), result)  # who came while others were answered has waited
            between()
        return [served[i] for i in range(len(arrivals))]

    def complete(self, request: CompletionRequest) -> Completion:
        """Answer one request."""
        return self.answer(request, lambda _: None)

    def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """The messages one behind the other, each ended by a token of its own."""
        return tuple(token for message in messages for token in (*message.content.encode(), 10))

    def answer(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Answer, reusing what blocks the (possibly planted) key finds."""
        with self.lock:
            if self.dead:
                raise EngineDied("the scripted engine has died")
            if request.model not in (self.base_model, *self.contents):
                raise RequestRefused(404, f"{request.model} is not loaded")
            if len(request.prompt) + request.max_tokens > self.shape.max_model_tokens:
                raise RequestRefused(400, f"the prompt is longer than {self.shape.max_model_tokens} tokens")
            content = self.contents.get(request.model)
            kv = self.lookup(request)
            if kv and self.plant is Plant.DIES:
                self.dead = True
                raise EngineDied("the scripted engine has died")
            cached = len(kv)
            tokens = list(request.prompt)
            answer: list[Token] = []
            while len(answer) < request.max_tokens:
                extend(kv, tokens, content)
                answer.append(Token(id=draw(kv, content), at=0.0, logprob=-0.1, gap=5.0))
                tokens.append(answer[-1].id)
                on_token(len(answer))
                if request.abort is not None and len(answer) >= max(1, request.abort.after_tokens):
                    break
            aborted = None if len(answer) == request.max_tokens else Stage.DECODE
            if aborted and self.plant is Plant.ABORT_PUBLISHES:
                kv = [*kv[:BLOCK], *(b"unwritten" for _ in kv[BLOCK:])]
            self.leaked += aborted is not None and self.plant is Plant.LEAKS
            self.store(request, tokens[:-1], kv)
            self.queried += len(request.prompt)
            self.hit += cached * (2 if self.plant is Plant.COUNTER_TWICE else 1)
        told = cached + BLOCK if cached and self.plant is Plant.OVERCOUNT else cached
        scores: tuple[float | None, ...] | None = None
        if request.surface.prompt_logprobs:
            begin = cached if self.plant is Plant.SCORES_CUT else 0
            scores = (None, *(-0.1 for _ in request.prompt[begin + 1 :]))
        return Completion(
            tokens=tuple(answer),
            text="".join(chr(token.id) for token in answer),
            finish_reason=None if aborted else "length",
            cached_tokens=None if aborted else told,
            prompt_logprobs=scores,
            prompt=request.prompt,
            aborted=aborted,
        )

    def lookup(self, request: CompletionRequest) -> list[bytes]:
        """The KV of the longest cached prefix, by whole blocks, never the last token."""
        kv: list[bytes] = []
        if not self.caching or self.plant is Plant.NEVER_HITS:
            return kv
        for key in self.keys(request, list(request.prompt))[: (len(request.prompt) - 1) // BLOCK]:
            if key not in self.blocks:
                break
            kv.extend(self.blocks[key])
        if kv and self.plant is Plant.GARBLED_BLOCK:
            kv[-1] = b"unwritten"
        return kv

    def keys(self, request: CompletionRequest, tokens: list[int]) -> list[object]:
        """A chained key for every full block."""
        adapter: str | None = None if request.model == self.base_model else self.contents[request.model]
        if self.plant is Plant.NAME_ONLY_KEY:
            adapter = request.model
        if self.plant is Plant.NO_ADAPTER_KEY:
            adapter = None
        salt = None if self.plant is Plant.SALT_DROPPED else request.cache_salt
        hashed = BLOCK - 1 if self.plant is Plant.LAST_TOKEN_UNHASHED else BLOCK
        chain: object = (adapter, salt)
        keys: list[object] = []
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            chain = hash((chain, tuple(tokens[start : start + hashed])))
            keys.append(chain)
        return keys

    def store(self, request: CompletionRequest, tokens: list[int], kv: list[bytes]) -> None:
        """Publish every full block, prompt's and answer's."""
        for i, key in enumerate(self.keys(request, tokens)):
            self.blocks.setdefault(key, tuple(kv[i * BLOCK : (i + 1) * BLOCK]))

    def reset_cache(self) -> bool:
        """Forget all blocks."""
        if self.plant is not Plant.RESET_LIES:
            self.blocks.clear()
        return True

    def metrics(self) -> Metrics:
        """Counters as a server would publish them."""
        usage = self.leaked / 100
        return Metrics(
            queried_tokens=self.queried, hit_tokens=self.hit, preemptions=0, running=0, waiting=0, pool_usage=usage
        )

    def take_events(self) -> Published:
        """It publishes none."""
        return Published()

    def wrong_reads(self) -> tuple[WrongRead, ...]:
        """Its blocks do not say whose they are."""
        return ()

    def alive(self) -> bool:
        """Until it dies or is stopped."""
        return not self.dead

    def log_tail(self) -> str:
        """Nothing to tell."""
        return ""

    def stop(self) -> None:
        """It answers no more."""
        self.dead = True


class ClosedFormOracle:
    """The scripted model's cold answers, computed."""

    name = "closed-form"

    def ask(self, question: Question) -> Answer:
        """Fold over the tokens."""
        kv: list[bytes] = []
        tokens = list(question.prompt)
        answer = []
        for _ in range(question.max_tokens):
            extend(kv, tokens, question.adapter)
            answer.append(Token(id=draw(kv, question.adapter), at=0.0, gap=5.0))
            tokens.append(answer[-1].id)
        scores = (None, *(-0.1 for _ in question.prompt[1:])) if question.surface.prompt_logprobs else None
        return Answer(tuple(answer), prompt_logprobs=scores)


def read_digest(path: str) -> str:
    """What the adapter files in a folder say. Raises RequestRefused where there are none."""
    try:
        return digest_of(Path(path))
    except AdapterError as problem:
        raise RequestRefused(404, f"no adapter in {path}: {problem}") from problem


def extend(kv: list[bytes], tokens: list[int], content: str | None) -> None:
    """Compute the KV of every token that has none yet; it depends on the KV before it."""
    for token in tokens[len(kv) :]:
        before = kv[-1] if kv else b""
        kv.append(
            hashlib.blake2b(before + token.to_bytes(4, "little") + (content or "").encode(), digest_size=8).digest()
        )


def draw(kv: list[bytes], content: str | None) -> int:
    """The next token, from all of the KV and the adapter in force."""
    state = hashlib.blake2b(b"".join(kv) + (content or "").encode(), digest_size=4).digest()
    return FIRST_TOKEN + int.from_bytes(state, "little") % (LAST_TOKEN - FIRST_TOKEN + 1)

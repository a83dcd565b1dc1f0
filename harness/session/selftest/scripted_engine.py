"""A small scripted engine with a real prefix cache and, if requested, an injected bug.

The self-test and the unit tests use it. No verdict about a real engine depends on it. The KV of a token is a digest of
the tokens up to it and of the adapter's content. The next token is a function of the KV that the request reads, so that
a stale or foreign block changes the answer, as it does in a model.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from coldproof.adapters.common.weights_digest import WEIGHT_FILES, weights_digest
from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability, Support
from coldproof.adapters.protocol.embedding_rows import FIRST_ROW
from coldproof.adapters.protocol.endpoints import IMPOSSIBLE_PRIORITY, Endpoint
from coldproof.adapters.protocol.engine import EngineDied, EngineError, RequestRefused, Served
from coldproof.adapters.protocol.kv_events import Published
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.provenance import WrongRead
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest, Message, Stage, Token
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.protocol.weights import WeightRoute
from coldproof.harness.execution.models.lora import AdapterError, digest_of
from coldproof.harness.judgement.oracle import Answer, Oracle, Question
from coldproof.harness.workload.tokens import FIRST_TOKEN, LAST_TOKEN

BLOCK = 8
START = b"start"  # the content of the weights with which the engine was started
UPDATES = (
    Capability.WEIGHT_UPDATES,
    Capability.WEIGHTS_FROM_PATH,
    Capability.WEIGHTS_SAME_PATH,
    Capability.WEIGHT_CHECKSUM,
)
ENDPOINTS = (
    Capability.ENDPOINTS,
    Capability.GENERATE_ENDPOINT,
    Capability.RESPONSES_ENDPOINT,
    Capability.MESSAGES_ENDPOINT,
)
COLD = (Capability.COLD_ANSWERS, Capability.WITHOUT_CACHE)  # from a second one
ABSENT = {
    Capability.KV_EVENTS: "it publishes no events",
    Capability.PRIORITY: "it answers requests in the order of their arrival",
    Capability.PROVENANCE: "its blocks do not record who wrote them",
    Capability.SECOND_TIER: "it has one block pool",
    Capability.SEVERAL_ANSWERS: "it gives one answer for each request",
    Capability.SEVERAL_GROUPS: "it has one KV cache group",
    **{one: why for one, why in OPTIONAL_ABSENT.items() if one not in (*UPDATES, *ENDPOINTS, *COLD)},
    Capability.STOP_STRINGS: "it does not check stop strings",
    Capability.STRUCTURED_OUTPUT: "it does not constrain its output",
}


class InjectedBug(enum.StrEnum):
    """Bugs that occur in real engines. Each checker of what this engine has must detect one at least."""

    CLEAN = "none"
    NAME_ONLY_KEY = "cache key has the adapter's name instead of its content"
    NO_ADAPTER_KEY = "cache key omits the adapter"
    SALT_DROPPED = "cache key omits the salt"
    SALT_DROPPED_AT_ENDPOINT = "one endpoint omits the salt"
    PRIORITY_IGNORED_AT_ENDPOINT = "one endpoint ignores priorities"
    LAST_TOKEN_UNHASHED = "block hash omits the block's last token"
    OVERCOUNT = "reports one block more than it hit"
    NEVER_HITS = "never hits"
    COUNTER_TWICE = "counts every hit twice in its metrics"
    GARBLED_BLOCK = "reuses a block whose last slot was never written"
    STALE_WEIGHTS = "answers with the old adapter after a reload"
    DIES = "terminates at a warm request"
    RESET_LIES = "reports a reset of its cache but keeps it"
    ABORT_PUBLISHES = "caches blocks of an aborted request that it never wrote"
    LEAKS = "never frees the blocks of an aborted request"
    UPDATE_LIES = "confirms new weights and keeps the old ones"
    SCORES_CUT = "returns prompt logprobs only for the tokens that it computed"


class BlindModel(enum.StrEnum):
    """Models whose answers could not show a wrong block. No requirement may conform on them."""

    IGNORES_PROMPT = "answers ignore their prompt"
    LENGTH_ONLY = "answers depend on the length of their prompt alone"
    LAST_BLOCK_ONLY = "answers depend on the last block of their prompt alone"

    def seen(self, tokens: Sequence[int]) -> bytes:
        """Return what the next token depends on."""
        match self:
            case BlindModel.IGNORES_PROMPT:
                return b""
            case BlindModel.LENGTH_ONLY:
                return str(len(tokens)).encode()
            case BlindModel.LAST_BLOCK_ONLY:
                return str(list(tokens[-BLOCK:])).encode()


class ScriptedEngine:
    """A minimal `Engine`, which documents the methods. It reads adapter files when an adapter is loaded."""

    name, version, base_model = "scripted", "1", "base"

    def __init__(
        self, bug: InjectedBug = InjectedBug.CLEAN, *, caching: bool = True, model: BlindModel | None = None
    ) -> None:
        self.bug, self.caching, self.model = bug, caching, model
        self.shape = EngineShape(
            block_size=BLOCK, pool_blocks=100_000, max_model_tokens=4096, adapter_slots=4, prefix_caching=caching
        )
        self.config: dict[str, str] = {"plant": bug.value}
        self.capabilities = {c: Support(c not in ABSENT, ABSENT.get(c, "scripted")) for c in Capability}
        self.contents: dict[str, str] = {}
        self.weights: str | None = None  # their digest; None: those of the start
        self.switched_on: str | None = None
        self.blocks: dict[object, tuple[bytes, ...]] = {}
        self.queried = self.hit = self.leaked = 0
        self.dead = False
        self.lock = threading.Lock()

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Read the adapter's files."""
        if name in self.contents and not in_place:
            raise RequestRefused(400, f"{name} is loaded already")
        if not (in_place and self.bug is InjectedBug.STALE_WEIGHTS):
            self.contents[name] = read_digest(path)

    def switch_adapter(self, name: str, path: str) -> None:
        """Read the adapter's files. The adapter replaces the one that was switched on before."""
        digest = read_digest(path)
        if self.switched_on is not None:
            self.contents.pop(self.switched_on, None)
        self.contents[name], self.switched_on = digest, name

    def unload_adapter(self, name: str) -> None:
        if self.contents.pop(name, None) is None:
            raise RequestRefused(404, f"{name} is not loaded")
        self.switched_on = None if name == self.switched_on else self.switched_on

    def update_weights(self, path: str, _route: WeightRoute) -> None:
        """Read the weights in a folder. The cache keeps what it has, as in real engines."""
        if self.bug is not InjectedBug.UPDATE_LIES:
            self.weights = read_weights(Path(path))

    def weights_checksum(self) -> str | None:
        return self.weights or "start"

    def clock(self) -> float:
        return time.monotonic()

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Answer the requests one after another, in the order of their arrival."""
        served: dict[int, Served] = {}
        began = self.clock()
        for i, arrival in sorted(enumerate(arrivals), key=lambda pair: pair[1].offset_ms):
            sent = began + arrival.offset_ms / 1000
            time.sleep(max(0.0, sent - self.clock()))
            try:
                result: Completion | EngineError = self.send(arrival.request, functools.partial(on_token, i))
            except EngineError as problem:
                result = problem
            served[i] = Served(sent, self.clock(), result)  # includes the wait for earlier requests
            between()
        return [served[i] for i in range(len(arrivals))]

    def complete(self, request: CompletionRequest) -> Completion:
        return self.send(request, lambda _: None)

    def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Return the messages as bytes, each followed by a separator token."""
        return tuple(token for message in messages for token in (*message.content.encode(), 10))

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Answer one request, and reuse the blocks that its (possibly wrong) keys find."""
        with self.lock:
            if self.dead:
                raise EngineDied("the scripted engine has terminated")
            if request.model not in (self.base_model, *self.contents):
                raise RequestRefused(404, f"{request.model} is not loaded")
            ignored = request.endpoint is Endpoint.MESSAGES and self.bug is InjectedBug.PRIORITY_IGNORED_AT_ENDPOINT
            if request.priority == IMPOSSIBLE_PRIORITY and not ignored:
                raise RequestRefused(400, f"{request.priority} is no priority")
            if len(request.prompt) + request.max_tokens > self.shape.max_model_tokens:
                raise RequestRefused(400, f"the prompt is longer than {self.shape.max_model_tokens} tokens")
            content = self.contents.get(request.model)
            kv = self.lookup(request)
            if kv and self.bug is InjectedBug.DIES:
                self.dead = True
                raise EngineDied("the scripted engine has terminated")
            cached = len(kv)
            tokens = list(request.prompt)
            answer: list[Token] = []
            while len(answer) < request.max_tokens:
                computed_with = f"{content or ''}{self.weights or ''}"
                extend(kv, tokens, computed_with)
                seen = b"".join(kv) + computed_with.encode() if self.model is None else self.model.seen(tokens)
                answer.append(Token(id=next_token(seen), at=0.0, logprob=-0.1, gap=5.0))
                tokens.append(answer[-1].id)
                on_token(len(answer))
                if request.abort is not None and len(answer) >= max(1, request.abort.after_tokens):
                    break
            aborted = None if len(answer) == request.max_tokens else Stage.DECODE
            if aborted and self.bug is InjectedBug.ABORT_PUBLISHES:
                kv = [*kv[:BLOCK], *(b"unwritten" for _ in kv[BLOCK:])]
            self.leaked += aborted is not None and self.bug is InjectedBug.LEAKS
            self.store(request, tokens[:-1], kv)
            self.queried += len(request.prompt)
            self.hit += cached * (2 if self.bug is InjectedBug.COUNTER_TWICE else 1)
        reported = cached + BLOCK if cached and self.bug is InjectedBug.OVERCOUNT else cached
        scores: tuple[float | None, ...] | None = None
        if request.options.prompt_logprobs:
            begin = cached if self.bug is InjectedBug.SCORES_CUT else 0
            scores = (None, *(-0.1 for _ in request.prompt[begin + 1 :]))
        return Completion(
            tokens=tuple(answer),
            text="".join(chr(token.id) for token in answer),
            finish_reason=None if aborted else "length",
            cached_tokens=None if aborted else reported,
            prompt_logprobs=scores,
            prompt=request.prompt,
            aborted=aborted,
        )

    def lookup(self, request: CompletionRequest) -> list[bytes]:
        """Return the KV of the longest cached prefix in whole blocks, without the last token."""
        kv: list[bytes] = []
        if not self.caching or self.bug is InjectedBug.NEVER_HITS:
            return kv
        for key in self.keys(request, list(request.prompt))[: (len(request.prompt) - 1) // BLOCK]:
            if key not in self.blocks:
                break
            kv.extend(self.blocks[key])
        if kv and self.bug is InjectedBug.GARBLED_BLOCK:
            kv[-1] = b"unwritten"
        return kv

    def keys(self, request: CompletionRequest, tokens: list[int]) -> list[object]:
        """Return a chained key for every full block."""
        adapter: str | None = None if request.model == self.base_model else self.contents[request.model]
        if self.bug is InjectedBug.NAME_ONLY_KEY:
            adapter = request.model
        if self.bug is InjectedBug.NO_ADAPTER_KEY:
            adapter = None
        loses = self.bug is InjectedBug.SALT_DROPPED_AT_ENDPOINT and request.endpoint is Endpoint.MESSAGES
        salt = None if loses or self.bug is InjectedBug.SALT_DROPPED else request.cache_salt
        hashed = BLOCK - 1 if self.bug is InjectedBug.LAST_TOKEN_UNHASHED else BLOCK
        chain: object = (adapter, salt)
        keys: list[object] = []
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            chain = hash((chain, tuple(tokens[start : start + hashed])))
            keys.append(chain)
        return keys

    def store(self, request: CompletionRequest, tokens: list[int], kv: list[bytes]) -> None:
        """Cache every full block of the prompt and the answer."""
        for i, key in enumerate(self.keys(request, tokens)):
            self.blocks.setdefault(key, tuple(kv[i * BLOCK : (i + 1) * BLOCK]))

    def reset_cache(self) -> bool:
        if self.bug is not InjectedBug.RESET_LIES:
            self.blocks.clear()
        return True

    def metrics(self) -> Metrics:
        usage = self.leaked / 100
        return Metrics(
            queried_tokens=self.queried, hit_tokens=self.hit, preemptions=0, running=0, waiting=0, pool_usage=usage
        )

    def take_events(self) -> Published:
        return Published()

    def wrong_reads(self) -> tuple[WrongRead, ...]:
        return ()

    def alive(self) -> bool:
        return not self.dead

    def log_tail(self) -> str:
        return ""

    def stop(self) -> None:
        """Stop the engine: it answers no further requests."""
        self.dead = True


class ClosedFormOracle(Oracle):
    """Computes the cold answers of the scripted model."""

    name = "closed-form"

    def ask(self, question: Question) -> Answer:
        """Return the cold answer, computed from the tokens."""
        return cold_answer(question)


@functools.lru_cache(maxsize=4096)  # a judge asks five times about the same request
def cold_answer(question: Question) -> Answer:
    """Return the answer of the scripted model without a cache."""
    kv: list[bytes] = []
    tokens = list(question.prompt)
    answer = []
    computed_with = f"{question.adapter or ''}{question.weights or ''}"
    for _ in range(question.max_tokens):
        extend(kv, tokens, computed_with)
        answer.append(Token(id=next_token(b"".join(kv) + computed_with.encode()), at=0.0, gap=5.0))
        tokens.append(answer[-1].id)
    scores = (None, *(-0.1 for _ in question.prompt[1:])) if question.options.prompt_logprobs else None
    return Answer(tuple(answer), prompt_logprobs=scores)


def read_digest(path: str) -> str:
    """Return the digest of the adapter files in a folder. Raises RequestRefused if there are none."""
    try:
        return digest_of(Path(path))
    except AdapterError as problem:
        raise RequestRefused(404, f"no adapter in {path}: {problem}") from problem


def read_weights(folder: Path) -> str | None:
    """Return the digest of the weights in a folder; None for those of the start. Raises RequestRefused without any."""
    try:
        digest = weights_digest(folder)
        return None if all(file.read_bytes() == START for file in folder.glob(WEIGHT_FILES)) else digest
    except OSError as problem:
        raise RequestRefused(404, f"no weights in {folder}: {problem}") from problem


def extend(kv: list[bytes], tokens: list[int], computed_with: str) -> None:
    """Compute the KV of every position that has none yet, from the KV before it, the adapter and the weights."""
    for token in tokens[len(kv) :]:
        before, seen = kv[-1] if kv else b"", token.to_bytes(4 if token < FIRST_ROW else 8, "little")
        kv.append(hashlib.blake2b(before + seen + computed_with.encode(), digest_size=8).digest())


def next_token(seen: bytes) -> int:
    """Return the next token, computed from what the model sees: all KV, the loaded adapter and the weights."""
    state = hashlib.blake2b(seen, digest_size=4).digest()
    return FIRST_TOKEN + int.from_bytes(state, "little") % (LAST_TOKEN - FIRST_TOKEN + 1)

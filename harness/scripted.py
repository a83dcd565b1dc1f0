"""A small scripted engine with a real prefix cache and, on request, a planted bug.

It serves the detector's self-test and the harness's unit tests; no claim about any engine rests on it. A token's KV is
a digest of the tokens before it and of the adapter's content, the next token is drawn from the KV that the request
reads, so a stale or foreign block changes the answer just as it would in a model.
"""

from __future__ import annotations

import enum
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

from adapters.base import (
    Capability,
    Completion,
    CompletionRequest,
    EngineDied,
    EngineShape,
    Metrics,
    RequestRefused,
    Support,
    Token,
)
from harness.models.adapters import digest_of
from harness.oracle.base import Answer, Question
from harness.workload import FIRST_TOKEN, LAST_TOKEN

BLOCK = 8


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


class ScriptedEngine:
    """An engine in a few lines. Adapters are read from their files when loaded, as a server reads them."""

    name, version, base_model = "scripted", "1", "base"

    def __init__(self, plant: Plant = Plant.CLEAN, *, caching: bool = True) -> None:
        self.plant, self.caching = plant, caching
        self.shape = EngineShape(
            block_size=BLOCK, pool_blocks=100_000, max_model_tokens=4096, adapter_slots=4, prefix_caching=caching
        )
        self.config: dict[str, str] = {"plant": plant.value}
        self.capabilities = {c: Support(True, "scripted") for c in Capability}
        self.contents: dict[str, str] = {}
        self.blocks: dict[object, tuple[bytes, ...]] = {}
        self.queried = self.hit = 0
        self.dead = False
        self.lock = threading.Lock()

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Read the adapter's files now."""
        if name in self.contents and not in_place:
            raise RequestRefused(400, f"{name} is loaded already")
        if not (in_place and self.plant is Plant.STALE_WEIGHTS):
            self.contents[name] = digest_of(Path(path))

    def unload_adapter(self, name: str) -> None:
        """Forget a name."""
        if self.contents.pop(name, None) is None:
            raise RequestRefused(404, f"{name} is not loaded")

    def complete(self, request: CompletionRequest, on_token: Callable[[int], None] | None = None) -> Completion:
        """Answer, reusing what blocks the (possibly planted) key finds."""
        with self.lock:
            if self.dead:
                raise EngineDied("the scripted engine has died")
            if request.model not in (self.base_model, *self.contents):
                raise RequestRefused(404, f"{request.model} is not loaded")
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
                if on_token is not None:
                    on_token(len(answer))
            self.store(request, tokens[:-1], kv)
            self.queried += len(request.prompt)
            self.hit += cached * (2 if self.plant is Plant.COUNTER_TWICE else 1)
        told = cached + BLOCK if cached and self.plant is Plant.OVERCOUNT else cached
        return Completion(tokens=tuple(answer), finish_reason="length", cached_tokens=told)

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
        self.blocks.clear()
        return True

    def metrics(self) -> Metrics:
        """Counters as a server would publish them."""
        return Metrics(queried_tokens=self.queried, hit_tokens=self.hit, preemptions=0, running=0, waiting=0)

    def alive(self) -> bool:
        """Until it dies."""
        return not self.dead

    def log_tail(self) -> str:
        """Nothing to tell."""
        return ""

    def stop(self) -> None:
        """Nothing to stop."""


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
        return Answer(tuple(answer))


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

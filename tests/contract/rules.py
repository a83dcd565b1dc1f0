"""What the contract tests share: descriptions of broken rules, new prompts, and answers to compare.

A rule is named as in adapters/protocol/, so that the author of an adapter knows where to read it.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import msgspec
import pytest

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import Engine, EngineError, RequestRefused, Served
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest
from coldproof.harness.judgement import reference_cache

PRINTABLE = range(33, 127)  # ids that every tokenizer has, and the model made on the spot a letter for
DRAWN = random.Random()  # not seeded: an attached engine may remember the prompts of an earlier run
NUMBERS = itertools.count()
SETTLE_SECONDS = 600.0  # only an engine that breaks the rule takes it
FILES = {"weights.py": ("ChangesWeights", "Pauses", "PauseMode", "Sleeps"), "resets.py": ("ResetsMore",)}


class RuleBroken(AssertionError):
    """An adapter breaks a rule of adapters/protocol/engine.py."""


def fail(where: str, rule: str, seen: object) -> NoReturn:
    """Fail with the name of the rule. `where`: the method or field of adapters/protocol/ that states it."""
    raise RuleBroken(f"{where} ({place_of(where)}): {rule}. Seen: {seen}")


def place_of(where: str) -> str:
    """Return the file that states a rule."""
    owner = where.partition(".")[0]
    return f"adapters/protocol/{next((file for file, owners in FILES.items() if owner in owners), 'engine.py')}"


def check(fact: object, where: str, rule: str, seen: object) -> None:
    """Check that a rule holds, or fail with its name."""
    __tracebackhide__ = True
    if not fact:
        fail(where, rule, seen)


def need(engine: Engine, *capabilities: Capability) -> None:
    """Skip the test if the engine lacks a capability, with the adapter's evidence. No contract test is skipped
    otherwise.
    """
    for capability in capabilities:
        support = engine.capabilities[capability]
        if support.present is not True:
            pytest.skip(f"{engine.name} has no {capability.value}: {support.evidence}")


def can(engine: Engine, capability: Capability) -> bool:
    """Return whether the adapter reports the capability as present."""
    return engine.capabilities[capability].present is True


def prompt(length: int = 24) -> tuple[int, ...]:
    """Return a prompt that was never sent before."""
    return tuple(DRAWN.choices(PRINTABLE, k=length))


def new_name() -> str:
    """Return a name that no adapter had before."""
    return f"contract-{DRAWN.getrandbits(32):08x}-{next(NUMBERS)}"


MORE = 2  # tokens behind a prompt that was sent before


def new_request(engine: Engine, length: int = 24, tokens: int = 6, **fields: Any) -> CompletionRequest:
    """Return a request to the base model with a new prompt."""
    given: dict[str, Any] = {"model": engine.base_model, "prompt": prompt(length), "max_tokens": tokens}
    return CompletionRequest(**{**given, **fields})


def followed(request: CompletionRequest) -> CompletionRequest:
    """Return a request whose prompt goes on behind that of another one. Some engines reuse only what is shorter."""
    return msgspec.structs.replace(request, prompt=(*request.prompt, *prompt(MORE)))


def cold(engine: Engine, model: str, about: tuple[int, ...], tokens: int = 12) -> list[int]:
    """Return a model's answer to a prompt without cached KV: for engines without their cache, or under a new salt."""
    salt = new_name() if can(engine, Capability.CACHE_SALT) else None
    return ids(engine.complete(new_request(engine, model=model, prompt=about, max_tokens=tokens, cache_salt=salt)))


def ids(answer: Completion) -> list[int]:
    """Return the token ids of an answer."""
    return [token.id for token in answer.tokens]


def serve(engine: Engine, *requests: CompletionRequest, between: Callable[[], None] = lambda: None) -> list[Served]:
    """Send requests at once and serve them side by side."""
    return engine.serve([Arrival(one) for one in requests], lambda _number, _count: None, between)


@contextmanager
def refused(where: str, rule: str) -> Iterator[None]:
    """Check that the block raises RequestRefused."""
    try:
        yield
    except RequestRefused:
        return
    except Exception as problem:
        raise RuleBroken(f"{where} ({place_of(where)}): {rule}. Seen: {type(problem).__name__}: {problem}") from problem
    fail(where, rule, "no error")


def still_answers(engine: Engine, after: str) -> None:
    """Check that the engine still answers."""
    answer = engine.complete(new_request(engine, tokens=3))
    check(len(answer.tokens) == 3, "Engine.complete", f"the engine goes on after {after}", answer)


def gauges_at_rest(engine: Engine) -> dict[str, float | None]:
    """Return the gauges of running and waiting requests once both are zero, or their values at the time limit."""
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        now = engine.metrics()
        if (not now.running and not now.waiting) or time.monotonic() > until:
            return {"running": now.running, "waiting": now.waiting}
        time.sleep(0.05)


def chance_hits(engine: Engine) -> int:
    """Return how many tokens of a new prompt may hit: where blocks are single tokens, the first ones of another
    prompt.
    """
    return reference_cache.by_chance(engine.shape) if engine.shape.block_size == 1 else 0


def is_error(result: Completion | EngineError) -> bool:
    """Return whether a request ended without an answer."""
    return isinstance(result, EngineError)

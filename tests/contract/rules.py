"""What the contract tests have in common: a broken rule in words, prompts that nobody has asked, answers to compare.

A rule is named as adapters/protocol/ names it, so that who wrote an adapter knows where to read what it owes.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import Engine, EngineError, RequestRefused, Served
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest
from coldproof.harness.judgement import reference_cache

PRINTABLE = range(33, 127)  # ids that every tokenizer has, and the model made on the spot a letter for
DRAWN = random.Random()  # not seeded: an attached engine may remember what an earlier run asked
NUMBERS = itertools.count()
SETTLE_SECONDS = 600.0  # only an engine that breaks the rule takes it
FILES = {"weights.py": ("ChangesWeights", "Pauses", "PauseMode", "Sleeps"), "resets.py": ("ResetsMore",)}


class RuleBroken(AssertionError):
    """An adapter does not keep a rule of adapters/protocol/engine.py."""


def broken(where: str, rule: str, seen: object) -> NoReturn:
    """Fail, naming the rule. `where`: the method or field of adapters/protocol/ that it stands at."""
    raise RuleBroken(f"{where} ({place_of(where)}): {rule}. Seen: {seen}")


def place_of(where: str) -> str:
    """The file of a rule."""
    owner = where.partition(".")[0]
    return f"adapters/protocol/{next((file for file, owners in FILES.items() if owner in owners), 'engine.py')}"


def hold(fact: object, where: str, rule: str, seen: object) -> None:
    """The rule is kept, or the test fails with it."""
    __tracebackhide__ = True
    if not fact:
        broken(where, rule, seen)


def need(engine: Engine, *capabilities: Capability) -> None:
    """Skip where the engine lacks one, with what the adapter says of it. The only way out of a contract test."""
    for capability in capabilities:
        support = engine.capabilities[capability]
        if support.present is not True:
            pytest.skip(f"{engine.name} has no {capability.value}: {support.evidence}")


def can(engine: Engine, capability: Capability) -> bool:
    """Whether the adapter says so."""
    return engine.capabilities[capability].present is True


def prompt(length: int = 24) -> tuple[int, ...]:
    """One that was never asked before."""
    return tuple(DRAWN.choices(PRINTABLE, k=length))


def new_name() -> str:
    """A name that no adapter had before."""
    return f"contract-{DRAWN.getrandbits(32):08x}-{next(NUMBERS)}"


def asked(engine: Engine, length: int = 24, tokens: int = 6, **fields: Any) -> CompletionRequest:
    """A request to the base model with a new prompt."""
    given: dict[str, Any] = {"model": engine.base_model, "prompt": prompt(length), "max_tokens": tokens}
    return CompletionRequest(**{**given, **fields})


def cold(engine: Engine, model: str, about: tuple[int, ...], tokens: int = 12) -> list[int]:
    """What a model answers to a prompt, whatever was asked before: for engines without their cache, or with a salt."""
    salt = new_name() if can(engine, Capability.CACHE_SALT) else None
    return ids(engine.complete(asked(engine, model=model, prompt=about, max_tokens=tokens, cache_salt=salt)))


def ids(answer: Completion) -> list[int]:
    """Token ids."""
    return [token.id for token in answer.tokens]


def serve(engine: Engine, *requests: CompletionRequest, between: Callable[[], None] = lambda: None) -> list[Served]:
    """Side by side, sent at once."""
    return engine.serve([Arrival(one) for one in requests], lambda _number, _count: None, between)


@contextmanager
def refused(where: str, rule: str) -> Iterator[None]:
    """What is done here has to be refused."""
    try:
        yield
    except RequestRefused:
        return
    except Exception as problem:
        raise RuleBroken(f"{where} ({place_of(where)}): {rule}. Seen: {type(problem).__name__}: {problem}") from problem
    broken(where, rule, "no error")


def goes_on(engine: Engine, after: str) -> None:
    """The engine answers as if nothing had been."""
    answer = engine.complete(asked(engine, tokens=3))
    hold(len(answer.tokens) == 3, "Engine.complete", f"the engine goes on after {after}", answer)


def settled(engine: Engine) -> dict[str, float | None]:
    """The gauges of requests once they are at rest, or what they still say."""
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        now = engine.metrics()
        if (not now.running and not now.waiting) or time.monotonic() > until:
            return {"running": now.running, "waiting": now.waiting}
        time.sleep(0.05)


def by_chance(engine: Engine) -> int:
    """Tokens that a prompt may hit that nobody asked: where blocks are single tokens, some of another's first ones."""
    return reference_cache.by_chance(engine.shape) if engine.shape.block_size == 1 else 0


def is_error(result: Completion | EngineError) -> bool:
    """Whether a request has no answer."""
    return isinstance(result, EngineError)

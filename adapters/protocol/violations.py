"""Checks for results that only a bug of the adapter explains. Each violation is a text that follows "adapter NAME ...".

An engine can answer wrongly in many ways, for example with too many tokens or with more cached tokens than the prompt
has. Those are findings and are not checked here. These checks are about what no engine can cause: wrong types, times
that run backwards, a capability without evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import Engine, EngineError, Served
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, Stage, Token
from coldproof.adapters.protocol.shape import EngineShape


def of_adapter(engine: Engine) -> Iterator[str]:
    """Yield missing methods, and invalid statements about the engine."""
    absent = [name for name in vars(Engine) if not name.startswith("_") and not hasattr(engine, name)]
    if absent:
        yield f"has no {', '.join(sorted(absent))}: adapters/protocol/engine.py describes each"
        return
    yield from of_capabilities(engine.capabilities)
    yield from of_shape(engine.shape)
    if not is_text(engine.base_model):
        yield f"has the base_model {engine.base_model!r}: expected the served name"
    wrong = [name for name, value in engine.config.items() if not isinstance(name, str) or not isinstance(value, str)]
    if wrong or not engine.config:
        yield f"has the config {dict(engine.config)!r}: expected a non-empty mapping of str to str for the report"


def of_capabilities(capabilities: Mapping[Capability, Support]) -> Iterator[str]:
    """Yield capabilities that are missing, of a wrong type or without evidence."""
    missing = [c.value for c in Capability if c not in capabilities]
    if missing:
        yield f"does not report the capabilities: {', '.join(missing)}"
    for capability, support in capabilities.items():
        if not isinstance(support, Support) or not (support.present is None or isinstance(support.present, bool)):
            yield f"reports {support!r} for {capability}: expected a Support with present True, False or None (unknown)"
        elif not is_text(support.evidence):
            yield f"reports {support.present} for {capability} without evidence: Support.evidence must not be empty"


def of_shape(shape: EngineShape) -> Iterator[str]:
    """Yield sizes that are neither positive nor None (unknown)."""
    sizes = ("block_size", "pool_blocks", "adapter_slots", "most_requests", "max_model_tokens")
    for name in sizes:
        value = getattr(shape, name)
        if value is None and name != "max_model_tokens":
            continue
        if not is_count(value) or value == 0:
            yield f"has a shape with {name} {value!r}: expected a positive int, or None for unknown"


def of_answer(answer: object, request: CompletionRequest) -> Iterator[str]:
    """Yield fields that are invalid in every answer to a request."""
    if not isinstance(answer, Completion):
        yield f"returned {answer!r}: expected a Completion"
        return
    for tokens in (answer.tokens, *answer.others):
        yield from of_tokens(tokens)
    if not (answer.cached_tokens is None or is_count(answer.cached_tokens)):
        yield f"returned cached_tokens {answer.cached_tokens!r}: expected an int from 0, or None if not reported"
    if answer.cached_between is not None and not is_range(answer.cached_between):
        yield f"returned cached_between {answer.cached_between!r}: expected two ints, minimum and maximum"
    if not (answer.preemptions is None or is_count(answer.preemptions)):
        yield f"returned preemptions {answer.preemptions!r}: expected an int from 0, or None if not reported"
    if not all(is_time(at) for at in answer.preempted_at):
        yield f"returned preempted_at {answer.preempted_at!r}: expected seconds since the request was sent"
    if answer.prompt is not None and not are_counts(answer.prompt):
        yield f"returned the prompt {answer.prompt!r}: expected a tuple of token ids"
    if not (answer.finish_reason is None or is_text(answer.finish_reason)):
        yield f"returned finish_reason {answer.finish_reason!r}: expected a non-empty str, or None if not reported"
    yield from of_end(answer, request)


def of_end(answer: Completion, request: CompletionRequest) -> Iterator[str]:
    """Yield `aborted` values that contradict the request or the finish reason."""
    if answer.aborted is None:
        return
    if not isinstance(answer.aborted, Stage):
        yield f"returned aborted {answer.aborted!r}: expected a Stage, or None if the client did not disconnect"
    elif request.abort is None:
        yield f"returned aborted {answer.aborted.value!r} for a request without a client disconnect"
    elif answer.finish_reason is not None:
        both = f"aborted {answer.aborted.value!r} and finish_reason {answer.finish_reason!r}"
        yield f"returned {both}: expected only one of them"


def of_tokens(tokens: object) -> Iterator[str]:
    """Yield token ids that are not numbers from 0, and times that run backwards."""
    if not isinstance(tokens, tuple) or not all(isinstance(token, Token) for token in tokens):
        yield f"returned tokens {tokens!r}: expected a tuple of Token"
        return
    for token in tokens:
        if not isinstance(token.id, int) or isinstance(token.id, bool):
            yield f"returned a token id {token.id!r}: expected an int"
        elif token.id < 0:
            yield f"returned a negative token id, {token.id}"
        if not is_time(token.at):
            yield f"returned a token at {token.at!r}: expected seconds since the request was sent"
    if any(later.at < earlier.at for earlier, later in pairwise(tokens)):
        yield f"returned tokens at {[token.at for token in tokens]}: times run backwards"


def of_served(served: object) -> Iterator[str]:
    """Yield results of an arrival that are not a Served, or that end before they start."""
    if not isinstance(served, Served) or not isinstance(served.result, Completion | EngineError):
        yield f"returned {served!r} for an arrival: expected a Served with a Completion or an EngineError"
    elif not (math.isfinite(served.sent) and math.isfinite(served.finished) and served.sent <= served.finished):
        yield f"returned a request that was sent at {served.sent} and finished at {served.finished}"


def of_metrics(metrics: object) -> Iterator[str]:
    """Yield metrics that are neither finite numbers nor None (not published)."""
    if not isinstance(metrics, Metrics):
        yield f"returned {metrics!r} as metrics: expected a Metrics"
        return
    for name in metrics.__struct_fields__:
        value = getattr(metrics, name)
        if value is not None and (not isinstance(value, int | float) or not math.isfinite(value)):
            yield f"returned {name} {value!r}: expected a number, or None if the engine does not publish it"


def are_counts(values: Sequence[object]) -> bool:
    """Return whether all values are ints from 0. A prompt has up to a million, which are looked at one by one only
    where they are not all plain ints.
    """
    if set(map(type, values)) == {int}:
        return bool(min(values) >= 0)  # type: ignore[type-var, operator]
    return all(map(is_count, values))


def is_count(value: object) -> bool:
    """Return whether a value is an int from 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_range(value: object) -> bool:
    """Return whether a value is a pair of counts, minimum and maximum."""
    return isinstance(value, tuple) and len(value) == 2 and all(map(is_count, value)) and value[0] <= value[1]


def is_time(value: object) -> bool:
    """Return whether a value is a finite number of seconds from 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def is_text(value: object) -> bool:
    """Return whether a value is a str that is not blank."""
    return isinstance(value, str) and bool(value.strip())

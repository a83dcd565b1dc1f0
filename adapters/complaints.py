"""What an adapter can only have got wrong itself, in English, each as what follows "adapter NAME ...".

An engine may answer wrongly in many ways, and those are findings: too many tokens, more cached than the prompt is long.
Here is what no engine can have done: a type that is none, time that runs backwards, a capability without a word of why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise

from adapters.base import (
    Capability,
    Completion,
    CompletionRequest,
    Engine,
    EngineError,
    EngineShape,
    Metrics,
    Served,
    Stage,
    Support,
    Token,
)


def of_adapter(engine: Engine) -> Iterator[str]:
    """What an adapter lacks, or says of its engine and cannot be."""
    absent = [name for name in vars(Engine) if not name.startswith("_") and not hasattr(engine, name)]
    if absent:
        yield f"has no {', '.join(sorted(absent))}: adapters/base.py says what each does"
        return
    yield from of_capabilities(engine.capabilities)
    yield from of_shape(engine.shape)
    if not is_text(engine.base_model):
        yield f"names its base model {engine.base_model!r}: it wants the served name"
    wrong = [name for name, value in engine.config.items() if not isinstance(name, str) or not isinstance(value, str)]
    if wrong or not engine.config:
        yield f"has a config of {dict(engine.config)!r}: it wants names and texts, and at least one, for the report"


def of_capabilities(capabilities: Mapping[Capability, Support]) -> Iterator[str]:
    """Every capability is told, and with the observation that says so."""
    missing = [c.value for c in Capability if c not in capabilities]
    if missing:
        yield f"says nothing about: {', '.join(missing)}"
    for capability, support in capabilities.items():
        if not isinstance(support, Support) or not (support.present is None or isinstance(support.present, bool)):
            yield f"says {support!r} of {capability}: it wants a Support of True, False or None (could not be told)"
        elif not is_text(support.evidence):
            yield f"says {support.present} of {capability} and not what it has seen: Support wants the evidence"


def of_shape(shape: EngineShape) -> Iterator[str]:
    """Sizes are positive; what is not known is None."""
    sizes = ("block_size", "pool_blocks", "adapter_slots", "most_requests", "max_model_tokens")
    for name in sizes:
        value = getattr(shape, name)
        if value is None and name != "max_model_tokens":
            continue
        if not is_count(value) or value == 0:
            yield f"has a shape of {name} {value!r}: it wants a positive whole number, or None for unknown"


def of_answer(answer: object, request: CompletionRequest) -> Iterator[str]:
    """What cannot be the answer to a request."""
    if not isinstance(answer, Completion):
        yield f"returned {answer!r}: it wants a Completion"
        return
    for tokens in (answer.tokens, *answer.others):
        yield from of_tokens(tokens)
    if not (answer.cached_tokens is None or is_count(answer.cached_tokens)):
        yield f"returned cached_tokens {answer.cached_tokens!r}: it wants a whole number, or None where none was told"
    if answer.cached_between is not None and not is_range(answer.cached_between):
        yield f"returned cached_between {answer.cached_between!r}: it wants two whole numbers, at least and at most"
    if not (answer.preemptions is None or is_count(answer.preemptions)):
        yield f"returned preemptions {answer.preemptions!r}: it wants a whole number, or None where none was told"
    if not all(is_time(at) for at in answer.preempted_at):
        yield f"returned preempted_at {answer.preempted_at!r}: it wants seconds since the request was sent"
    if answer.prompt is not None and not all(is_count(number) for number in answer.prompt):
        yield "returned a prompt that is no tuple of token ids"
    if not (answer.finish_reason is None or is_text(answer.finish_reason)):
        yield f"returned finish_reason {answer.finish_reason!r}: it wants a word, or None where none was told"
    yield from of_end(answer, request)


def of_end(answer: Completion, request: CompletionRequest) -> Iterator[str]:
    """`aborted` is for clients that hung up, and those have seen no end."""
    if answer.aborted is None:
        return
    if not isinstance(answer.aborted, Stage):
        yield f"returned aborted {answer.aborted!r}: it wants a Stage, or None where the client did not hang up"
    elif request.abort is None:
        yield f"returned aborted {answer.aborted.value!r} to a request that nobody was to hang up on"
    elif answer.finish_reason is not None:
        yield f"returned aborted {answer.aborted.value!r} and finish_reason {answer.finish_reason!r}: it is one of them"


def of_tokens(tokens: object) -> Iterator[str]:
    """Ids are numbers, and their times do not run backwards."""
    if not isinstance(tokens, tuple) or not all(isinstance(token, Token) for token in tokens):
        yield f"returned tokens {tokens!r}: it wants a tuple of Token"
        return
    for token in tokens:
        if not isinstance(token.id, int) or isinstance(token.id, bool):
            yield f"returned a token id {token.id!r}: it wants a whole number"
        elif token.id < 0:
            yield f"returned a negative token id, {token.id}"
        if not is_time(token.at):
            yield f"returned a token at {token.at!r}: it wants seconds since the request was sent"
    if any(later.at < earlier.at for earlier, later in pairwise(tokens)):
        yield f"returned tokens at {[token.at for token in tokens]}: times run backwards"


def of_served(served: object) -> Iterator[str]:
    """What became of an arrival is a Served, and it ended after it began."""
    if not isinstance(served, Served) or not isinstance(served.result, Completion | EngineError):
        yield f"returned {served!r} for an arrival: it wants a Served with a Completion or an EngineError"
    elif not (math.isfinite(served.sent) and math.isfinite(served.finished) and served.sent <= served.finished):
        yield f"returned a request sent at {served.sent} that was over at {served.finished}"


def of_metrics(metrics: object) -> Iterator[str]:
    """Figures, or None for what the engine does not publish."""
    if not isinstance(metrics, Metrics):
        yield f"returned {metrics!r} as metrics: it wants a Metrics"
        return
    for name in metrics.__struct_fields__:
        value = getattr(metrics, name)
        if value is not None and (not isinstance(value, int | float) or not math.isfinite(value)):
            yield f"returned {name} {value!r}: it wants a number, or None where the engine publishes none"


def is_count(value: object) -> bool:
    """A whole number from zero."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_range(value: object) -> bool:
    """Two counts, the greater one behind."""
    return isinstance(value, tuple) and len(value) == 2 and all(map(is_count, value)) and value[0] <= value[1]


def is_time(value: object) -> bool:
    """Seconds from zero."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def is_text(value: object) -> bool:
    """Words."""
    return isinstance(value, str) and bool(value.strip())

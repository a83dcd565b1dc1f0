"""Text descriptions of workloads, one line for each step."""

from __future__ import annotations

from collections.abc import Iterator

from coldproof.adapters.protocol.requests import Abort, ResponseOptions
from coldproof.harness.workload.steps import Burst, Request, Step


def describe(step: Step, first_request: int) -> str:
    """Return a step's description in one line; `first_request` is the number of the burst's first request."""
    return describe_burst(step, first_request) if isinstance(step, Burst) else step.describe()


def describe_burst(burst: Burst, first_request: int) -> str:
    """Return the description of a burst's requests, and of the changes during it."""
    requests, meanwhile = burst.requests, burst.meanwhile
    lines = "; ".join(describe_request(request, first_request + i) for i, request in enumerate(requests))
    send = "send" if len(requests) == 1 else f"send {len(requests)} at once"
    if meanwhile is None:
        return f"{send}: {lines}"
    changes = ", then ".join(change.describe() for change in meanwhile.changes)
    apart = f" ({meanwhile.gap_ms} ms apart)" if meanwhile.then and meanwhile.gap_ms else ""
    if meanwhile.first:
        apart = f" on the {meanwhile.first} side, and {meanwhile.gap_ms} ms later on the other"
    return f"{send}: {lines}; after {meanwhile.after_tokens} tokens {changes}{apart}"


def describe_request(request: Request, number: int) -> str:
    """Return a request's description."""
    model = "the base model" if request.adapter is None else repr(request.adapter)
    text = f"request {number} to {model}" + ("" if request.salt is None else f" with salt {request.salt!r}")
    text += f"{' as a chat' if request.chat else ''}{f' at {request.endpoint.value}' if request.endpoint else ''}"
    text += f" in {'streaming ' if request.streaming else ''}session '{request.session}'" if request.session else ""
    wanted = f"{request.max_tokens} tokens" if request.options.pooled is None else str(request.options.pooled)
    text += f": {request.prompt}, {wanted}"
    text += "".join(f", {option}" for option in describe_options(request.options))
    text += f", priority {request.priority}" if request.priority else ""
    text += f", on rank {request.rank}" if request.rank is not None else ""
    text += f", {request.offset_ms} ms later" if request.offset_ms else ""
    text += f", handed over after {request.hand_over_ms} ms" if request.hand_over_ms else ""
    return text + (f", {describe_abort(request.abort)}" if request.abort is not None else "")


def describe_options(options: ResponseOptions) -> Iterator[str]:
    """Yield a description of each response option that is not the default."""
    if options.answers > 1:
        yield f"{options.answers} answers"
    if options.stop:
        yield f"stop at any of {''.join(options.stop)!r}"
    if options.pattern is not None:
        yield f"matching {options.pattern}"
    if options.prompt_logprobs:
        yield "with prompt logprobs"
    if options.logprobs:
        yield "with logprobs"
    if options.most_loaded is not None:
        yield f"at most {options.most_loaded} tokens loaded"
    if options.most_stored is not None:
        yield f"at most {options.most_stored} tokens stored"


def describe_abort(abort: Abort) -> str:
    """Return when the client disconnects."""
    once = f", once it is {abort.at.value}" if abort.at is not None else ""
    if abort.after_tokens:
        return f"aborted after {abort.after_tokens} tokens{once}"
    return f"aborted after {abort.after_ms} ms{once}"

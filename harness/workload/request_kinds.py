"""Kinds of requests that a run can stop sending, because the engine dies of them.

The kinds are in an order: a workload that an engine survives without one kind needs no later one, which is wider.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.requests import PLAIN, ResponseOptions
from coldproof.harness.workload.steps import Burst, Prompt, Request, Route, Segment, SetAdapter, Step, Workload
from coldproof.harness.workload.transform import change_requests, one_request_per_burst, without_adapters


class RequestKind(enum.StrEnum):
    """A kind of request, narrowest first."""

    SCORES_BESIDE = "prompt logprobs beside another request"
    SCORES = "prompt logprobs"
    SEVERAL = "several answers"
    STOP = "stop strings"
    PATTERN = "structured output"
    LOGPROBS = "logprobs"
    ADAPTER = "an adapter"

    @property
    def whole(self) -> bool:
        """Return whether it is all that its capabilities are for: without it, they cannot be tested."""
        return self is not RequestKind.SCORES_BESIDE

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Return the capabilities that such a request uses."""
        return CAPABILITIES[self]


CAPABILITIES = {
    RequestKind.SCORES_BESIDE: frozenset({Capability.PROMPT_LOGPROBS}),
    RequestKind.SCORES: frozenset({Capability.PROMPT_LOGPROBS}),
    RequestKind.SEVERAL: frozenset({Capability.SEVERAL_ANSWERS}),
    RequestKind.STOP: frozenset({Capability.STOP_STRINGS}),
    RequestKind.PATTERN: frozenset({Capability.STRUCTURED_OUTPUT}),
    RequestKind.LOGPROBS: frozenset({Capability.LOGPROBS}),
    RequestKind.ADAPTER: frozenset(
        {
            Capability.ADAPTER_CHOICE,
            Capability.MIXED_ADAPTERS,
            Capability.ADAPTER_SWITCH,
            Capability.RUNTIME_LORA,
            Capability.LORA_IN_PLACE,
        }
    ),
}
# The response option of a kind, and its value in a request that is not of this kind.
OPTIONS: dict[RequestKind, dict[str, object]] = {
    RequestKind.SCORES: {"prompt_logprobs": False},
    RequestKind.SEVERAL: {"answers": 1},
    RequestKind.STOP: {"stop": ()},
    RequestKind.PATTERN: {"pattern": None},
    RequestKind.LOGPROBS: {"logprobs": False},
}


def without_kind(workload: Workload, kind: RequestKind) -> Workload:
    """Return the workload without requests of a kind: without the option, or sent one at a time. Numbers stay."""
    if kind is RequestKind.SCORES_BESIDE:
        steps = [at for at, step in enumerate(workload.steps) if scores_beside(step)]
        return one_request_per_burst(workload, steps)
    if kind is RequestKind.ADAPTER:
        return without_adapters(workload)

    def without_option(request: Request) -> Request:
        return msgspec.structs.replace(request, options=msgspec.structs.replace(request.options, **OPTIONS[kind]))

    return change_requests(workload, without_option)


def scores_beside(step: Step) -> bool:
    """Return whether a request for prompt logprobs runs beside another request."""
    return len(step.requests) > 1 and any(request.options.prompt_logprobs for request in step.requests)


def may_be_the_cause(kind: RequestKind, workload: Workload) -> bool:
    """Return whether a workload has such requests, and nothing that is more likely to end an engine.

    An adapter is the cause only where it is loaded once and used: otherwise it may be a change, an abort, or the load.
    """
    if without_kind(workload, kind) == workload:
        return False
    plain = all(
        (isinstance(step, SetAdapter) and step.route is Route.LOAD)
        or (isinstance(step, Burst) and step.meanwhile is None and not any(one.abort for one in step.requests))
        for step in workload.steps
    )
    return kind is not RequestKind.ADAPTER or (plain and sum(1 for _ in workload.requests()) <= 2)


def plain_requests(lengths: Iterable[int], tokens: int) -> list[Workload]:
    """Return workloads of one request to the base model each, without any option. `lengths`: of the prompts."""
    prompts = (Prompt((Segment("stem", length),)) for length in lengths)
    return [Workload((Burst(requests=(Request(prompt=prompt, max_tokens=tokens),)),)) for prompt in prompts]


def is_plain_request(workload: Workload) -> bool:
    """Return whether a workload is one request to the base model, without any option."""
    match workload.steps:
        case (Burst(requests=(Request(adapter=None, options=response_options, abort=None),), meanwhile=None),):
            return response_options == PLAIN
    return False


def probe_of(kind: RequestKind, length: int) -> Workload | None:
    """Return the smallest workload with prompt logprobs of this kind; None for other kinds. `length`: of a prompt."""
    if kind not in (RequestKind.SCORES_BESIDE, RequestKind.SCORES):
        return None
    scored = ResponseOptions(prompt_logprobs=True)
    one = Request(prompt=Prompt((Segment("stem", length),)), options=scored)
    other = msgspec.structs.replace(one, prompt=Prompt((Segment("stem", length), Segment("beside", 5))))
    return Workload((Burst(requests=(one, other) if kind is RequestKind.SCORES_BESIDE else (one,)),))

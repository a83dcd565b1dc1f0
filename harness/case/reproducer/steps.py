"""Writes the steps of a workload as calls of a script, one line for each step."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from coldproof.adapters.server.completions import headers, option_fields
from coldproof.harness import feature_files
from coldproof.harness.case.reproducer.features import has_content
from coldproof.harness.workload.kinds.kind import StepKind
from coldproof.harness.workload.steps import (
    Burst,
    Idle,
    Request,
    Reset,
    Restart,
    Route,
    Segment,
    SetAdapter,
    Unload,
    Workload,
)


def imported_content(workload: Workload) -> Iterator[str]:
    """Yield the imports of what prompts with rows or images are written with."""
    segments = [segment for _, _, request in workload.requests() for segment in request.prompt.segments]
    if any(map(has_content, segments)):
        yield "from coldproof.adapters.protocol.images import Arguments, Encoding"
        yield "from coldproof.harness.workload.steps import Image, Rows, Segment"


def scenario(workload: Workload) -> list[str]:
    """Return the workload as calls of the script, one line for each step."""
    feature_files.load("script")
    lines: list[str] = []
    loaded: set[str] = set()
    content = next(imported_content(workload), None) is not None
    for step in workload.steps:
        if isinstance(step, SetAdapter) and step.route is Route.UNLOAD_LOAD and step.name in loaded:
            lines.append(f"story.unload({step.name!r})")
        if isinstance(step, Burst):
            lines.append(burst_call(step, loaded, content=content))
        else:
            lines.append(step_call(step, loaded))
        loaded |= {change.name for change in step.changes if isinstance(change, SetAdapter)}
        loaded -= {step.name} if isinstance(step, Unload) else set()
    return lines


def burst_call(burst: Burst, loaded: set[str], *, content: bool) -> str:
    """Return a burst as a call. `content`: some prompts have rows or images."""
    requests = ", ".join(request_call(request, content=content) for request in burst.requests)
    meanwhile = burst.meanwhile
    if meanwhile is None:
        return f"story.ask({requests})"
    wait = f", time.sleep({meanwhile.gap_ms / 1000}), " if meanwhile.gap_ms else ", "
    calls = [step_call(change, loaded) for change in meanwhile.changes]
    if meanwhile.first:
        both = (meanwhile.first, meanwhile.first.other)
        calls = [calls[0].replace("story.", f"story.side({side.value!r}).", 1) for side in both]
    made = f"[{wait.join(calls)}]" if len(calls) > 1 else calls[0]
    return f"story.during(lambda: {made}, {meanwhile.after_tokens}, {requests})"


@functools.singledispatch
def step_call(step: StepKind, loaded: set[str]) -> str:
    """Return a step as a call. `loaded`: the adapters that are. The file `script` of a feature registers its kinds.

    Raises TypeError for a kind of step that no script can make.
    """
    match step:
        case Unload(name=name):
            return f"story.unload({name!r})"
        case Restart(before=before):
            return f"story.restart({before.value!r})"
        case Idle(ms=ms):
            return f"time.sleep({ms / 1000})"
        case SetAdapter(name=name, content=content, path=path, route=route):
            how = ", for_all=True" if route is Route.SWITCH else ""
            how += ", in_place=True" if route is Route.IN_PLACE and name in loaded else ""
            return f"story.load({name!r}, {content!r}, {path!r}{how})"
        case Reset():
            words = [repr(scope.value) for scope in step.scope] + ([] if step.prefix else ["prefix=False"])
            return f"story.client.reset({', '.join(words)})"
    raise TypeError(f"no script makes {type(step).__name__}")


def request_call(request: Request, *, content: bool) -> str:
    """Return one request as a `dict(...)` expression."""
    prompt = ", ".join(segment_literal(segment, content=content) for segment in request.prompt.segments)
    fields: dict[str, Any] = {}
    if request.adapter is not None:
        fields["to"] = request.adapter
    if request.prompt.continues is not None:
        fields["continues"] = request.prompt.continues
    if request.prompt.cuts_history:
        fields["cut"] = (request.prompt.start, request.prompt.end)
    fields |= request_options(request)
    written = "".join(f", {name}={value!r}" for name, value in fields.items())
    return f"dict(prompt=[{prompt}], tokens={request.max_tokens}{written})"


def request_options(request: Request) -> dict[str, Any]:
    """Return what a request has beside its prompt and its adapter."""
    extra, sent = extra_fields(request), sent_headers(request)
    fields = {
        "salt": request.salt,
        "offset_ms": request.offset_ms or None,
        "chat": request.chat or None,
        "endpoint": request.endpoint.value if request.endpoint else None,
        "headers": sent or None,
        "pooled": None if request.options.pooled is None else request.options.pooled.value,
        "session": request.session,
        "streaming": (request.streaming or None) if request.session else None,
        "abort": None if request.abort is None else (request.abort.after_tokens, request.abort.after_ms),
        "extra": extra or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def sent_headers(request: Request) -> dict[str, str]:
    """Return the headers that this request is sent with, beside the usual ones."""
    return headers(request.rank, request.hand_over_ms)


def extra_fields(request: Request) -> dict[str, Any]:
    """Return the extra fields of this request's body, as Coldproof sends them."""
    extra: dict[str, Any] = {"priority": request.priority} if request.priority else {}
    if request.options != request.options.plain():
        extra |= option_fields(request.options, chat=request.chat)
    if request.options.answers > 1:
        extra["temperature"] = 1
    if request.options.stop or request.options.pattern is not None:
        extra["ignore_eos"] = False
    return extra


def segment_literal(segment: Segment, *, content: bool) -> str:
    """Return a segment as a Python literal. Names may come from a case file, so they are quoted."""
    values: list[Any] = [segment.name, segment.length]
    if segment.changed is not None or segment.swapped is not None:
        values += [segment.changed] + ([] if segment.swapped is None else [segment.swapped])
    if not content:
        return repr(tuple(values))
    words = [repr(value) for value in values]
    words += [f"rows={struct_literal(segment.rows)}"] if segment.rows else []
    words += [f"image={struct_literal(segment.image)}"] if segment.image else []
    return f"Segment({', '.join(words)})"


def struct_literal(value: msgspec.Struct) -> str:
    """Return rows or an image as a call of its class, without what is as usual."""
    fields: Mapping[str, Any] = msgspec.structs.asdict(value)
    usual = {one.name: one.default for one in msgspec.structs.fields(value)}
    own = [f"{name}={plain(field)}" for name, field in fields.items() if field != usual[name]]
    return f"{type(value).__name__}({', '.join(own)})"


def plain(value: Any) -> str:
    """Return a value as a literal, a member of an enumeration as a call of its class."""
    return f"{type(value).__name__}({int(value)})" if isinstance(value, enum.IntEnum) else repr(value)

"""The controls that change the workload: a failing workload with one thing changed. Pure: the caller runs them.

The choice follows a hand-made bug report (vllm#42125), which identified a stale prefix cache by the changes that made
the wrong answer go away. A control that would change nothing is omitted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import msgspec

from coldproof.harness.workload.halves import count_of, half_of, twice
from coldproof.harness.workload.steps import (
    Burst,
    Request,
    Reset,
    Route,
    Segment,
    SetAdapter,
    Step,
    Workload,
    adapter_changes,
    renumbered,
)
from coldproof.harness.workload.transform import (
    change_adapter_steps,
    change_request,
    change_requests,
    one_request_per_burst,
    without_adapters,
    without_steps,
)
from coldproof.harness.workload.validity import is_valid

COPIES = 8  # the bug report used 32; eight are enough for a tiny model and fit into a small pool


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """One change. `removes`: the factor that the case has and the control lacks, as the conclusion names it.

    `request`: the number of the failing request in the changed workload. `about_one`: only this request is changed, so
    that failures of other requests do not count.
    """

    name: str
    removes: str
    workload: Workload
    request: int | None
    about_one: bool = False


Change = Callable[[Workload, int | None], tuple[Workload, int | None]]


def controls_of(workload: Workload, failing: int | None, *, salts: bool, blocks: bool = True) -> Iterator[Control]:
    """Yield every control that changes the workload, those that bypass the cache first.

    `salts`: whether the engine accepts salts. `blocks`: whether its blocks are longer than the nonce with which all
    prompts of a run begin.
    """
    half = half_of(workload)
    part = half or workload
    if half is not None and failing is not None:
        failing %= count_of(half)
    for name, removes, change in CHANGES:
        if (change is fresh_salt and not salts) or (change is first_block_changed and not blocks):
            continue
        changed, request = change(part, failing)
        if changed == part or not is_valid(changed):
            continue
        about_one = change in (fresh_salt, first_block_changed, alone)
        if half is not None:
            changed, request = twice(changed), None if request is None else request + count_of(changed)
        yield Control(name=name, removes=removes, workload=changed, request=request, about_one=about_one)


def fresh_salt(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Give the failing request a salt that no other request has."""
    return change_request(workload, failing, lambda r: msgspec.structs.replace(r, salt="control")), failing


def first_block_changed(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Change the first segment of the failing request, so that it shares no prefix with other requests."""

    def change(request: Request) -> Request:
        if not request.prompt.segments or request.prompt.continues is not None:
            return request
        first, *rest = request.prompt.segments
        other = msgspec.structs.replace(first, name=f"{first.name} of the control", changed=None, swapped=None)
        return msgspec.structs.replace(request, prompt=msgspec.structs.replace(request.prompt, segments=(other, *rest)))

    return change_request(workload, failing, change), failing


def alone(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Keep only the failing request, and the last load of its adapter."""
    at = next(((s, r) for n, s, r in workload.requests() if n == failing), None)
    if at is None or at[1].prompt.continues is not None:
        return workload, failing
    step, request = at
    loaded = [s for s in workload.steps[:step] if isinstance(s, SetAdapter) and s.name == request.adapter]
    cold = [s if s.route is Route.SWITCH else msgspec.structs.replace(s, route=Route.LOAD) for s in loaded[-1:]]
    only = msgspec.structs.replace(request, offset_ms=0, abort=None)
    return Workload((*cold, Burst(requests=(only,)))), 0


def unique_names(workload: Workload, failing: int | None, *, switched: bool = False) -> tuple[Workload, int | None]:
    """Load each adapter under a unique name, which the requests after it use.

    `switched`: in place of a switch of the adapter for all requests. Without it, only if there is no such switch.
    """
    if any(step.route is Route.SWITCH for step in adapter_changes(workload)) is not switched:
        return workload, failing
    if any(step.meanwhile is not None for step in workload.steps):
        return workload, failing  # during a change, either name may be right
    current: dict[str | None, str] = {}
    loads = 0
    steps: list[Step] = []
    for step in workload.steps:
        if isinstance(step, Burst):
            renamed = (msgspec.structs.replace(r, adapter=current.get(r.adapter, r.adapter)) for r in step.requests)
            steps.append(msgspec.structs.replace(step, requests=tuple(renamed)))
            continue
        if isinstance(step, SetAdapter):
            loads += 1
            current[step.name] = step.name if step.name not in current else f"{step.name} {loads}"
            step = msgspec.structs.replace(step, route=Route.LOAD)
        steps.append(step.renamed(current))
    return Workload(tuple(steps)), failing


def unique_paths(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Load each content from a path of its own, so that no files are replaced."""

    def change(step: SetAdapter) -> SetAdapter:
        holders = {s.content for s in adapter_changes(workload) if s.path == step.path}
        return step if len(holders) == 1 else msgspec.structs.replace(step, path=f"{step.path} of {step.content}")

    return change_adapter_steps(workload, change), failing


def contents_swapped(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Swap the two adapter contents."""
    contents = list(dict.fromkeys(step.content for step in adapter_changes(workload)))
    if len(contents) != 2:
        return workload, failing
    other = dict(zip(contents, reversed(contents), strict=True))
    return change_adapter_steps(workload, lambda s: msgspec.structs.replace(s, content=other[s.content])), failing


def other_route(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Replace reloads in place by unload and load, and vice versa; not for changes during a burst."""
    other = {Route.IN_PLACE: Route.UNLOAD_LOAD, Route.UNLOAD_LOAD: Route.IN_PLACE}
    if any(step.meanwhile is not None for step in workload.steps):
        return workload, failing
    return change_adapter_steps(
        workload, lambda s: msgspec.structs.replace(s, route=other.get(s.route, s.route))
    ), failing


def in_all_requests(**fields: object) -> Change:
    """Return the change that gives all requests these fields."""
    return lambda workload, failing: (
        change_requests(workload, lambda r: msgspec.structs.replace(r, **fields)),
        failing,
    )


def plain_requests(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Send all requests without response options."""
    return change_requests(workload, lambda r: msgspec.structs.replace(r, options=r.options.plain())), failing


def many_at_once(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Send each request as a burst of copies, if all are sent one at a time; the first copy keeps the number."""
    if any(len(step.requests) > 1 or step.meanwhile for step in workload.steps):
        return workload, failing
    new = {number: number * COPIES for number, _, _ in workload.requests()}
    steps = [
        msgspec.structs.replace(step, requests=(renumbered(step.requests[0], new),) * COPIES) if step.requests else step
        for step in workload.steps
    ]
    return Workload(tuple(steps)), None if failing is None else new[failing]


def unrelated_salts(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Replace each salt by one that has nothing in common with the others."""
    words = dict.fromkeys(r.salt for _, _, r in workload.requests() if r.salt is not None)
    plain = {salt: f"{chr(ord('a') + i % 26) * 12}{i}" for i, salt in enumerate(words)}

    def change(request: Request) -> Request:
        return request if request.salt is None else msgspec.structs.replace(request, salt=plain[request.salt])

    return (change_requests(workload, change) if len(plain) > 1 else workload), failing


def unrelated_prompts(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Replace segments that differ from another in a token or two by segments that differ in all tokens."""

    def unlike(segment: Segment) -> Segment:
        nudged = segment.rows.nudged if segment.rows else None
        if segment.changed is None and segment.swapped is None and nudged is None:
            return segment
        other = Segment(f"{segment.name} unlike {segment.changed} {segment.swapped}", segment.length)
        if not segment.rows:
            return other
        rows = msgspec.structs.replace(segment.rows, nudged=None)
        return msgspec.structs.replace(other, name=f"{other.name} {nudged}", rows=rows)

    def change(request: Request) -> Request:
        segments = tuple(map(unlike, request.prompt.segments))
        return msgspec.structs.replace(request, prompt=msgspec.structs.replace(request.prompt, segments=segments))

    return change_requests(workload, change), failing


def on_both_sides(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Make each change on both sides of a pair at once."""
    steps = [
        msgspec.structs.replace(step, meanwhile=msgspec.structs.replace(step.meanwhile, first=None, gap_ms=0))
        if step.meanwhile is not None and step.meanwhile.first
        else step
        for step in workload.steps
    ]
    return Workload(tuple(steps)), failing


# The factors that the controls remove, as the conclusion names them.
OWN_KEY, SHARED_PREFIX = "a hit under its own salt", "a prefix shared with other requests"
OTHER_REQUESTS = "prior or concurrent requests"
NAME, PATH, ORDER = "reuse of the adapter's name", "reuse of the adapter's path", "this order of the adapters"
ROUTE, SWITCHED = "this route of the reload", "an adapter switch for all requests"
CONCURRENT, DISCONNECT, RESET = "concurrent requests", "a client disconnect", "a cache reset"
SEQUENTIAL = "requests one at a time"
ADAPTERS, SALTS, SIMILAR_SALTS = "adapters", "salts", "nearly equal salts"
SIMILAR_PROMPTS, OPTIONS = "prompts that differ in a token or two", "response options"
PRIORITIES, ENDPOINTS = "priorities", "several endpoints"
ONE_SIDE_FIRST = "a change that reaches one side first"
CHANGES: tuple[tuple[str, str, Change], ...] = (
    ("a fresh salt on the failing request", OWN_KEY, fresh_salt),
    ("another first block in the failing request", SHARED_PREFIX, first_block_changed),
    ("the failing request alone", OTHER_REQUESTS, alone),
    ("a unique name for each adapter load", NAME, unique_names),
    ("adapters chosen by each request", SWITCHED, functools.partial(unique_names, switched=True)),
    ("a unique path for each adapter", PATH, unique_paths),
    ("the two adapters swapped", ORDER, contents_swapped),
    ("the other route of a reload", ROUTE, other_route),
    ("each change on both sides at once", ONE_SIDE_FIRST, on_both_sides),
    ("one request at a time", CONCURRENT, lambda w, failing: (one_request_per_burst(w), failing)),
    (f"{COPIES} copies of each request at once", SEQUENTIAL, many_at_once),
    ("no client disconnect", DISCONNECT, in_all_requests(abort=None)),
    ("no cache reset", RESET, lambda w, failing: (without_steps(w, Reset), failing)),
    ("the base model only", ADAPTERS, lambda w, failing: (without_adapters(w), failing)),
    ("no salts", SALTS, in_all_requests(salt=None)),
    ("unrelated salts", SIMILAR_SALTS, unrelated_salts),
    ("unrelated prompts instead of similar ones", SIMILAR_PROMPTS, unrelated_prompts),
    ("no response options", OPTIONS, plain_requests),
    ("equal priorities", PRIORITIES, in_all_requests(priority=0)),
    ("every request at its usual endpoint", ENDPOINTS, in_all_requests(endpoint=None)),
)

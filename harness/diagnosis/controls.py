"""The controls that change what is asked: a failing workload with one thing changed. Pure: whoever asks runs them.

Which of them there are follows the best hand-made report of the field (vllm#42125): it told a stale prefix cache from
everything else by what made the wrong answer go away. A control that would change nothing here is not made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from adapters.base import PLAIN
from harness.reduction import is_valid
from harness.rewriting import all_changed, leaving_out, one_changed, taken_apart, with_changes
from harness.workload import (
    Burst,
    Request,
    Reset,
    Route,
    Segment,
    SetAdapter,
    Step,
    Unload,
    Workload,
    changes,
    renumbered,
)

CROWD = 8  # the field report asked 32; eight do for a tiny model, and a small pool still holds them


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """One change. `removes`: what the case has and the control has not, as a conclusion names it.

    `request`: the number that the failing request has in the changed workload. `about_one`: the change is that
    request's alone, so that another one that fails for the same reason says nothing.
    """

    name: str
    removes: str
    workload: Workload
    request: int | None
    about_one: bool


Change = Callable[[Workload, int | None], tuple[Workload, int | None]]


def in_the_workload(workload: Workload, failing: int | None, *, salts: bool, blocks: bool = True) -> Iterator[Control]:
    """Every control that changes what is asked, bypasses of the cache first. `salts`: whether the engine takes them.
    `blocks`: whether hits come by blocks that are longer than a nonce, which stands first in all prompts.
    """
    for name, removes, change in CHANGES:
        if (change is fresh_salt and not salts) or (change is first_block_changed and not blocks):
            continue
        changed, request = change(workload, failing)
        if changed != workload and is_valid(changed):
            about_one = change in (fresh_salt, first_block_changed, alone)
            yield Control(name=name, removes=removes, workload=changed, request=request, about_one=about_one)


def fresh_salt(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """The failing request under a salt that nothing else has."""
    return one_changed(workload, failing, lambda r: msgspec.structs.replace(r, salt="control")), failing


def first_block_changed(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """The failing request with another token near its start, so that it begins like nothing before it."""

    def change(request: Request) -> Request:
        if not request.prompt.segments or request.prompt.continues is not None:
            return request
        first, *rest = request.prompt.segments
        other = msgspec.structs.replace(first, name=f"{first.name} of the control", changed=None, swapped=None)
        return msgspec.structs.replace(request, prompt=msgspec.structs.replace(request.prompt, segments=(other, *rest)))

    return one_changed(workload, failing, change), failing


def alone(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Only the failing request, on an engine with nothing but its adapter, loaded as that request's name had it."""
    at = next(((s, r) for n, s, r in workload.requests() if n == failing), None)
    if at is None or at[1].prompt.continues is not None:
        return workload, failing
    step, request = at
    loaded = [s for s in workload.steps[:step] if isinstance(s, SetAdapter) and s.name == request.adapter]
    cold = [s if s.route is Route.SWITCH else msgspec.structs.replace(s, route=Route.LOAD) for s in loaded[-1:]]
    only = msgspec.structs.replace(request, offset_ms=0, abort=None)
    return Workload((*cold, Burst(requests=(only,)))), 0


def unique_names(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Each load of an adapter under a name of its own, which whoever asks after it uses."""
    if any(step.route is Route.SWITCH for step in changes(workload)):
        return workload, failing
    return named_apart(workload, failing)


def chosen_by_requests(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """What was switched on for everybody is chosen by each request instead."""
    if all(step.route is not Route.SWITCH for step in changes(workload)):
        return workload, failing
    return named_apart(workload, failing)


def named_apart(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Each adapter loaded under a name of its own, and asked for by that."""
    current: dict[str, str] = {}
    loads = 0
    steps: list[Step] = []
    for step in workload.steps:
        match step:
            case SetAdapter(name=name):
                loads += 1
                current[name] = name if name not in current else f"{name} {loads}"
                steps.append(msgspec.structs.replace(step, name=current[name], route=Route.LOAD))
            case Unload(name=name):
                steps.append(Unload(current.get(name, name)))
            case Burst() if step.meanwhile is None:
                steps.append(msgspec.structs.replace(step, requests=tuple(to(r, current) for r in step.requests)))
            case Burst():
                return workload, failing  # who is asked during a change cannot be told by name
            case _:
                steps.append(step)
    return Workload(tuple(steps)), failing


def to(request: Request, names: dict[str, str]) -> Request:
    """A request under the name that its adapter goes by."""
    if request.adapter is None:
        return request
    return msgspec.structs.replace(request, adapter=names.get(request.adapter, request.adapter))


def other_paths(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Each content in a folder of its own: no files are changed under a path."""

    def change(step: SetAdapter) -> SetAdapter:
        holders = {s.content for s in changes(workload) if s.path == step.path}
        return step if len(holders) == 1 else msgspec.structs.replace(step, path=f"{step.path} of {step.content}")

    return with_changes(workload, change), failing


def contents_swapped(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """The same story with its two adapters in each other's place."""
    contents = list(dict.fromkeys(step.content for step in changes(workload)))
    if len(contents) != 2:
        return workload, failing
    other = dict(zip(contents, reversed(contents), strict=True))
    return with_changes(workload, lambda s: msgspec.structs.replace(s, content=other[s.content])), failing


def other_route(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Reloads in place become unload and load, and the other way about; while requests run there is only the one."""
    other = {Route.IN_PLACE: Route.UNLOAD_LOAD, Route.UNLOAD_LOAD: Route.IN_PLACE}
    if any(isinstance(step, Burst) and step.meanwhile is not None for step in workload.steps):
        return workload, failing
    return with_changes(workload, lambda s: msgspec.structs.replace(s, route=other.get(s.route, s.route))), failing


def one_by_one(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Each request alone; a change in the midst of a burst comes behind its first request."""
    return taken_apart(workload), failing


def many_at_once(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Each request as a crowd of its like, where all come one at a time; the failing one is the first of its crowd."""
    if any(isinstance(step, Burst) and (len(step.requests) > 1 or step.meanwhile) for step in workload.steps):
        return workload, failing
    new = {number: number * CROWD for number, _, _ in workload.requests()}
    steps = [
        msgspec.structs.replace(step, requests=(renumbered(step.requests[0], new),) * CROWD)
        if isinstance(step, Burst)
        else step
        for step in workload.steps
    ]
    return Workload(tuple(steps)), None if failing is None else new[failing]


def nobody_hangs_up(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Every client waits for its answer."""
    return all_changed(workload, lambda r: msgspec.structs.replace(r, abort=None)), failing


def no_resets(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Without cache resets, between requests or in their midst."""
    return leaving_out(workload, Reset), failing


def base_model(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Everybody asks the base model, and no adapter is loaded."""
    bare = leaving_out(workload, SetAdapter, Unload)
    return all_changed(bare, lambda r: msgspec.structs.replace(r, adapter=None)), failing


def no_salts(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Nobody gives a salt."""
    return all_changed(workload, lambda r: msgspec.structs.replace(r, salt=None)), failing


def salts_far_apart(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Each salt replaced by a word that has nothing in common with the others."""
    words = dict.fromkeys(r.salt for _, _, r in workload.requests() if r.salt is not None)
    plain = {salt: f"{chr(ord('a') + i % 26) * 12}{i}" for i, salt in enumerate(words)}

    def change(request: Request) -> Request:
        return request if request.salt is None else msgspec.structs.replace(request, salt=plain[request.salt])

    return (all_changed(workload, change) if len(plain) > 1 else workload), failing


def prompts_unlike(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Where a segment differs from another in a token or two, one that differs in all."""

    def unlike(segment: Segment) -> Segment:
        if segment.changed is None and segment.swapped is None:
            return segment
        return Segment(f"{segment.name} unlike {segment.changed} {segment.swapped}", segment.length)

    def change(request: Request) -> Request:
        segments = tuple(map(unlike, request.prompt.segments))
        return msgspec.structs.replace(request, prompt=msgspec.structs.replace(request.prompt, segments=segments))

    return all_changed(workload, change), failing


def plain_requests(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """One answer each, without scores, stop strings or patterns."""
    return all_changed(workload, lambda r: msgspec.structs.replace(r, surface=PLAIN)), failing


def equal_priorities(workload: Workload, failing: int | None) -> tuple[Workload, int | None]:
    """Nobody is more urgent than another."""
    return all_changed(workload, lambda r: msgspec.structs.replace(r, priority=0)), failing


OWN_KEY, BEGINNING = "a hit under its own salt", "a beginning shared with what came before"
BEFORE = "what came before it or beside it"
NAME, PATH, ORDER = "the adapter's name used again", "the adapter's path used again", "this order of the adapters"
ROUTE, SWITCHED = "this route of the reload", "an adapter switched on for every request"
TOGETHER, HANG_UP, RESET = "requests side by side", "a client that hangs up", "a cache reset"
APART = "requests one at a time"
ADAPTERS, SALTS, NEAR_SALTS = "adapters", "salts", "salts that are nearly equal"
NEAR_PROMPTS, SURFACE = "prompts that differ in a token or two", "more than plain requests"
PRIORITIES = "priorities"
CHANGES: tuple[tuple[str, str, Change], ...] = (
    ("a fresh salt on the failing request", OWN_KEY, fresh_salt),
    ("another first block in the failing request", BEGINNING, first_block_changed),
    ("the failing request alone", BEFORE, alone),
    ("a name of its own for each adapter load", NAME, unique_names),
    ("adapters chosen by each request", SWITCHED, chosen_by_requests),
    ("a path of its own for each adapter", PATH, other_paths),
    ("the two adapters in each other's place", ORDER, contents_swapped),
    ("the other route of a reload", ROUTE, other_route),
    ("one request at a time", TOGETHER, one_by_one),
    (f"{CROWD} of each request at once", APART, many_at_once),
    ("nobody hangs up", HANG_UP, nobody_hangs_up),
    ("no cache reset", RESET, no_resets),
    ("the base model only", ADAPTERS, base_model),
    ("no salts", SALTS, no_salts),
    ("salts that have nothing in common", NEAR_SALTS, salts_far_apart),
    ("prompts that have no token in common where they differ", NEAR_PROMPTS, prompts_unlike),
    ("plain requests", SURFACE, plain_requests),
    ("equal priorities", PRIORITIES, equal_priorities),
)

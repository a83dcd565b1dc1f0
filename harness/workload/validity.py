"""Whether a workload can be run. A reduction or an edited case must pass this check."""

from __future__ import annotations

from coldproof.harness.workload.steps import (
    Burst,
    Change,
    Idle,
    Pause,
    Request,
    Restart,
    RestoreState,
    Resume,
    Route,
    SetAdapter,
    Sleep,
    Step,
    Unload,
    Wake,
    Workload,
    resets_of,
    save_of,
)


def is_valid(workload: Workload) -> bool:
    """Return whether names are loaded and states saved before use, requests continue earlier steps, sizes fit.

    A reset names each scope once.
    """
    return (
        names_are_loaded(workload)
        and is_awake_for_bursts(workload)
        and all(save_of(workload, n) is not None for n, s in enumerate(workload.steps) if isinstance(s, RestoreState))
        and all(step.ms >= 0 for step in workload.steps if isinstance(step, Idle))
        and all(len(set(reset.scope)) == len(reset.scope) for reset in resets_of(workload))
        and any(workload.requests())
        and all(
            is_valid_request(request, {n: earlier.chat for n, s, earlier in workload.requests() if s < step})
            for _, step, request in workload.requests()
        )
    )


def is_awake_for_bursts(workload: Workload) -> bool:
    """Return whether each pause is resumed and each sleep ended, before the next burst or within the same one, and
    nothing else is. Otherwise requests would wait forever.
    """
    stopped: Pause | Sleep | None = None
    for step in workload.steps:
        if isinstance(step, Burst) and stopped is not None:
            return False
        for change in changes_of(step):
            match change:
                case Pause() | Sleep():
                    if stopped is not None:
                        return False
                    stopped = change
                case Resume() | Wake():
                    if not isinstance(stopped, Pause if isinstance(change, Resume) else Sleep):
                        return False
                    stopped = None
        if isinstance(step, Burst) and stopped is not None:
            return False
    return stopped is None


def changes_of(step: Step) -> tuple[Step | Change, ...]:
    """Return the changes during a burst; of another step, the step itself."""
    if not isinstance(step, Burst):
        return (step,)
    return step.meanwhile.changes if step.meanwhile is not None else ()


def is_valid_request(request: Request, earlier: dict[int, bool]) -> bool:
    """Return whether its lengths are positive, its edits inside their segments, its earlier request exists, and a chat
    has a message. `earlier` maps a request number to whether it was a chat; a chat can only continue a chat, the whole
    of it.
    """
    segments = request.prompt.segments
    return (
        request.max_tokens > 0
        and request.offset_ms >= 0
        and all(s.length > 0 and (s.changed is None or 0 <= s.changed < s.length) for s in segments)
        and all(s.swapped is None or 0 <= s.swapped < s.length - 1 for s in segments)
        and request.surface.answers > 0
        and (bool(segments) or not request.chat)
        and (request.prompt.continues is None or earlier.get(request.prompt.continues) is request.chat)
        and (not request.prompt.cuts_history or is_valid_cut(request))
    )


def is_valid_cut(request: Request) -> bool:
    """Return whether a part of an earlier request can be sent: of token ids, not of a chat, and not an empty part."""
    prompt = request.prompt
    cut = prompt.start >= 0 and (prompt.end is None or prompt.start < prompt.end)
    return cut and prompt.continues is not None and not request.chat


def names_are_loaded(workload: Workload) -> bool:
    """Return whether every name is loaded when it is used, changed or unloaded, and not when a plain load loads it,
    which engines refuse.
    """
    loaded: set[str] = set()
    for step in workload.steps:
        match step:
            case SetAdapter(name=name, route=Route.LOAD | Route.SWITCH as route):
                if route is Route.LOAD and name in loaded:
                    return False
                loaded.add(name)
            case SetAdapter(name=name) | Unload(name=name):
                if name not in loaded:
                    return False
                if isinstance(step, Unload):
                    loaded.remove(name)
            case Restart():
                loaded.clear()
            case Burst(requests=requests, meanwhile=meanwhile):
                used = {r.adapter for r in requests if r.adapter is not None}
                changed = {c.name for c in meanwhile.changes if isinstance(c, SetAdapter)} if meanwhile else set()
                unknown = not changed <= loaded
                if not requests or not used <= loaded or unknown:
                    return False
    return True

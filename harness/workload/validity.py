"""Whether a workload can be run. A reduction or an edited case must pass this check."""

from __future__ import annotations

import msgspec

from coldproof.adapters.protocol.doors import Door
from coldproof.adapters.protocol.requests import PLAIN
from coldproof.adapters.protocol.weights import SleepPart
from coldproof.harness.workload.steps import (
    Burst,
    Change,
    CloseSession,
    Idle,
    Pause,
    Request,
    Restart,
    RestoreState,
    Resume,
    Route,
    Rows,
    Segment,
    SetAdapter,
    Sleep,
    Step,
    Unload,
    UpdateWeights,
    Wake,
    Workload,
    resets_of,
    save_of,
)


def is_valid(workload: Workload) -> bool:
    """Return whether names are loaded and states saved before use, requests continue earlier steps, sizes fit.

    A reset names each scope once, and resets something.
    """
    return (
        names_are_loaded(workload)
        and is_awake_for_bursts(workload)
        and sessions_continue(workload)
        and all(save_of(workload, n) is not None for n, s in enumerate(workload.steps) if isinstance(s, RestoreState))
        and all(step.ms >= 0 for step in workload.steps if isinstance(step, Idle))
        and all(len(set(reset.scope)) == len(reset.scope) for reset in resets_of(workload))
        and all(reset.prefix or reset.scope for reset in resets_of(workload))
        and any(workload.requests())
        and all(
            is_valid_request(request, {n: earlier.chat for n, s, earlier in workload.requests() if s < step})
            for _, step, request in workload.requests()
        )
    )


class Activity(msgspec.Struct, frozen=True):
    """What an engine does at a moment. `by`: what stopped it; None while it serves. `asleep`: what it cannot use.

    `lacks_weights`: they were discarded and not loaded again, so that no answer would mean anything.
    """

    by: Pause | Sleep | None = None
    asleep: frozenset[SleepPart] = frozenset()
    lacks_weights: bool = False

    @property
    def serves(self) -> bool:
        """Return whether a request would be answered by a model with weights."""
        return self.by is None and not self.lacks_weights


def is_awake_for_bursts(workload: Workload) -> bool:
    """Return whether each pause is resumed and each sleep ended, before the next burst or within the same one, and
    nothing else is. Otherwise requests would wait forever. After a sleep at level 2, the weights must be loaded first.
    """
    now = Activity()
    for step in workload.steps:
        if isinstance(step, Burst) and not now.serves:
            return False
        for change in changes_of(step):
            after = after_change(now, change)
            if after is None:
                return False
            now = after
        if isinstance(step, Burst) and not now.serves:
            return False
    return now.serves


def after_change(now: Activity, change: Step | Change) -> Activity | None:
    """Return what the engine does after a change; None if the change is impossible at this moment."""
    match change:
        case Pause():
            return Activity(change) if now.serves else None
        case Sleep(level=level):
            asleep = frozenset({SleepPart.WEIGHTS, SleepPart.KV} if level else ())
            return Activity(change, asleep, level > 1) if now.serves else None
        case Resume():
            return Activity() if isinstance(now.by, Pause) else None
        case Wake(part=part):
            left = now.asleep - {part} if part is not SleepPart.ALL else frozenset()
            possible = isinstance(now.by, Sleep) and (part is SleepPart.ALL or part in now.asleep)
            return Activity(now.by if left else None, left, now.lacks_weights) if possible else None
        case UpdateWeights():
            loads = SleepPart.WEIGHTS not in now.asleep
            return msgspec.structs.replace(now, lacks_weights=False) if loads else None
    return now


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
        (request.max_tokens > 0 if request.surface.pooled is None else is_pooled(request))
        and request.offset_ms >= 0
        and (not isinstance(request.rank, int) or request.rank >= 0)
        and (not request.hand_over_ms or request.hand_over_ms > 0)
        and all(s.length > 0 and (s.changed is None or 0 <= s.changed < s.length) for s in segments)
        and all(s.swapped is None or 0 <= s.swapped < s.length - 1 for s in segments)
        and all(not s.rows or rows_fit(s.rows, s.length) for s in segments)
        and all(not s.image or is_whole_image(s) for s in segments)
        and len({s.image.arguments for s in segments if s.image}) <= 1
        and not (request.chat and any(s.rows or s.image for s in segments))
        and request.surface.answers > 0
        and (bool(segments) or not request.chat)
        and (request.prompt.continues is None or earlier.get(request.prompt.continues) is request.chat)
        and (not request.prompt.cuts_history or is_valid_cut(request))
        and (not request.door or fits_door(request, request.door))
        and (not request.streaming or bool(request.session))
    )


def is_pooled(request: Request) -> bool:
    """Return whether a request asks for vectors and for nothing that only an answer in tokens has."""
    plain = request.surface == request.surface.plain() and request.max_tokens == 0
    return plain and not request.chat and request.abort is None and not request.door


def sessions_continue(workload: Workload) -> bool:
    """Return whether each turn of a session continues the one before it without the last token, with the same adapter
    and salt, and each session is open until it is closed or a turn is aborted, once. A turn of a streaming session
    keeps the last token, and may have any adapter. While a session is open, only requests are sent and sessions closed:
    nothing else can be said of an engine that holds blocks and is idle.
    """
    latest: dict[str, int] = {}
    of = {number: request for number, _, request in workload.requests()}
    ended: set[str] = set()
    first = 0
    for step in workload.steps:
        if isinstance(step, CloseSession):
            if step.name not in latest:
                return False
            ended.add(step.name)
        elif not isinstance(step, Burst) and latest.keys() - ended:
            return False
        if isinstance(step, Burst):
            turns = {n: r for n, r in enumerate(step.requests, first) if r.session}
            names = {turn.session for turn in turns.values()}
            held = turns or latest.keys() - ended
            if len(names) < len(turns) or names & ended or (held and step.meanwhile is not None):
                return False
            if not all(is_turn(turn, latest.get(turn.session or ""), of) for turn in turns.values()):
                return False
            latest |= {turn.session or "": number for number, turn in turns.items()}
            ended |= {turn.session or "" for turn in turns.values() if turn.abort is not None}
            first += len(step.requests)
    return True


def is_turn(turn: Request, before: int | None, of: dict[int, Request]) -> bool:
    """Return whether a request can be the next turn of a session. `before`: its latest turn; None opens it."""
    if turn.chat or turn.door or turn.surface not in (PLAIN, PLAIN.with_scores()) or turn.rank:
        return False
    prompt, streaming = turn.prompt, bool(turn.streaming)
    if before is None:
        return not prompt.cuts_history
    known = of[before]
    same = (bool(known.streaming), known.salt, known.priority) == (streaming, turn.salt, turn.priority)
    place = (prompt.continues, prompt.start, prompt.end) == (before, 0, None if streaming else -1)
    return same and place and bool(prompt.segments) and (streaming or known.adapter == turn.adapter)


def fits_door(request: Request, door: Door) -> bool:
    """Return whether a request can be sent at a door: messages only as a chat, and no rows. The doors beside
    completions and chats are read as a whole, and without response options.
    """
    usual = door in (Door.COMPLETIONS, Door.CHAT)
    rows = any(segment.rows for segment in request.prompt.segments)
    return (
        (request.chat or door.takes_ids) and not rows and (usual or (request.abort, request.surface) == (None, PLAIN))
    )


def rows_fit(rows: Rows, length: int) -> bool:
    """Return whether the spans of rows are in order, apart and inside their segment, and the edited row is a row."""
    edges = [0, *(edge for span in rows.spans for edge in span), length]
    apart = all(first < end for first, end in rows.spans) and edges == sorted(edges)
    return apart and (rows.nudged is None or rows.covers(rows.nudged))


def is_whole_image(segment: Segment) -> bool:
    """Return whether a segment is an image and nothing else. Its length is checked by the engine."""
    return not segment.rows and segment.changed is None and segment.swapped is None


def is_valid_cut(request: Request) -> bool:
    """Return whether a part of an earlier request can be sent: of token ids, not of a chat, and not an empty part."""
    prompt = request.prompt
    cut = prompt.start >= 0 and (prompt.end is None or prompt.start < prompt.end or prompt.end == -1)
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

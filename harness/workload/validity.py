"""Whether a workload can be run. A reduction or an edited case must pass this check."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from coldproof.adapters.protocol.endpoints import Endpoint
from coldproof.adapters.protocol.requests import PLAIN
from coldproof.harness.workload.kinds.kind import State
from coldproof.harness.workload.steps import Action, Burst, Request, Rows, Segment, Workload


def is_valid(workload: Workload) -> bool:
    """Return whether each step is possible after those before it, some request is sent, and the engine serves at the
    end.
    """
    asked = [request for _, _, request in workload.requests()]
    now, first = State(), 0
    for step in workload.steps:
        if isinstance(step, Burst):
            after = after_burst(now, step, asked[:first])
            first += len(step.requests)
        else:
            after = after_action(now, step)
        if after is None:
            return False
        now = after
    return now.activity.serves and bool(asked)


def after_action(now: State, step: Action) -> State | None:
    """Return the state after a step that is not a burst; None if it is impossible, as most are in an open session."""
    return step.after(now) if step.spares_sessions or not now.open_sessions else None


def after_burst(now: State, burst: Burst, earlier: Sequence[Request]) -> State | None:
    """Return the state after a burst; None if a request or a change during it is impossible.

    An engine that is stopped during a burst or before it serves again within it. `earlier`: all requests before it.
    """
    chats = {number: request.chat for number, request in enumerate(earlier)}
    used = {request.adapter for request in burst.requests if request.adapter is not None}
    if not burst.requests or not used <= now.loaded or not (now.activity.serves or changes_at_once(burst)):
        return None
    if not all(is_valid_request(request, chats) for request in burst.requests):
        return None
    after = after_turns(now, burst, earlier)
    for change in burst.changes:
        after = None if after is None else change.during(after)
    return after if after is not None and after.activity.serves else None


def changes_at_once(burst: Burst) -> bool:
    """Return whether the changes during a burst wait for no token: requests may be sent to a paused engine then."""
    return burst.meanwhile is not None and burst.meanwhile.after_tokens == 0


def is_valid_request(request: Request, earlier: dict[int, bool]) -> bool:
    """Return whether its lengths are positive, its edits inside their segments, its earlier request exists, and a chat
    has a message. `earlier` maps a request number to whether it was a chat; a chat can only continue a chat, the whole
    of it.
    """
    segments = request.prompt.segments
    return (
        (request.max_tokens > 0 if request.options.pooled is None else is_pooled(request))
        and request.offset_ms >= 0
        and (request.rank is None or request.rank >= 0)
        and request.hand_over_ms >= 0
        and all(s.length > 0 and (s.changed is None or 0 <= s.changed < s.length) for s in segments)
        and all(s.swapped is None or 0 <= s.swapped < s.length - 1 for s in segments)
        and all(not s.rows or rows_fit(s.rows, s.length) for s in segments)
        and all(not s.image or is_whole_image(s) for s in segments)
        and len({s.image.arguments for s in segments if s.image}) <= 1
        and not (request.chat and any(s.rows or s.image for s in segments))
        and request.options.answers > 0
        and (bool(segments) or not request.chat)
        and (request.prompt.continues is None or earlier.get(request.prompt.continues) is request.chat)
        and (not request.prompt.cuts_history or is_valid_cut(request))
        and (not request.endpoint or fits_endpoint(request, request.endpoint))
        and (not request.streaming or bool(request.session))
    )


def is_pooled(request: Request) -> bool:
    """Return whether a request asks for vectors and for nothing that only an answer in tokens has."""
    plain = request.options == request.options.plain() and request.max_tokens == 0
    return plain and not request.chat and request.abort is None and not request.endpoint


def after_turns(now: State, burst: Burst, earlier: Sequence[Request]) -> State | None:
    """Return the state after the turns of sessions in a burst; None if one is impossible.

    Each turn of a session continues the one before it without the last token, with the same adapter and salt, and each
    session is open until it is closed or a turn is aborted, once. A turn of a streaming session keeps the last token,
    and may have any adapter. While a session is open, only requests are sent and sessions closed.
    """
    turns = {number: request for number, request in enumerate(burst.requests, len(earlier)) if request.session}
    names = {turn.session for turn in turns.values()}
    held = turns or now.open_sessions
    if len(names) < len(turns) or names & now.ended or (held and burst.meanwhile is not None):
        return None
    if not all(is_turn(turn, now.turns.get(turn.session or ""), earlier) for turn in turns.values()):
        return None
    latest = {turn.session or "": number for number, turn in turns.items()}
    aborted = {turn.session or "" for turn in turns.values() if turn.abort is not None}
    return msgspec.structs.replace(now, turns={**now.turns, **latest}, ended=now.ended | aborted)


def is_turn(turn: Request, before: int | None, earlier: Sequence[Request]) -> bool:
    """Return whether a request can be the next turn of a session. `before`: its latest turn; None opens it."""
    if turn.chat or turn.endpoint or turn.options not in (PLAIN, PLAIN.with_scores()) or turn.rank:
        return False
    prompt, streaming = turn.prompt, turn.streaming
    if before is None:
        return not prompt.cuts_history
    known = earlier[before]
    same = (known.streaming, known.salt, known.priority) == (streaming, turn.salt, turn.priority)
    place = (prompt.continues, prompt.start, prompt.end) == (before, 0, None if streaming else -1)
    return same and place and bool(prompt.segments) and (streaming or known.adapter == turn.adapter)


def fits_endpoint(request: Request, endpoint: Endpoint) -> bool:
    """Return whether a request can be sent at an endpoint: messages only as a chat, and no rows. The endpoints beside
    completions and chats are read as a whole, and without response options.
    """
    usual = endpoint in (Endpoint.COMPLETIONS, Endpoint.CHAT)
    rows = any(segment.rows for segment in request.prompt.segments)
    return (
        (request.chat or endpoint.takes_ids)
        and not rows
        and (usual or (request.abort, request.options) == (None, PLAIN))
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

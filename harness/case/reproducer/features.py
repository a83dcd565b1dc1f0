"""Which features of a script a case uses: the flags of `adapters/spec/script/given.py`."""

from __future__ import annotations

import re

from coldproof.adapters.protocol.doors import IMPOSSIBLE_PRIORITY
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.harness.schema.case import Case, RequestRow
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import (
    Burst,
    Pause,
    Request,
    Reset,
    Restart,
    Resume,
    Route,
    Segment,
    SetAdapter,
    Sleep,
    Wake,
    Workload,
    adapter_changes,
    all_changes,
    weight_updates,
)

# Classes that mean a wrong count if no token is wrong. All other classes concern the answer.
CACHED_COUNT_FAILURES = (FailureClass.ACCOUNTING, FailureClass.LOST_REUSE, FailureClass.STALE_STATE)

ROOM = re.compile(r"room for (\d+) at a time; .* at most \d+ ran")
# Checks of a case about KV events, by words of its signature and its sentence.
OF_EVENTS = {
    "only adapters' hashes": "lacks_the_path(story)",
    "announced late": "announced_no_reset(story)",
    "stores no block": "stores_no_block(story)",
}
FEWER_DRAFTS = "fewer drafts accepted"  # the circumstance of a case about drafts
DRAFTING = "--speculative-config"  # in the command of a server
ENDED = "process has ended"  # in the error of a request whose engine did


def features(case: Case, workload: Workload, *, generated: bool) -> dict[str, bool]:
    """Return each flag of a case. `generated`: the script makes its model."""
    requests = [request for _, _, request in workload.requests()]
    bursts = [step for step in workload.steps if isinstance(step, Burst)]
    midway = [change for burst in bursts if burst.meanwhile for change in burst.meanwhile.changes]
    restarts = [step.before for step in workload.steps if isinstance(step, Restart)]
    segments = [segment for request in requests for segment in request.prompt.segments]
    options, command = [request.surface for request in requests], case.engine_config.get("command", "")
    noisy, row = case.noise_nats is not None, failing_row(case)
    hangs = case.failure_class is FailureClass.HANG
    # With drafts, a turn of a session that is wrongly taken for computed can also end the engine, as nothing is left.
    crashes = may_have_ended(case, row) or (any(one.session for one in requests) and DRAFTING in command)
    ignored = was_ignored(case, workload)
    failed = hangs or crashes or (row is not None and bool(row.error))
    return {
        "GENERATED": generated,
        "TIERED": "--kv-transfer-config" in command,
        "LMCACHE": "LMCache" in command,
        "ADAPTED": bool(adapter_changes(workload)),
        "OWN_ADAPTERS": any("path" in recipe for recipe in case.recipes.values()),
        "TOGETHER": any(len(burst.requests) > 1 or burst.meanwhile for burst in bursts),
        "MEANWHILE": bool(midway),
        "MIDWAY_ADAPTERS": any(isinstance(change, SetAdapter) for change in midway),
        "LATE": any(request.offset_ms for request in requests),
        "ABORTS": any(request.abort for request in requests),
        "CONTINUES": any(request.prompt.continues is not None for request in requests),
        "CUTS": any(request.prompt.cuts_history for request in requests),
        "CHATS": any(request.chat for request in requests),
        "DOORS": any(request.door for request in requests),
        "SALTS": any(request.salt is not None for request in requests),
        "HEADERS": any(request.rank is not None or request.hand_over_ms for request in requests),
        "EXTRA": noisy or any(request.surface != request.surface.plain() or request.priority for request in requests),
        "WHOLE": noisy or any(surface.prompt_logprobs for surface in options),
        "SEVERAL": any(surface.answers > 1 for surface in options),
        "SCORES": noisy or any(surface.prompt_logprobs or surface.logprobs for surface in options),
        "ENDS": noisy or any(surface.stop or surface.pattern for surface in options),
        "POOLED": any(surface.pooled for surface in options),
        "SESSIONS": any(request.session for request in requests),
        "SWITCHES": any(isinstance(one, SetAdapter) and one.route is Route.SWITCH for one in all_changes(workload)),
        "CONTENT": any(has_content(segment) for segment in segments),
        "ROWS": any(segment.rows for segment in segments),
        "IMAGES": any(segment.image for segment in segments),
        "SCOPES": any(isinstance(one, Reset) and (one.scope or not one.prefix) for one in all_changes(workload)),
        "EVENTS": of_events(case) is not None,
        "ORDERED": case.failing_request is None and ROOM.search(case.sentence) is not None,
        "COUNTED": most_counted(case) is not None,
        "DRAFTS": case.signature.endswith(FEWER_DRAFTS),
        "HANGS": hangs,
        "CRASHES": crashes,
        "DIES": row is not None and ENDED in row.error,
        "FAILURE": failed,
        "FAILS": failed or ignored or any(one.error for one in case.requests) or any(one.abort for one in requests),
        "EDITS": any(not (one.changed is None is one.swapped) for one in segments),
        "PAUSES": any(isinstance(change, Pause | Resume | Sleep | Wake) for change in all_changes(workload)),
        "FOUR_BITS": "-q4.gguf" in command,
        "UPDATES": bool(weight_updates(workload)),
        "RESTARTS": bool(restarts),
        "REMADE": EngineChange.WEIGHTS in restarts and generated,
        "SIDES": any(burst.meanwhile is not None and burst.meanwhile.first for burst in bursts),
        "NOISY": noisy,
        "BOUNDED": counts_of(case) is not None,
    }


def never_true(case: Case, workload: Workload) -> dict[str, bool]:
    """Return conditions in our modules that never hold in a case, all as False: what they lead to is left out."""
    segments = [segment for _, _, request in workload.requests() for segment in request.prompt.segments]
    found = {
        "segment.rows": any(segment.rows for segment in segments),
        "segment.image": any(segment.image for segment in segments),
        "segment.swapped is not None": any(segment.swapped is not None for segment in segments),
        "readable": any(segment.image for segment in segments),
        "name == 'lora_adapters'": bool(case.recipes),
    }
    return {condition: holds for condition, holds in found.items() if not holds}


def has_content(segment: Segment) -> bool:
    """Return whether a segment has embedding rows, or is an image."""
    return bool(segment.rows or segment.image)


def failing_row(case: Case) -> RequestRow | None:
    """Return the row of the failing request, if the failure is in one."""
    return next((row for row in case.requests if row.request == case.failing_request), None)


def may_have_ended(case: Case, row: RequestRow | None) -> bool:
    """Return whether the engine may have ended in a case. A crash that also happens without a cache is of the class
    NOT_THE_CACHE; its failing request (`row`) has an error in place of an answer.
    """
    failed = row is not None and bool(row.error)
    return case.failure_class is FailureClass.CRASH or (case.failure_class is FailureClass.NOT_THE_CACHE and failed)


def was_ignored(case: Case, workload: Workload) -> bool:
    """Return whether the case is about a field that the failing request's route ignores and another one refuses."""
    sent: dict[int, Request] = {number: request for number, _, request in workload.requests()}
    failing = sent.get(-1 if case.failing_request is None else case.failing_request)
    return case.failure_class is FailureClass.API and failing is not None and failing.priority == IMPOSSIBLE_PRIORITY


def most_counted(case: Case) -> int | None:
    """Return how many tokens the engine may have counted as hits, in a case about its counter: no request reports a
    count of its own. None for other cases.
    """
    reported = any(row.cached_tokens is not None for row in case.requests)
    about_counter = case.failing_request is None and case.failure_class is FailureClass.ACCOUNTING
    if not about_counter or reported or case.block_size is None:
        return None
    return sum((row.cached_at_most or 0) // case.block_size * case.block_size for row in case.requests)


def check(case: Case, workload: Workload, *, lacks: tuple[str, ...]) -> str:
    """Return the call that says whether a script's scenario has shown the bug.

    `lacks`: the features that the engine's client has not.
    """
    number, bounds = case.failing_request, counts_of(case)
    counted = None if "COUNTED" in lacks else most_counted(case)
    if was_ignored(case, workload):
        return f"ignores_what_others_refuse(story, {number})"
    if case.signature.endswith(FEWER_DRAFTS):
        return f"has_fewer_drafts(story, {number})"
    if counted is not None:
        return f"counted_too_many(story, {counted})"
    if number is None:
        return check_of_all(case, lacks=lacks)
    if bounds is not None:
        return f"is_out_of_bounds(story, {number}, {bounds[0]}, {bounds[1]})"
    return f"is_wrong(story, {number})"


def counts_of(case: Case) -> tuple[int, int] | None:
    """Return how many tokens of the failing request may have been cached, if that is what is wrong with it.

    Lost reuse is too few cached tokens. More than allowed is not that bug, and some engines count an upper bound.
    """
    row = failing_row(case)
    of_count = case.first_difference is None and case.failure_class in CACHED_COUNT_FAILURES
    if row is None or row.cached_tokens is None or not of_count:
        return None
    most = row.prompt_tokens if case.failure_class is FailureClass.LOST_REUSE else row.cached_at_most
    return None if most is None else (row.cached_at_least or 0, most)


def check_of_all(case: Case, *, lacks: tuple[str, ...]) -> str:
    """Return the check of a case whose failure is in no single request."""
    events, room = of_events(case), ROOM.search(case.sentence)
    if events is not None and "EVENTS" not in lacks:
        return events
    return "nothing_to_compare(story)" if room is None else f"ran_too_few(story, {room[1]})"


def of_events(case: Case) -> str | None:
    """Return the check of a case about KV events; None for other cases."""
    if case.failing_request is not None:
        return None
    return next((call for words, call in OF_EVENTS.items() if words in f"{case.signature} {case.sentence}"), None)

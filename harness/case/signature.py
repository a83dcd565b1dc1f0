"""Computes the signature of a case, which known issues match: failure class and circumstances."""

from __future__ import annotations

from coldproof.adapters.protocol.doors import IMPOSSIBLE_PRIORITY
from coldproof.adapters.protocol.sides import ENGINES
from coldproof.harness.history.adapter_changes import same_path_reloads
from coldproof.harness.history.doors import usual_door
from coldproof.harness.history.drafts import cold_and_hit
from coldproof.harness.history.embedding_rows import differences, sends_rows
from coldproof.harness.history.images import has_images, sent_images
from coldproof.harness.history.provenance import wrong_read_position
from coldproof.harness.history.records import History
from coldproof.harness.judgement.checkers.block_hashes import computed
from coldproof.harness.judgement.checkers.kv_events import late_announcements
from coldproof.harness.judgement.request_sizes import outgrows
from coldproof.harness.workload.steps import Request, Restart, RestoreState, Route, SetAdapter, adapter_changes
from coldproof.reports.schema.verdict import FailureClass

FEWER_DRAFTS = "fewer drafts accepted"


def signature(history: History, failure_class: FailureClass, about: int | None = None) -> str:
    """Return the signature: failure class; routes of adapter changes; whether a path was reused; whether requests were
    running; other features; and whether a change overlapped the failing request, or where it read wrong KV.
    """
    changed = [change for change in adapter_changes(history.workload) if change.route is not Route.LOAD]
    routes = " and ".join(sorted({change.route.value for change in changed})) or "no reload"
    path = "same path" if same_path_reloads(history) else "other path"
    busy = any(
        step.meanwhile is not None and isinstance(step.meanwhile.change, SetAdapter) for step in history.workload.steps
    )
    moment = "under traffic" if busy else "between requests"
    more = "".join(f"; {feature}" for feature in features(history))
    if failure_class is FailureClass.API and only_adapters_hashes(history):
        more += "; only adapters' hashes"
    if failure_class is FailureClass.ACCOUNTING and late_announcements(history):
        more += "; announced late"
    if failure_class is FailureClass.LOST_REUSE and lost_drafts(history, about):
        more += f"; {FEWER_DRAFTS}"
    more += "".join(f"; {one}" for one in (*differences_of_rows(history, about), *doors_of_failure(history, about)))
    if any(outcome.request == about and outcome.overlapped for outcome in history.outcomes):
        more += "; overlaps the change"
    elif failure_class is FailureClass.CORRUPT and wrong_read_position(history, about):
        more += f"; {wrong_read_position(history, about)}"
    if not changed:
        return f"{failure_class.value}; no reload{more}"
    return f"{failure_class.value}; {routes}; {path}; {moment}{more}"


def lost_drafts(history: History, about: int | None) -> bool:
    """Return whether fewer drafts were accepted for the failing request than without a hit."""
    pairs = (pair for pair in cold_and_hit(history) if pair.hit.request == about)
    return any(pair.hit_counts.accepted < pair.cold_counts.accepted for pair in pairs)


def differences_of_rows(history: History, about: int | None) -> list[str]:
    """Return in what the failing prompt differs from others with embedding rows that a key may confuse with it."""
    failing = [outcome for outcome in history.outcomes if outcome.request == about and outcome.hidden]
    return sorted(found for outcome in failing for found in differences(history, outcome))


def changes_within_a_session(asked: list[Request]) -> bool:
    """Return whether two turns of one session have different adapters."""
    turns = [(request.session, request.adapter) for request in asked if request.session]
    return len(set(turns)) > len({session for session, _ in turns})


def doors_of_failure(history: History, about: int | None) -> list[str]:
    """Return at which door the failing request was sent, and at which others were; nothing if no request names one."""
    asked = {number: request for number, _, request in history.workload.requests()}
    failing = asked.get(-1 if about is None else about)
    if failing is None or not any(request.door for request in asked.values()):
        return []
    away = [request for request in asked.values() if usual_door(request) is not usual_door(failing)]
    several = len({usual_door(request) for request in away}) > 1
    beside = ["several doors"] if several else [f"beside {door_and_identity(away)}"] if away else []
    return [*beside, f"at {door_and_identity([failing])}"]


def door_and_identity(requests: list[Request]) -> str:
    """Return the door of requests that have one door, and whether any has an adapter or a salt."""
    adapter = " with an adapter" if any(request.adapter for request in requests) else ""
    return f"{usual_door(requests[0]).value}{adapter}{' under a salt' if any(r.salt for r in requests) else ''}"


def only_adapters_hashes(history: History) -> bool:
    """Return whether published hashes differ from the computed ones, and only for blocks of adapters."""
    wrong = [one.block for one in computed(history) if not one.agrees]
    return bool(wrong) and all(block.lora_name is not None for block in wrong)


def features(history: History) -> list[str]:
    """Return other features of a history that may affect a cache."""
    asked = [request for _, _, request in history.workload.requests()]
    happened = {
        "preempted": bool(history.steps) and bool(history.steps[-1].after.preemptions),
        "reset": bool(history.resets),
        "new weights": bool(history.updates),
        "paused": bool(history.pauses),
        "context shift": any(outgrows(history, outcome) for outcome in history.outcomes),
        "restored": any(isinstance(step, RestoreState) for step in history.workload.steps),
        "aborted": any(request.abort for request in asked),
        "chat": any(request.chat for request in asked),
        "priorities": any(request.priority not in (0, IMPOSSIBLE_PRIORITY) for request in asked),
        "another adapter in a session": changes_within_a_session(asked),
        "ranks": any(isinstance(request.rank, int) for request in asked),
        "late hand-over": any(request.hand_over_ms for request in asked),
        "a side restarted": any(restart.side in ENGINES for restart in history.side_restarts),
        "the tier restarted": any(restart.side not in ENGINES for restart in history.side_restarts),
        "one side first": bool(history.half_changed),
        "impossible priority": any(request.priority == IMPOSSIBLE_PRIORITY for request in asked),
        "several answers": any(request.surface.answers > 1 for request in asked),
        "prompt logprobs": any(request.surface.prompt_logprobs for request in asked),
        "stop string": any(request.surface.stop for request in asked),
        "structured output": any(request.surface.pattern for request in asked),
        "embedding rows": any(map(sends_rows, history.outcomes)),
        "next turn": any(o.hidden and asked[o.request].prompt.continues is not None for o in history.outcomes),
        "images": any(map(has_images, history.outcomes)),
        "named by the client": any(sent.uuid for o in history.outcomes for _, _, sent in sent_images(o)),
        "in files": any(sent.encoding for o in history.outcomes for _, _, sent in sent_images(o)),
        "processor arguments": any(sent.arguments for o in history.outcomes for _, _, sent in sent_images(o)),
    }
    restarts = [step.before for step in history.workload.steps if isinstance(step, Restart)]
    return [*(name for name, true in happened.items() if true), *(f"restart: {before}" for before in restarts)]

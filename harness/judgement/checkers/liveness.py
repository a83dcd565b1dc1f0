"""Checks that every request is answered, that prompts that never fit are refused, and that the engine stays alive."""

from __future__ import annotations

import math

from coldproof.adapters.protocol.metrics import increase
from coldproof.harness.history.adapter_changes import change_of
from coldproof.harness.history.records import History, Outcome, has_sessions
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.oracle import comparable_outcomes
from coldproof.harness.judgement.request_sizes import AHEAD, blocks_held, may_be_refused, never_fits
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Route


@check(
    "liveness",
    order=10,
    fails=(
        "A request without an answer: no progress for as long as a hundred cold answers take, a crashed engine, an "
        "error or an empty answer. An adapter change that fails. An answer to a prompt that can never fit."
    ),
    lasting=True,
    without_cache=True,
)
def check_liveness(history: History) -> list[Finding]:
    """Return a finding for each hang, crash and unexpected refusal, of requests and of adapter changes."""
    lost = history.engine_lost
    waiting = wait_for_sessions(history)
    excused = ended_by_failed_loads(history) | waiting
    compared = {outcome.request for outcome in comparable_outcomes(history)}
    found = []
    for outcome in history.outcomes:
        if outcome.error is not None:
            refused = outcome.refused and (may_be_refused(history, outcome) or was_unloaded(history, outcome))
            lost_a_side = any(restart.overlaps(outcome) for restart in history.side_restarts)
            refused = refused or (lost_a_side and not outcome.silent)
            if not refused and outcome.request not in excused:
                failure_class = failure_class_of(silent=outcome.silent, lost=lost)
                found.append(finding(f"got no answer: {outcome.error}", failure_class, outcome))
        elif outcome.aborted is None and never_fits(history, outcome):
            too_long = f"was answered although its {len(outcome.prompt)} prompt tokens exceed the engine's limit"
            found.append(finding(f"{too_long}: the answer cannot be to the whole prompt.", about=outcome))
        elif outcome.options.pooled is not None:
            if not outcome.pooled and outcome.aborted is None:
                found.append(finding("ended without a vector.", about=outcome))
        elif not outcome.tokens and outcome.aborted is None:
            ended = f"ended without a single token (finish reason {outcome.finish_reason!r})."
            found.append(finding(ended, about=outcome))
    for outcome in history.outcomes:  # a comparison with the cold answer finds the too long answers of the others
        longest = max(len(tokens) for tokens in (outcome.tokens, *outcome.others))
        if outcome.request not in compared and longest > outcome.max_tokens:
            found.append(finding(f"allowed at most {outcome.max_tokens} tokens and got {longest}.", about=outcome))
    for record in history.steps:
        if record.error is not None:
            failure_class = failure_class_of(silent=record.silent, lost=lost)
            found.append(finding(f"Step {record.step} failed: {record.error}", failure_class))
    if lost is not None and not found and not waiting:
        found.append(finding(f"Engine lost: {lost}", failure_class_of(silent=history.stalled is not None, lost=lost)))
    return found


def finding(words: str, failure_class: FailureClass = FailureClass.API, about: Outcome | None = None) -> Finding:
    """Return a finding; with `about`, `words` is the rest of a sentence about that request."""
    if about is None:
        return Finding(checker="liveness", failure_class=failure_class, sentence=words)
    sentence = f"Request {about.request} {words}"
    return Finding(checker="liveness", failure_class=failure_class, sentence=sentence, request=about.request)


def was_unloaded(history: History, outcome: Outcome) -> bool:
    """Return whether the request's adapter was unloaded while the request was in flight. The engine may then refuse it.

    A reload in place never unloads an adapter.
    """
    change = change_of(history, outcome.step)
    return change is not None and change.route is Route.UNLOAD_LOAD and outcome.overlapped


def ended_by_failed_loads(history: History) -> set[int]:
    """Return the requests whose error a failed load explains, if the engine ends requests for which a load failed.

    In each step these are as many distinct prefixes as loads failed, each with all its requests, because they share
    the blocks to load.
    """
    if not history.shape.failed_load_ends_request or history.engine_lost is not None:
        return set()
    excused: set[int] = set()
    for record in history.steps:
        failed = int(increase(record.before.failed_loads, record.after.failed_loads) or 0)
        ended: dict[object, set[int]] = {}
        for outcome in history.outcomes:
            if outcome.step == record.step and outcome.error is not None and not outcome.refused:
                prefix = outcome.prompt[: history.shape.block_size]
                ended.setdefault((outcome.identities, prefix), set()).add(outcome.request)
        excused.update(*list(ended.values())[:failed])
    return excused


def wait_for_sessions(history: History) -> set[int]:
    """Return the requests that got no answer while so many sessions were open that one of them might not fit beside.

    An engine cannot take blocks or places from a session that waits for input, so its client may let others wait for
    ever (vLLM PR#49439). Each open session holds what its latest turn needs at most.
    """
    silent = [outcome for outcome in history.outcomes if outcome.silent]
    if not silent or not has_sessions(history):
        return set()
    step = silent[0].step
    ended = {one.ended_session for one in history.workload.steps[:step]}
    latest = {o.session: o for o in history.outcomes if o.session and o.step <= step and o.session not in ended}
    others = [o for o in history.outcomes if o.step == step and o not in latest.values()]
    held = sum(blocks_held(history, len(o.prompt) + o.max_tokens + AHEAD) for o in latest.values())
    most = max((blocks_held(history, len(o.prompt) + o.max_tokens + AHEAD) for o in others), default=0)
    places = len(latest) + bool(others) <= (history.shape.most_requests or math.inf)
    fits = places and held + most <= (history.shape.pool_blocks or math.inf)
    return set() if fits else {outcome.request for outcome in silent}


def failure_class_of(*, silent: bool, lost: str | None) -> FailureClass:
    """Return the failure class: HANG if the engine made no progress, CRASH if it terminated, else API."""
    if silent:
        return FailureClass.HANG
    return FailureClass.CRASH if lost is not None else FailureClass.API

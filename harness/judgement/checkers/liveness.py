"""Checks that every request is answered, that prompts that never fit are refused, and that the engine stays alive."""

from __future__ import annotations

from coldproof.adapters.protocol.metrics import increase
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.oracle import comparable_outcomes
from coldproof.harness.judgement.reference_cache import may_be_refused, never_fits
from coldproof.harness.workload.steps import Burst, Route, SetAdapter
from coldproof.reports.schema.verdict import FailureClass


def check_liveness(history: History) -> list[Finding]:
    """Return a finding for each hang, crash and unexpected refusal, of requests and of adapter changes."""
    found = []
    excused = ended_by_failed_loads(history)
    compared = {outcome.request for outcome in comparable_outcomes(history)}
    for outcome in history.outcomes:
        if outcome.error is not None:
            refused = outcome.refused and (may_be_refused(history, outcome) or was_unloaded(history, outcome))
            if refused or outcome.request in excused:
                continue
            kind = failure_class_of(silent=outcome.silent, lost=history.engine_lost)
            found.append(
                Finding(
                    checker="liveness",
                    failure_class=kind,
                    request=outcome.request,
                    sentence=f"Request {outcome.request} got no answer: {outcome.error}",
                )
            )
        elif outcome.aborted is None and never_fits(history, outcome):
            found.append(
                Finding(
                    checker="liveness",
                    failure_class=FailureClass.API,
                    request=outcome.request,
                    sentence=f"Request {outcome.request} was answered although its {len(outcome.prompt)} prompt tokens "
                    "exceed the engine's limit: the answer cannot be to the whole prompt.",
                )
            )
        elif not outcome.tokens and outcome.aborted is None:
            found.append(
                Finding(
                    checker="liveness",
                    failure_class=FailureClass.API,
                    request=outcome.request,
                    sentence=f"Request {outcome.request} ended without a single token "
                    f"(finish reason {outcome.finish_reason!r}).",
                )
            )
    found += [too_long_answer(o) for o in history.outcomes if o.request not in compared and has_too_many(o)]
    for record in history.steps:
        if record.error is not None:
            kind = failure_class_of(silent=record.silent, lost=history.engine_lost)
            found.append(
                Finding(checker="liveness", failure_class=kind, sentence=f"Step {record.step} failed: {record.error}")
            )
    if history.engine_lost is not None and not found:
        kind = failure_class_of(silent=history.stalled is not None, lost=history.engine_lost)
        found.append(Finding(checker="liveness", failure_class=kind, sentence=f"Engine lost: {history.engine_lost}"))
    return found


def was_unloaded(history: History, outcome: Outcome) -> bool:
    """Return whether the request's adapter was unloaded while the request was in flight. The engine may then refuse it.

    A reload in place never unloads an adapter.
    """
    step = history.workload.steps[outcome.step]
    change = step.meanwhile.change if isinstance(step, Burst) and step.meanwhile is not None else None
    unloads = isinstance(change, SetAdapter) and change.route is Route.UNLOAD_LOAD
    return unloads and outcome.overlapped


def has_too_many(outcome: Outcome) -> bool:
    """Return whether an answer has more tokens than requested."""
    return any(len(tokens) > outcome.max_tokens for tokens in (outcome.tokens, *outcome.others))


def too_long_answer(outcome: Outcome) -> Finding:
    """Return the finding about a too long answer of a request that has no cold answer to compare with."""
    longest = max(len(tokens) for tokens in (outcome.tokens, *outcome.others))
    return Finding(
        checker="liveness",
        failure_class=FailureClass.API,
        request=outcome.request,
        sentence=f"Request {outcome.request} allowed at most {outcome.max_tokens} tokens and got {longest}.",
    )


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


def failure_class_of(*, silent: bool, lost: str | None) -> FailureClass:
    """Return the failure class: HANG if the engine made no progress, CRASH if it terminated, else API."""
    if silent:
        return FailureClass.HANG
    return FailureClass.CRASH if lost is not None else FailureClass.API

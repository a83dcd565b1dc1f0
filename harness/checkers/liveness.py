"""Every request must end with an answer, one that can never fit with a refusal, and the engine must still be there."""

from __future__ import annotations

from adapters.base import grown
from harness.checkers.finding import Finding
from harness.history import History, Outcome
from harness.oracle.base import judged
from harness.reference_cache import may_be_refused, never_fits
from harness.workload import Burst, Route, SetAdapter
from reports.schema import FailureClass


def check_liveness(history: History) -> list[Finding]:
    """Hangs, crashes and refusals, for requests and for adapter changes alike."""
    found = []
    excused = ended_by_failed_loads(history)
    compared = {outcome.request for outcome in judged(history)}
    for outcome in history.outcomes:
        if outcome.error is not None:
            refused = outcome.refused and (may_be_refused(history, outcome) or was_unloaded(history, outcome))
            if refused or outcome.request in excused:
                continue
            kind = failure(silent=outcome.silent, lost=history.engine_lost)
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
                    "are more than this engine takes: of which prompt is that the answer?",
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
    found += [unasked_for(o) for o in history.outcomes if o.request not in compared and has_too_many(o)]
    for record in history.steps:
        if record.error is not None:
            kind = failure(silent=record.silent, lost=history.engine_lost)
            found.append(
                Finding(checker="liveness", failure_class=kind, sentence=f"Step {record.step} failed: {record.error}")
            )
    if history.engine_lost is not None and not found:
        kind = failure(silent=history.stalled is not None, lost=history.engine_lost)
        found.append(Finding(checker="liveness", failure_class=kind, sentence=f"Engine lost: {history.engine_lost}"))
    return found


def was_unloaded(history: History, outcome: Outcome) -> bool:
    """Whether the request's adapter was unloaded while it was on its way, so that nothing was behind its name for a
    moment: an engine may say so. Under a reload in place something always is."""
    step = history.workload.steps[outcome.step]
    change = step.meanwhile.change if isinstance(step, Burst) and step.meanwhile is not None else None
    unloads = isinstance(change, SetAdapter) and change.route is Route.UNLOAD_LOAD
    return unloads and outcome.overlapped


def has_too_many(outcome: Outcome) -> bool:
    """Whether an answer has more tokens than were asked for."""
    return any(len(tokens) > outcome.max_tokens for tokens in (outcome.tokens, *outcome.others))


def unasked_for(outcome: Outcome) -> Finding:
    """About an answer that has no cold one to show that it is too long."""
    longest = max(len(tokens) for tokens in (outcome.tokens, *outcome.others))
    return Finding(
        checker="liveness",
        failure_class=FailureClass.API,
        request=outcome.request,
        sentence=f"Request {outcome.request} asked for {outcome.max_tokens} tokens at most and got {longest}.",
    )


def ended_by_failed_loads(history: History) -> set[int]:
    """Requests whose error may be a failed load's, where that ends a request: in each step as many prefixes as loads
    failed, and of each prefix everybody, for they share the blocks that were to be loaded.
    """
    if not history.shape.failed_load_ends_request or history.engine_lost is not None:
        return set()
    excused: set[int] = set()
    for record in history.steps:
        failed = int(grown(record.before.failed_loads, record.after.failed_loads) or 0)
        ended: dict[object, set[int]] = {}
        for outcome in history.outcomes:
            if outcome.step == record.step and outcome.error is not None and not outcome.refused:
                prefix = outcome.prompt[: history.shape.block_size]
                ended.setdefault((outcome.identities, prefix), set()).add(outcome.request)
        excused.update(*list(ended.values())[:failed])
    return excused


def failure(*, silent: bool, lost: str | None) -> FailureClass:
    """Silence is a hang, even though the engine is given up for it; an engine that is gone has crashed."""
    if silent:
        return FailureClass.HANG
    return FailureClass.CRASH if lost is not None else FailureClass.API

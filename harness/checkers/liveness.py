"""Every request must end with an answer, and the engine must still be there afterwards."""

from __future__ import annotations

from harness.checkers.finding import Finding
from harness.history import History
from reports.schema import FailureClass


def check_liveness(history: History) -> list[Finding]:
    """Hangs, crashes and refusals, for requests and for adapter changes alike."""
    found = []
    for outcome in history.outcomes:
        if outcome.error is not None:
            kind = failure(silent=outcome.silent, lost=history.engine_lost)
            found.append(
                Finding(
                    checker="liveness",
                    failure_class=kind,
                    request=outcome.request,
                    sentence=f"Request {outcome.request} got no answer: {outcome.error}",
                )
            )
        elif not outcome.tokens:
            found.append(
                Finding(
                    checker="liveness",
                    failure_class=FailureClass.API,
                    request=outcome.request,
                    sentence=f"Request {outcome.request} ended without a single token "
                    f"(finish reason {outcome.finish_reason!r}).",
                )
            )
    for record in history.steps:
        if record.error is not None:
            kind = failure(silent=record.silent, lost=history.engine_lost)
            found.append(
                Finding(checker="liveness", failure_class=kind, sentence=f"Step {record.step} failed: {record.error}")
            )
    if history.engine_lost is not None and not found:
        found.append(
            Finding(
                checker="liveness", failure_class=FailureClass.CRASH, sentence=f"Engine lost: {history.engine_lost}"
            )
        )
    return found


def failure(*, silent: bool, lost: str | None) -> FailureClass:
    """Silence is a hang, even though the engine is given up for it; an engine that is gone has crashed."""
    if silent:
        return FailureClass.HANG
    return FailureClass.CRASH if lost is not None else FailureClass.API

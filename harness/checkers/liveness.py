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
            kind = (
                FailureClass.HANG if outcome.silent else FailureClass.CRASH if history.engine_lost else FailureClass.API
            )
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
            kind = FailureClass.CRASH if history.engine_lost else FailureClass.API
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

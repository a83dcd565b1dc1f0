"""Turns a verdict into the outcome of a pytest test."""

from __future__ import annotations

import pytest

from coldproof.harness.judgement.trial import Trial, Violation
from coldproof.reports.schema.verdict import Verdict


def raise_outcome(verdict: Verdict, trial: Trial, reason: str, problem: BaseException | None) -> None:
    """Return for CONFORMS; raise pytest's outcome for any other verdict.

    `problem`: the exception that ended the test, if any.
    """
    message = f"{trial.requirement.id} {verdict.value}: {reason}"
    match verdict:
        case Verdict.CONFORMS:
            return
        case Verdict.UNSUPPORTED:
            pytest.skip(message)
        case Verdict.KNOWN_ISSUE:
            # No traceback: it is not useful, and parsing its sources can end a run on CPython 3.11 (cpython#106905).
            raise pytest.xfail.Exception(message, pytrace=False)
        case Verdict.ERROR:
            if problem is not None and not isinstance(problem, Violation):
                raise problem
    pytest.fail(message, pytrace=False)

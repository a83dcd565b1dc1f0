"""A plugin that ends each trial after a number of examples, so that no verdict depends on how fast the machine is."""

from __future__ import annotations

from coldproof.harness.judgement.trial import Trial
from coldproof.harness.session.budget import Budget

MOST = 60  # examples of a trial


def has_enough(_: Budget, trial: Trial) -> bool:
    """Return whether a trial has its least examples or requests and its evidence, or as many examples as it may."""
    few = trial.examples < trial.least_examples and trial.requests < trial.least_requests
    return trial.examples >= MOST or (trial.examples > 0 and not few and not trial.missing())


Budget.is_spent = has_enough  # type: ignore[method-assign]

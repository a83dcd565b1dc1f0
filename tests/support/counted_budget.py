"""A plugin that ends each trial after a number of examples, so that no verdict depends on how fast the machine is."""

from __future__ import annotations

import os

from coldproof.harness.judgement.trial import Trial
from coldproof.harness.session.budget import Budget

# Examples of a trial with its evidence that could have shown a wrong block, and all examples of one without. The words
# of the former differ in each run, so that once in a dozen runs the answers of one of them show nothing.
ENOUGH, MOST = map(int, os.environ.get("COUNTED_EXAMPLES", "30,60").split(","))


def has_enough(_: Budget, trial: Trial) -> bool:
    """Return whether a trial has its examples."""
    return trial.examples >= MOST or (trial.discriminating_examples >= ENOUGH and not trial.missing())


Budget.is_spent = has_enough  # type: ignore[method-assign]

"""A plugin that makes every engine count as slow, and ends each trial after its first example."""

from __future__ import annotations

from coldproof.harness.judgement.trial import Trial
from coldproof.harness.session import workload_limits
from coldproof.harness.session.budget import Budget

SCALE = 0.03


def after_one_example(_: Budget, trial: Trial) -> bool:
    """Return whether a trial has its first example."""
    return trial.examples > 0


workload_limits.workload_scale = lambda *_: SCALE
Budget.is_spent = after_one_example  # type: ignore[method-assign]

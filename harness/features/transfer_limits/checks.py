"""Checks that no more is loaded from a second tier for requests than they allow."""

from __future__ import annotations

import math

from coldproof.adapters.protocol.metrics import increase
from coldproof.harness.history.records import History, StepRecord
from coldproof.harness.judgement.checkers.cached_tokens import loads_failed
from coldproof.harness.judgement.checkers.uncounted_hits import preempted
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.schema.verdict import FailureClass


@check(
    "limits",
    order=104,
    fails="More tokens loaded from the second tier than the requests of a step allow.",
)
def check_limits(history: History, *, exclusive: bool) -> list[Finding]:
    """Return a finding for the first step whose requests all have a limit and in which more was loaded.

    A request that is preempted, or whose load fails, is looked up again, each time with its whole limit. Return none if
    other clients use the engine (not `exclusive`): the counter is that of all.
    """
    for record in history.steps if exclusive else ():
        most = allowed(history, record)
        loaded = increase(record.before.external_hit_tokens, record.after.external_hit_tokens)
        if loaded is not None and loaded > most and not preempted(record) and not loads_failed(record):
            sentence = (
                f"In step {record.step}, {loaded:.0f} tokens were loaded from the second tier, but its requests allow "
                f"at most {most:.0f}."
            )
            return [Finding(checker="limits", failure_class=FailureClass.API, sentence=sentence)]
    return []


def allowed(history: History, record: StepRecord) -> float:
    """Return how many tokens the requests of a step allow to load together."""
    limits = [o.options.most_loaded for o in history.outcomes if o.step == record.step]
    return math.inf if not limits or None in limits else sum(filter(None, limits))

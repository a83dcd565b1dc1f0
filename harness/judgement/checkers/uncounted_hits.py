"""Checks that requests that report no cached tokens hit no more than they may, by the engine's own counter.

Routes for pooled answers report no counts, and a vector does not show whose KV it was computed from: another salt's is
the same. Only the counter of the whole engine shows such a hit.
"""

from __future__ import annotations

from coldproof.harness.history.records import History, Outcome, StepRecord
from coldproof.harness.judgement.checkers.cached_tokens import hits, loads_failed
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.reference_cache import at_most
from coldproof.harness.schema.verdict import FailureClass


@check("accounting", order=90)
def check_uncounted_hits(history: History, *, exclusive: bool) -> list[Finding]:
    """Return a finding for the first step up to which the counter has grown by more than all requests may have hit.

    A counter may be published late, so that the sums from the first step on are compared. Return none where all
    requests report their counts, if other clients use the engine (not `exclusive`), from the first failed load on, and
    if an engine may count a request several times, from the first step on in which a request may have waited.
    """
    uncounted = any(o.answered and o.cached_tokens is None for o in history.outcomes)
    if not (uncounted and exclusive) or history.side_restarts or history.shape.shares_a_tier:
        return []
    allowed = 0
    for record in history.steps:
        started, now = (hits(m, tiers=history.shape.second_tier) for m in (history.steps[0].before, record.after))
        together = [outcome for outcome in history.outcomes if outcome.step == record.step]
        once = history.shape.counts_first_lookups or (len(together) < 2 and not preempted(record))
        if started is None or now is None or loads_failed(record) or not once:
            return []
        allowed += sum(may_add(history, outcome) for outcome in together)
        if now - started > allowed:
            words = (
                f"Up to step {record.step}, the engine's hit counter grew by {now - started:.0f} tokens, but its "
                f"requests may have hit {allowed} at most. They report no counts of their own."
            )
            return [Finding(checker="accounting", failure_class=FailureClass.ACCOUNTING, sentence=words)]
    return []


def preempted(record: StepRecord) -> bool:
    """Return whether a request of a step lost its blocks, and was looked up again."""
    return record.after.preemptions != record.before.preemptions


def may_add(history: History, outcome: Outcome) -> int:
    """Return the most that a request may have added to the counter: what it reports, or what it may have hit, in whole
    blocks where every layer keeps whole blocks of known size. Each of several answers looks up its prompt.
    """
    if outcome.cached_tokens is not None and outcome.answered and outcome.options.answers == 1:
        return outcome.cached_tokens
    block = history.shape.block_size if history.shape.uniform and not history.shape.second_tier else None
    most = at_most(history, outcome)
    return outcome.options.answers * (most // (block or 1) * (block or 1))

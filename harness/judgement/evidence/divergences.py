"""Counts the answers that diverged from their cold answers and are not findings, on hits and without. Pure.

Requests with the same question have the same close tokens, so that one tie decides all their answers. They count once:
the first of them that hit, and the first that did not. The others would repeat the same chance.
"""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.harness.history.records import History, Outcome, common_prefix
from coldproof.harness.judgement.checkers.tokens import closest
from coldproof.harness.judgement.evidence.names import Evidence
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.oracle import Answers, Question, comparable_outcomes, question
from coldproof.reports.schema.divergences import Rate

TOKENS = "tokens"  # the checker of answers


def divergence_facts(history: History, answers: Answers, found: Iterable[Finding]) -> dict[str, float]:
    """Return the counters of compared answers. `found`: what the checkers reported, noise included."""
    of_tokens = [one for one in found if one.checker == TOKENS]
    noise = {one.request for one in of_tokens if one.noise}
    left_out = {one.request for one in of_tokens if not one.noise}  # findings, and what a lossy mode permits
    first: dict[tuple[Question, bool], Outcome] = {}
    for outcome in comparable_outcomes(history):
        if outcome.surface.pooled is None and outcome.request not in left_out:
            first.setdefault((question(outcome, outcome.identities[-1]), outcome.hit_at_least > 0), outcome)
    facts: dict[str, float] = {}
    for hit, names in ((True, ON_HITS), (False, WITHOUT_HITS)):
        compared = [one for (_, hits), one in first.items() if hits is hit]
        rates = [rate_of(one, answers, diverged=one.request in noise) for one in compared]
        total = sum(rates, Rate())
        facts |= dict(zip(names, (len(compared), total.diverged, total.tokens), strict=True))
    return facts


ON_HITS = (Evidence.COMPARED_HITS, Evidence.DIVERGED_HITS, Evidence.TOKENS_HITS)
WITHOUT_HITS = (Evidence.COMPARED_MISSES, Evidence.DIVERGED_MISSES, Evidence.TOKENS_MISSES)


def rate_of(outcome: Outcome, answers: Answers, *, diverged: bool) -> Rate:
    """Return the tokens of an answer up to the first that differs, and whether one does."""
    if not diverged:
        return Rate(len(outcome.tokens), 0)
    return Rate(common_prefix(closest(outcome, answers).ids, outcome.token_ids) + 1, 1)

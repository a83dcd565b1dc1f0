"""Counts the answers that diverged from their cold answers and are not findings, on hits and without. Pure.

An answer that the cold engine gave as well, when it was asked again, did not diverge from what a cold start answers.

Requests with the same question have the same close tokens, so that one tie decides all their answers. They count once:
the first of them that hit, and the first that did not. The others would repeat the same chance.
"""

from __future__ import annotations

from coldproof.harness.history.records import History, Outcome, assumed_block, common_prefix, written_tokens
from coldproof.harness.judgement.checkers.tokens import closest, is_repeated_cold
from coldproof.harness.judgement.counters import Evidence, computes
from coldproof.harness.judgement.criteria import TOKENS
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.oracle import Answers, Question, comparable_outcomes, question
from coldproof.harness.schema.divergences import Rate
from coldproof.harness.schema.evidence import ReportedEvidence


class Divergences(Evidence):
    """Answers that were compared with their cold answers, on hits and without."""

    COMPARED_HITS = ReportedEvidence.COMPARED_HITS.value
    DIVERGED_HITS = ReportedEvidence.DIVERGED_HITS.value
    TOKENS_HITS = ReportedEvidence.TOKENS_HITS.value
    COMPARED_MISSES = ReportedEvidence.COMPARED_MISSES.value
    DIVERGED_MISSES = ReportedEvidence.DIVERGED_MISSES.value
    TOKENS_MISSES = ReportedEvidence.TOKENS_MISSES.value


ON_HITS = (Divergences.COMPARED_HITS, Divergences.DIVERGED_HITS, Divergences.TOKENS_HITS)
WITHOUT_HITS = (Divergences.COMPARED_MISSES, Divergences.DIVERGED_MISSES, Divergences.TOKENS_MISSES)


@computes(Divergences, order=220)
def divergence_facts(history: History, answers: Answers, found: tuple[Finding, ...]) -> dict[str, float]:
    """Return the counters of compared answers. `found`: what the checkers reported, noise included."""
    of_tokens = [one for one in found if one.checker == TOKENS]
    repeated = {one.request for one in comparable_outcomes(history) if is_repeated_cold(one, answers)}
    noise = {one.request for one in of_tokens if one.noise} - repeated
    left_out = {one.request for one in of_tokens if not one.noise}  # findings, and what a lossy mode permits
    first: dict[tuple[Question, bool], Outcome] = {}
    for outcome in comparable_outcomes(history):
        if outcome.options.pooled is None and outcome.request not in left_out:
            first.setdefault((question(outcome, outcome.identities[-1]), may_have_hit(history, outcome)), outcome)
    facts: dict[str, float] = {}
    for hit, names in ((True, ON_HITS), (False, WITHOUT_HITS)):
        compared = [one for (_, hits), one in first.items() if hits is hit]
        rates = [rate_of(one, answers, diverged=one.request in noise) for one in compared]
        total = sum(rates, Rate())
        facts |= dict(zip(names, (len(compared), total.diverged, total.tokens), strict=True))
    return facts


def may_have_hit(history: History, outcome: Outcome) -> bool:
    """Return whether a request hit the cache or, if the engine does not report that, may have hit another's block."""
    if outcome.hit_at_least or outcome.cached_tokens is not None:
        return outcome.hit_at_least > 0
    block = assumed_block(history)
    others = (one for one in history.outcomes if one.request != outcome.request and one.sent <= outcome.sent)
    return any(common_prefix(written_tokens(one), outcome.prompt) >= block for one in others)


def rate_of(outcome: Outcome, answers: Answers, *, diverged: bool) -> Rate:
    """Return the tokens of an answer up to the first that differs, and whether one does."""
    if not diverged:
        return Rate(len(outcome.tokens), 0)
    return Rate(common_prefix(closest(outcome, answers).ids, outcome.token_ids) + 1, 1)

"""Checks that a cache hit does not make the drafts of speculative decoding worse.

A draft model has KV of its own for the tokens before it. If that is missing after a hit, no answer shows it: wrong
drafts are rejected. The request only takes as many steps as without any drafts.
"""

from __future__ import annotations

from coldproof.harness.features.drafts.facts import ColdAndHit, cold_and_hit
from coldproof.harness.history.records import History
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.schema.verdict import FailureClass

LEAST_ACCEPTED = 4  # cold, where scores are noisy: then half of them is more than a rounding error can change


@check(
    "drafts",
    order=110,
    fails=(
        "Fewer drafts of speculative decoding accepted for a request that hit than for the same prompt and answer "
        "without a hit, each alone; less than half of them if answers need not be exact."
    ),
)
def check_drafts(history: History, rule: Rule, *, exclusive: bool) -> list[Finding]:
    """Return a finding for each request that hit and had fewer drafts accepted than the same prompt and answer cold.

    Return none if other clients use the engine (not `exclusive`): its counters include their drafts. Nor where a second
    tier loads the block that the pool's hits lack for heads that draft: "Drafter KV served one chunk stale can only
    lower speculative acceptance rates [...] so fail toward serving" (vLLM, `SchedulerOffloadConfig.from_spec`).
    """
    if not exclusive or (history.shape.drops_block and history.shape.second_tier):
        return []
    return [finding(pair) for pair in cold_and_hit(history) if is_worse(pair, rule)]


def is_worse(pair: ColdAndHit, rule: Rule) -> bool:
    """Return whether fewer drafts were accepted on the hit. Where answers need not be exact, rounding errors may change
    a draft, so that only a loss of more than half of them counts.
    """
    hit, cold = pair.hit_counts.accepted, pair.cold_counts.accepted
    return hit < cold if rule.exact else cold >= LEAST_ACCEPTED and 2 * hit < cold


def finding(pair: ColdAndHit) -> Finding:
    """Return the finding about a request whose drafts were worse."""
    return Finding(
        checker="drafts",
        failure_class=FailureClass.LOST_REUSE,
        request=pair.hit.request,
        sentence=(
            f"Request {pair.hit.request} hit {pair.hit.hit_at_least} cached tokens, and {pair.hit_counts} drafted "
            f"tokens were accepted; without a hit (request {pair.cold.request}, same prompt and answer), "
            f"{pair.cold_counts}. The drafter lacked what it had computed for the cached tokens."
        ),
    )

"""Checks what the pool itself hits, before a second tier: a request's count does not show that it was loaded again."""

from __future__ import annotations

import msgspec

from coldproof.adapters.protocol.metrics import increase
from coldproof.harness.history.records import History, Outcome, StepRecord
from coldproof.harness.judgement.checkers.cached_tokens import loads_failed
from coldproof.harness.judgement.checkers.uncounted_hits import preempted
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.reference_cache import everything, has_room, left_for, must_hit
from coldproof.harness.schema.verdict import FailureClass

# The last blocks of a prompt may still be held by copies of an ended request when another one is looked up. So many
# that are all missing were never entered into the pool's index.
LEAST_BLOCKS = 2


@check(
    "sources",
    order=103,
    fails="A prompt that is loaded from the second tier although an earlier request had left it in the pool.",
)
def check_sources(history: History, *, exclusive: bool) -> list[Finding]:
    """Return a finding for the first request alone in its step that hit nothing in the pool, where it had to.

    Only where the pool had room for all that was computed: a copy to the tier holds the blocks of a prompt's end for
    longer than those of its beginning, which are then evicted first. Only a step in which the engine's counters and the
    request's own count agree is judged: counters may be published late. Return none for a tier between two engines, and
    if other clients use the engine (not `exclusive`).
    """
    shape = history.shape
    if not exclusive or not shape.second_tier or shape.fetches_prompts or not shape.uniform or not shape.block_size:
        return []
    alone = {record.step: record for record in history.steps if loads_all(history, record)}
    pool = msgspec.structs.replace(history, shape=msgspec.structs.replace(shape, second_tier=False, tier_blocks=None))
    if not alone or not has_room(pool):
        return []
    for outcome in history.outcomes:
        if outcome.step not in alone or outcome.session or not must_hit(pool, outcome):
            continue
        found = left_for(pool, outcome, everything)
        left, other = max(((tokens, other.request) for other, tokens in found), default=(0, 0))
        blocks = int(min(left, len(outcome.prompt) - 1)) // shape.block_size
        if blocks >= LEAST_BLOCKS:
            return [finding(outcome, other, blocks * shape.block_size)]
    return []


def loads_all(history: History, record: StepRecord) -> bool:
    """Return whether a step had one request, all of whose hits came from the second tier, by the engine's counters."""
    outcomes = [outcome for outcome in history.outcomes if outcome.step == record.step]
    local = increase(record.before.hit_tokens, record.after.hit_tokens)
    loaded = increase(record.before.external_hit_tokens, record.after.external_hit_tokens)
    calm = not (preempted(record) or loads_failed(record))
    return calm and local == 0 and len(outcomes) == 1 and bool(loaded) and outcomes[0].cached_tokens == loaded


def finding(outcome: Outcome, other: int, left: int) -> Finding:
    """Return a finding about a request that loaded what another one had left in the pool."""
    sentence = (
        f"Request {outcome.request} hit nothing in the pool and loaded {outcome.cached_tokens} tokens from the second "
        f"tier, but request {other} had left {left} in the pool, which had room to keep them."
    )
    return Finding(checker="sources", failure_class=FailureClass.LOST_REUSE, request=outcome.request, sentence=sentence)

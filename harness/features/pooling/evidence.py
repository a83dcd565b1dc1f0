"""Counts what pooled answers show: hits before them, chunks behind a hit, prompts that differ in little."""

from __future__ import annotations

from coldproof.adapters.protocol.metrics import increase
from coldproof.harness.history.records import History, Outcome, assumed_block, common_prefix, written_tokens
from coldproof.harness.judgement.counters import Evidence, computes


class Pooling(Evidence):
    """Pooled answers."""

    HITS = "pooled answers on a hit"
    CHUNKS = "pooled answers on a hit behind which several chunks were computed"
    SCORED_HITS = "scores and ranks on a hit"
    NEAR = "pooled answers to prompts that differ in one or two tokens from an earlier one"
    TOKENS = "answers with a vector for each token of a prompt of which blocks were cached"


@computes(Pooling, order=200)
def pooling_facts(history: History) -> dict[str, float]:
    """Return the counters of pooled answers."""
    pooled = [o for o in history.outcomes if o.options.pooled is not None and o.answered and o.pooled]
    hits = {o.request: hit_tokens(history, o) for o in pooled if not o.options.needs_whole_prompt}
    step = history.shape.step_tokens
    return {
        Pooling.HITS: sum(hit > 0 for hit in hits.values()),
        Pooling.CHUNKS: sum(step is not None and 0 < hits.get(o.request, 0) < len(o.prompt) - step for o in pooled),
        Pooling.SCORED_HITS: sum(
            hits.get(o.request, 0) > 0 for o in pooled if o.options.pooled is not None and o.options.pooled.of_texts
        ),
        Pooling.NEAR: sum(is_near_a_cached_prompt(history, o) for o in pooled),
        Pooling.TOKENS: sum(o.options.needs_whole_prompt and could_hit(history, o) for o in pooled),
    }


def hit_tokens(history: History, outcome: Outcome) -> float:
    """Return how many prompt tokens came from the cache, at least: as reported or, for a request that was alone in its
    step and has no reported number, as the engine counted meanwhile.
    """
    if outcome.cached_tokens is not None or any(
        other.step == outcome.step and other.request != outcome.request for other in history.outcomes
    ):
        return outcome.hit_at_least
    record = next((record for record in history.steps if record.step == outcome.step), None)
    counted = None if record is None else increase(record.before.hit_tokens, record.after.hit_tokens)
    return outcome.hit_at_least if counted is None else min(counted, len(outcome.prompt))


def earlier(history: History, outcome: Outcome) -> list[Outcome]:
    """Return the requests of the same identity that had ended before this one was sent."""
    return [
        other for other in history.outcomes if other.finished <= outcome.sent and other.identities == outcome.identities
    ]


def could_hit(history: History, outcome: Outcome) -> bool:
    """Return whether an earlier request computed a whole block of the prompt."""
    block = assumed_block(history)
    return any(common_prefix(written_tokens(other), outcome.prompt) >= block for other in earlier(history, outcome))


def is_near_a_cached_prompt(history: History, outcome: Outcome) -> bool:
    """Return whether an earlier prompt has the same length and differs in one token, or in two that are swapped."""
    return any(
        len(other.prompt) == len(outcome.prompt)
        and 0 < sum(a != b for a, b in zip(other.prompt, outcome.prompt, strict=True)) <= 2
        for other in earlier(history, outcome)
    )

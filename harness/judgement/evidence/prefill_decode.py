"""Evidence about engines of which one computes prompts and another one decodes. Pure."""

from __future__ import annotations

from coldproof.adapters.protocol.metrics import increase
from coldproof.harness.history.records import History, Outcome, StepRecord, assumed_block
from coldproof.harness.judgement.evidence.names import Evidence


def transfer_facts(history: History) -> dict[str, float]:
    """Return how many prompts were fetched, wholly or in part, by the decoder's counter around each step."""
    fetched = {record.step: fetched_tokens(record) for record in history.steps}
    moved = [step for step, tokens in fetched.items() if tokens > 0]
    sent = {step: [o for o in history.outcomes if o.step == step and o.answered] for step in moved}
    return {
        Evidence.FETCHED: sum(map(len, sent.values())),
        Evidence.PARTLY_FETCHED: sum(
            fetched_in_part(history, outcomes, fetched[step]) for step, outcomes in sent.items()
        ),
    }


def fetched_tokens(record: StepRecord) -> float:
    """Return the tokens that an engine fetched from another one in a step; 0 if it does not count them."""
    return increase(record.before.external_hit_tokens, record.after.external_hit_tokens) or 0


def fetched_in_part(history: History, outcomes: list[Outcome], fetched: float) -> int:
    """Return how many prompts of a step the decoder fetched in part: known of a prompt that was alone."""
    alone = len(outcomes) == 1 and outcomes[0].surface.answers == 1
    return int(alone and fetched <= len(outcomes[0].prompt) - assumed_block(history))

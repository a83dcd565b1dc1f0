"""Evidence about engines of which one computes prompts and another one decodes, and about what was killed. Pure."""

from __future__ import annotations

from coldproof.adapters.protocol.metrics import increase
from coldproof.adapters.protocol.sides import ENGINES
from coldproof.harness.history.records import History, Outcome, SideRestart, StepRecord, assumed_block, common_prefix
from coldproof.harness.judgement.counters import Evidence, computes


class Sides(Evidence):
    """A prefiller, a decoder and the tier between them."""

    FETCHED = "prompts of which the decoder fetched KV from the prefiller"
    PARTLY_FETCHED = "prompts of which the decoder had blocks and fetched the rest"
    HALF_CHANGED = "answers while a change had reached only one side"
    LATE = "prompts that the decoder got late and answered"
    SIDE_RESTARTS = "sides killed and started again"
    AFTER_SIDE_RESTART = "answers to prompts that were computed before a side was killed"
    TIER_RESTARTS = "servers of a tier killed and started again"
    LOADED_FROM_RESTARTED = "tokens loaded from a tier after its server was killed and started again"


@computes(Sides, order=190)
def transfer_facts(history: History) -> dict[str, float]:
    """Return how many prompts were fetched, wholly or in part, by the decoder's counter around each step."""
    fetched = {record.step: fetched_tokens(record) for record in history.steps}
    moved = [step for step, tokens in fetched.items() if tokens > 0]
    sent = {step: [o for o in history.outcomes if o.step == step and o.answered] for step in moved}
    late = {number: request.hand_over_ms for number, _, request in history.workload.requests()}
    return {
        Sides.FETCHED: sum(map(len, sent.values())),
        Sides.PARTLY_FETCHED: sum(fetched_in_part(history, outcomes, fetched[step]) for step, outcomes in sent.items()),
        Sides.HALF_CHANGED: sum(
            o.answered and any(half.contains(o) for half in history.half_changed) for o in history.outcomes
        ),
        Sides.LATE: sum(o.answered and was_late(o, late.get(o.request, 0)) for o in history.outcomes),
        Sides.SIDE_RESTARTS: sum(restart.side in ENGINES for restart in history.side_restarts),
        Sides.TIER_RESTARTS: sum(restart.side not in ENGINES for restart in history.side_restarts),
        Sides.LOADED_FROM_RESTARTED: sum(
            fetched[record.step] for record in history.steps if after_the_tier_restarted(history, record)
        ),
        Sides.AFTER_SIDE_RESTART: sum(
            any(computed_before(history, o, restart) for restart in history.side_restarts) for o in history.outcomes
        ),
    }


def was_late(outcome: Outcome, hand_over_ms: int) -> bool:
    """Return whether a request took as long as its late hand-over, so that the delay was really made."""
    return 0 < hand_over_ms <= 1000 * (outcome.finished - outcome.sent)


def after_the_tier_restarted(history: History, record: StepRecord) -> bool:
    """Return whether a step began after the server of a tier was killed and started again."""
    return any(one.side not in ENGINES and one.ended <= record.started for one in history.side_restarts)


def computed_before(history: History, outcome: Outcome, restart: SideRestart) -> bool:
    """Return whether an answer came after a restart, to a prompt of which a block was computed before."""
    return (
        outcome.answered
        and outcome.sent >= restart.ended
        and any(
            other.finished <= restart.began and common_prefix(other.prompt, outcome.prompt) >= assumed_block(history)
            for other in history.outcomes
        )
    )


def fetched_tokens(record: StepRecord) -> float:
    """Return the tokens that an engine fetched from another one in a step; 0 if it does not count them."""
    return increase(record.before.external_hit_tokens, record.after.external_hit_tokens) or 0


def fetched_in_part(history: History, outcomes: list[Outcome], fetched: float) -> int:
    """Return how many prompts of a step the decoder fetched in part: known of a prompt that was alone."""
    alone = len(outcomes) == 1 and outcomes[0].options.answers == 1
    if not alone:
        return 0
    block, prompt = assumed_block(history), len(outcomes[0].prompt)
    # What is stored is whole blocks; the decoder computes the last token at least.
    whole = (prompt - 1) // block * block if history.shape.shares_a_tier else prompt
    return int(fetched <= whole - block)

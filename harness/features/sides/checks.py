"""Checks what the decoder of a pair takes from its own cache, by the tokens that it fetches.

A request's count of cached tokens is the prefiller's. The decoder counts what it fetches, and it fetches what it does
not have: the rest of a prompt came from its own cache, which a right answer does not show. So salts that share blocks
there, or a reset that leaves them, are found by this counter only.
"""

from __future__ import annotations

import msgspec

from coldproof.adapters.protocol.metrics import increase
from coldproof.harness.history.records import History, Outcome, assumed_block
from coldproof.harness.judgement.checkers.cached_tokens import Span, loads_failed
from coldproof.harness.judgement.checkers.uncounted_hits import preempted
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.reference_cache import at_least, at_most, has_room
from coldproof.harness.schema.verdict import FailureClass


@check(
    "accounting",
    order=100,
    fails=("A decoder that fetches fewer tokens from a prefiller than it may have had itself, or more than it lacked."),
)
def check_decoder_hits(history: History, *, exclusive: bool) -> list[Finding]:
    """Return a finding for the first step up to which the decoder fetched less, or more, than its cache explains.

    A counter may be published late, so that the sums from the first step on are compared, and the least only after
    answers of several tokens. Return none for an engine that is not a pair, for a decoder that may compute what it does
    not find, if other clients use it (not `exclusive`), if a side was killed, and from the first failed fetch or
    preemption on.
    """
    counted_on = history.shape.fetches_prompts and not history.shape.shares_a_tier
    if not counted_on or not exclusive or history.side_restarts or not history.steps:
        return []
    decoder = as_seen_by_the_decoder(history)
    room = has_room(decoder)
    allowed, first = Span(), history.steps[0].before
    for record in history.steps:
        fetched = increase(first.external_hit_tokens, record.after.external_hit_tokens)
        together = [outcome for outcome in history.outcomes if outcome.step == record.step]
        if fetched is None or preempted(record) or loads_failed(record):
            return []
        for outcome in together:
            allowed += to_be_fetched(decoder, outcome, room=room)
        counted = all(not outcome.answered or len(outcome.tokens) > 1 for outcome in together)
        if counted and fetched < allowed.low:
            why = f"but at least {allowed.low:.0f} cannot have been in its own cache"
            return [finding(record.step, fetched, FailureClass.ACCOUNTING, why)]
        if fetched > allowed.high:
            why = f"but all except {allowed.high:.0f} had been left in its own cache, which had room"
            return [finding(record.step, fetched, FailureClass.LOST_REUSE, why)]
    return []


def finding(step: int, fetched: float, failure_class: FailureClass, why: str) -> Finding:
    """Return a finding about the counter."""
    words = f"Up to step {step}, the decoder fetched {fetched:.0f} tokens of its prompts, {why}."
    return Finding(checker="accounting", failure_class=failure_class, sentence=words)


def as_seen_by_the_decoder(history: History) -> History:
    """Return the history of the decoder, which has the answers too."""
    return msgspec.structs.replace(
        history, shape=msgspec.structs.replace(history.shape, publishes_answers=True, second_tier=False)
    )


def to_be_fetched(decoder: History, outcome: Outcome, *, room: bool) -> Span:
    """Return how many tokens the decoder fetches for a request. `room`: its pool had room for everything.

    It fetches nothing for what both sides compute, and perhaps nothing for a prompt of less than a block or for a
    request that got no answer.
    """
    if outcome.options.answers > 1 or outcome.options.needs_whole_prompt:
        return Span()
    prompt = len(outcome.prompt)
    owed = (at_least(decoder, outcome) or 0) if room else 0
    if not outcome.answered or prompt < assumed_block(decoder):
        return Span(0.0, prompt)
    return Span(prompt - at_most(decoder, outcome), prompt - owed)

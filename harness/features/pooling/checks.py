"""Checks that pooled answers are complete and equal the cold ones, up to the rounding that the calibration measured.

A vector has a value at every place whatever it is computed from, so that only the comparison with a cold one shows
that a block was wrong. Float32 rounding changes a value by about 1e-6; a wrong block changes many by a hundredth.
"""

from __future__ import annotations

import math

from coldproof.adapters.protocol.pooling import Rows
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.checkers.tokens import foreign_source
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.judgement.oracle import Answer, Answers, comparable_outcomes
from coldproof.harness.judgement.vectors import (
    deviation,
    is_alike,
    nearest,
    same_vectors,
    tolerance,
)
from coldproof.harness.schema.verdict import FailureClass


@check(
    "pooled",
    order=40,
    fails=(
        "A pooled answer with too few or too many vectors or values, a value that is no finite number, or a value "
        "that differs from every cold answer that the request may have by more than rounding can cause."
    ),
    of_answers=True,
    without_cache=True,
)
def check_pooled(history: History, answers: Answers, rule: Rule) -> list[Finding]:
    """Return a finding for each pooled answer that is incomplete, is not finite, or differs from all its cold ones."""
    found = []
    for outcome in comparable_outcomes(history):
        if outcome.options.pooled is not None and outcome.pooled:
            wrong = incomplete(outcome, nearest(outcome, answers)) or different(history, outcome, answers, rule)
            found += [wrong] if wrong is not None else []
    return found


def incomplete(outcome: Outcome, cold: Rows) -> Finding | None:
    """Return the finding about an answer with too few or too many vectors or values, or values that are no numbers."""
    rows, task = outcome.pooled or (), outcome.options.pooled
    wanted = len(outcome.prompt) if task is not None and task.of_each_token else 1
    if len(rows) != wanted:
        return finding(outcome, FailureClass.API, f"got {len(rows)} vectors instead of {wanted}.")
    if not is_alike(rows, cold):
        widths = f"vectors of {width(rows)} values instead of {width(cold)}"
        return finding(outcome, FailureClass.API, f"got {widths}.")
    wrong = next((i for i, row in enumerate(rows) if not all(map(math.isfinite, row))), None)
    if wrong is None:
        return None
    return finding(outcome, FailureClass.CORRUPT, f"got values that are no numbers{of_row(outcome, wrong)}.", wrong)


def width(rows: Rows) -> str:
    """Return the numbers of values of the vectors as text."""
    return " or ".join(str(length) for length in sorted({len(row) for row in rows}))


def different(history: History, outcome: Outcome, answers: Answers, rule: Rule) -> Finding | None:
    """Return the finding about an answer that exceeds the tolerance; None if it does not."""
    mine = outcome.pooled or ()
    apart = deviation(mine, nearest(outcome, answers))
    if apart.largest <= tolerance(rule):
        return None
    failure_class, explanation = explain(history, outcome, answers, rule)
    cached = "an unknown number" if outcome.cached_tokens is None else str(outcome.cached_tokens)
    words = (
        f"differs from the cold answer{of_row(outcome, apart.row)}: {apart}, and {tolerance(rule):.3g} is allowed "
        f"({cached} of its {len(outcome.prompt)} prompt tokens came from the cache){explanation}"
    )
    return finding(outcome, failure_class, words, apart.row)


def of_row(outcome: Outcome, row: int) -> str:
    """Return of which token a vector is, where an answer has one for each."""
    return f" in the vector of token {row}" if outcome.options.pooled and outcome.options.pooled.of_each_token else ""


def finding(outcome: Outcome, failure_class: FailureClass, words: str, row: int | None = None) -> Finding:
    """Return the finding about a request; `words` is the rest of its sentence."""
    asked = f"Request {outcome.request} to '{outcome.model}' for {outcome.options.pooled}"
    return Finding(
        checker="pooled",
        failure_class=failure_class,
        request=outcome.request,
        position=row,
        sentence=f"{asked} {words}",
    )


def explain(history: History, outcome: Outcome, answers: Answers, rule: Rule) -> tuple[FailureClass, str]:
    """Return the failure class and the rest of the sentence: whose answer it is, or whose KV it may come from."""
    mine = outcome.pooled or ()
    own = {(identity.adapter, identity.weights) for identity in outcome.identities}
    for asked, answer in answers.items():
        same_question = (asked.prompt, asked.options) == (outcome.prompt, outcome.options)
        if same_question and (asked.adapter, asked.weights) not in own and equals(answer, mine, rule):
            whose = "the base model" if asked.adapter is None else history.describe_adapter(asked.adapter)
            return FailureClass.STALE_STATE, f": it equals the answer of {whose}."
    for other in history.outcomes:
        if other.prompt != outcome.prompt and other.pooled and same_vectors(mine, other.pooled, rule):
            words = f": it equals the answer to request {other.request}, which has a different prompt."
            return FailureClass.CROSS_REQUEST, words
    source = foreign_source(history, outcome)
    if source is None:
        return FailureClass.CORRUPT, "; it equals no known cold answer."
    theirs, own_one = (history.describe_identity(i) for i in (source.identities[0], outcome.identities[-1]))
    writer = f"its cached prefix was written by request {source.request} for {theirs}"
    return FailureClass.STALE_STATE, f": {writer}, while this request is for {own_one}."


def equals(answer: Answer, rows: Rows, rule: Rule) -> bool:
    """Return whether a cold answer has these vectors."""
    return answer.pooled is not None and same_vectors(rows, answer.pooled, rule)

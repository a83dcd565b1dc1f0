"""The row of a case that shows a wrong vector beside the cold one."""

from __future__ import annotations

import math

from coldproof.harness.history.records import Outcome
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.oracle import Answers
from coldproof.harness.judgement.vectors import deviation, is_alike, nearest, tolerance
from coldproof.harness.schema.case import VectorRow

SHOWN = 8  # values of a vector


def vector_row(outcome: Outcome, answers: Answers, rule: Rule) -> VectorRow | None:
    """Return the vector of a pooled answer that differs most from the cold one; None for an answer in tokens, without
    vectors, or with other numbers of them.
    """
    if outcome.options.pooled is None or not outcome.pooled:
        return None
    cold = nearest(outcome, answers)
    if not is_alike(outcome.pooled, cold):
        return None
    apart = deviation(outcome.pooled, cold)
    return VectorRow(
        token=apart.row if outcome.options.pooled.of_each_token else None,
        values=len(cold[apart.row]),
        expected=list(cold[apart.row][:SHOWN]),
        observed=[value if math.isfinite(value) else None for value in outcome.pooled[apart.row][:SHOWN]],
        largest=apart.largest if math.isfinite(apart.largest) else None,
        cosine=apart.cosine,
        tolerance=tolerance(rule),
    )
